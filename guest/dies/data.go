package dies

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"sort"
)

// Limits of all files together.
const (
	maxUnits = 1 << 18
	maxInfo  = 1<<32 - 1 // bytes of entries, whose offsets have 32 bits
	maxFiles = 1 << 14   // of split debug information
)

// ErrNone is returned for a file without debug information.
var ErrNone = errors.New("no debug information (build with -g)")

// File is a file with debug information.
type File struct {
	Path    string // "" if it has no name: then files next to it are not looked for
	BuildID string // in hexadecimal digits; "" for none
	// Section returns the bytes of a section, nil if the file does not have it.
	Section func(name string) ([]byte, error)
}

// Opener opens a file named in the debug information. After an error that is
// fs.ErrNotExist the next place is tried.
type Opener func(path string) (*File, error)

// Data is the debug information of one program. Entries of all its files have offsets
// in one space: entries in the program's own .debug_info have the file's offsets.
type Data struct {
	Units []*Unit // ascending by At
	// Paths are the opened files other than the program's own.
	Paths []string

	main *sections
	file *File
	open Opener
	size uint64 // bytes of entries so far

	tables     map[*byte]*table
	declared   int
	signatures map[uint64]dwarf.Offset // of type units: the type's entry
	skeletons  []*Unit
}

// sections are the sections of one file, or of a unit's part of a package file.
type sections struct {
	path string

	abbrev, str, lineStr, strOffsets, line []byte
	ranges, rnglists, loc, loclists, addr  []byte
	sup                                    *supplement
	split                                  bool // of a .dwo or .dwp file
	lines                                  *dwarf.Data
}

// region is a section with entries.
type region struct {
	base uint64 // its first byte's offset in the common space
	info []byte
}

// offset returns the common offset for an offset in the section.
func (r *region) offset(off uint64) (any, error) {
	if off >= uint64(len(r.info)) {
		return nil, fmt.Errorf("%w: a reference to %#x of %d bytes", errDamaged, off, len(r.info))
	}
	return dwarf.Offset(r.base + off), nil
}

// New reads the outlines of a program's debug information, of all its files. Errors
// are ErrNone, *MissingError for a file that is not found, any error of Section, and
// errors in the format.
func New(f *File, open Opener) (*Data, error) {
	d := &Data{file: f, open: open, tables: map[*byte]*table{}, signatures: map[uint64]dwarf.Offset{}}
	info, err := f.Section(".debug_info")
	if err != nil {
		return nil, err
	}
	if d.main, err = readSections(f, ""); err != nil {
		return nil, err
	}
	if len(info) == 0 || len(d.main.abbrev) == 0 {
		return nil, ErrNone
	}
	if err := d.load(f, info); err != nil {
		return nil, fmt.Errorf("read debug information: %w", err)
	}
	return d, nil
}

func (d *Data) load(f *File, info []byte) error {
	types, err := f.Section(".debug_types")
	if err != nil {
		return err
	}
	own, err := d.add(info)
	if err != nil {
		return err
	}
	other, err := d.add(types)
	if err != nil {
		return err
	}
	if err := d.loadSupplement(f); err != nil {
		return err
	}
	// The supplement's units come first: others refer to them.
	if s := d.main.sup; s != nil {
		if err := d.readUnits(s.region, s.sec, false, nil); err != nil {
			return fmt.Errorf("%s: %w", s.path, err)
		}
	}
	if err := d.readUnits(own, d.main, false, nil); err != nil {
		return err
	}
	if err := d.readUnits(other, d.main, true, nil); err != nil {
		return err
	}
	if err := d.loadSplit(); err != nil {
		return err
	}
	sort.Slice(d.Units, func(a, b int) bool { return d.Units[a].At < d.Units[b].At })
	return nil
}

// add assigns entries their range in the common space.
func (d *Data) add(info []byte) (*region, error) {
	if uint64(len(info)) > maxInfo-d.size {
		return nil, fmt.Errorf("more than %d bytes of entries", uint64(maxInfo))
	}
	r := &region{base: d.size, info: info}
	d.size += uint64(len(info))
	return r, nil
}

// readSections reads the sections that entries refer to; suffix is ".dwo" for split ones.
func readSections(f *File, suffix string) (*sections, error) {
	s := &sections{path: f.Path, split: suffix != ""}
	for _, x := range []struct {
		name string
		to   *[]byte
	}{
		{".debug_abbrev", &s.abbrev}, {".debug_str", &s.str}, {".debug_line_str", &s.lineStr}, {".debug_str_offsets", &s.strOffsets}, {".debug_line", &s.line},
		{".debug_ranges", &s.ranges}, {".debug_rnglists", &s.rnglists}, {".debug_loc", &s.loc}, {".debug_loclists", &s.loclists}, {".debug_addr", &s.addr},
	} {
		b, err := f.Section(x.name + suffix)
		if err != nil {
			return nil, err
		}
		*x.to = b
	}
	return s, nil
}

// UnitOf returns the unit that contains the entry at an offset, or nil.
func (d *Data) UnitOf(off dwarf.Offset) *Unit {
	n := sort.Search(len(d.Units), func(n int) bool { return d.Units[n].End > off })
	if n == len(d.Units) || off < d.Units[n].first {
		return nil
	}
	return d.Units[n]
}
