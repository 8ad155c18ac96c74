package dies

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// loadSplit reads the units whose entries are in other files: in the package next to
// the program, or in a separate file for each.
func (d *Data) loadSplit() error {
	if len(d.skeletons) == 0 {
		return nil
	}
	byID := map[uint64]*Unit{}
	for _, s := range d.skeletons {
		byID[s.id] = s
	}
	had, err := d.loadPackage(byID)
	if err != nil {
		return err
	}
	for _, s := range d.skeletons {
		if had[s.id] {
			continue
		}
		if err := d.loadDwo(s, byID, had); err != nil {
			return err
		}
	}
	return nil
}

// loadDwo finds the file with a skeleton's entries, and reads all units in it.
func (d *Data) loadDwo(s *Unit, byID map[uint64]*Unit, had map[uint64]bool) error {
	name := s.dwo()
	missing := &MissingError{What: s.description(), Name: name, Fix: "put it beside the program's file"}
	if d.file.Path == "" {
		missing.Fix = "name the program's file, so that this one is looked for beside it"
		return missing
	}
	tool := "dwp"
	if s.Version >= 5 {
		tool = "llvm-dwp" // the version of binutils does not support DWARF 5, and writes garbage
	}
	missing.Fix += fmt.Sprintf(", or make the package %s.dwp there (%s -e %[1]s, where the objects are)", filepath.Base(d.file.Path), tool)
	if slices.Contains(d.Paths, d.packagePath()) {
		missing.Lacks = d.packagePath()
	}
	dir, _ := s.Entry.Val(dwarf.AttrCompDir).(string)
	for _, path := range d.pathsBeside(name, dir) {
		missing.Tried = append(missing.Tried, path)
		f, err := d.openOther(path)
		switch {
		case isAbsent(err):
			continue
		case err != nil:
			return err
		}
		ids, err := d.readDwo(f, byID, had)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if !ids[s.id] {
			missing.Other = path
			continue
		}
		return nil
	}
	return missing
}

// description names the unit.
func (u *Unit) description() string {
	if name, ok := u.Entry.Val(dwarf.AttrName).(string); ok {
		return "the unit " + name
	}
	return "a unit"
}

// readDwo reads the units of a file, and returns the IDs of its units whose skeletons
// had none yet. A file without such units is not kept.
func (d *Data) readDwo(f *File, byID map[uint64]*Unit, had map[uint64]bool) (ids map[uint64]bool, err error) {
	info, err := f.Section(".debug_info.dwo")
	if err != nil {
		return nil, err
	}
	types, err := f.Section(".debug_types.dwo")
	if err != nil {
		return nil, err
	}
	sec, err := readSections(f, ".dwo")
	if err != nil {
		return nil, err
	}
	if len(info) == 0 {
		return nil, errors.New("it has no split debug information (.debug_info.dwo)")
	}
	units := len(d.Units)
	for _, x := range []struct {
		info  []byte
		types bool
	}{{info, false}, {types, true}} {
		r, err := d.add(x.info)
		if err != nil {
			return nil, err
		}
		if err := d.readUnits(r, sec, x.types, byID); err != nil {
			return nil, err
		}
	}
	ids = map[uint64]bool{}
	kept := d.Units[:units]
	for _, u := range d.Units[units:] {
		if u.Kind == Compile && (u.skeleton == nil || had[u.id]) {
			continue // of another program, or already known
		}
		if u.Kind == Compile {
			ids[u.id] = true
		}
		kept = append(kept, u)
	}
	if d.Units = kept; len(ids) == 0 {
		d.Units = kept[:units]
		return nil, nil
	}
	for id := range ids {
		had[id] = true
	}
	d.Paths = append(d.Paths, f.Path)
	return ids, nil
}

// The columns of a package's index: the sections of the parts (DWARF 5, 7.3.5.3, and
// GNU's earlier ones).
const (
	sectInfo       = 1
	sectTypes      = 2 // GNU's
	sectAbbrev     = 3
	sectLine       = 4
	sectLoc        = 5
	sectStrOffsets = 6
	sectRnglists   = 8 // of version 5
)

// packagePath is the path of the package with all units of the program.
func (d *Data) packagePath() string { return d.file.Path + ".dwp" }

// loadPackage reads the package next to the program, if there is one, and returns the
// IDs of its units.
func (d *Data) loadPackage(byID map[uint64]*Unit) (had map[uint64]bool, err error) {
	had = map[uint64]bool{}
	if d.file.Path == "" {
		return had, nil
	}
	path := d.packagePath()
	f, err := d.openOther(path)
	if isAbsent(err) {
		return had, nil
	}
	if err == nil {
		err = d.readPackage(f, byID, had)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	d.Paths = append(d.Paths, path)
	return had, nil
}

func (d *Data) readPackage(f *File, byID map[uint64]*Unit, had map[uint64]bool) error {
	sec, err := readSections(f, ".dwo")
	if err != nil {
		return err
	}
	var info, types []byte
	for _, x := range []struct {
		name string
		to   *[]byte
	}{{".debug_info.dwo", &info}, {".debug_types.dwo", &types}} {
		if *x.to, err = f.Section(x.name); err != nil {
			return err
		}
	}
	for _, name := range []string{".debug_tu_index", ".debug_cu_index"} {
		b, err := f.Section(name)
		if err != nil {
			return err
		}
		rows, err := readIndex(b)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, row := range rows {
			own := name == ".debug_cu_index"
			if own && (byID[row.id] == nil || had[row.id]) {
				continue
			}
			if err := d.readPart(row.parts, info, types, sec, byID); err != nil {
				return err
			}
			if own {
				had[row.id] = true
			}
		}
	}
	return nil
}

// part is a unit's part of a section of the package.
type part struct{ off, size uint64 }

func (p part) bytesOf(b []byte) ([]byte, error) {
	if p.off > uint64(len(b)) || p.size > uint64(len(b))-p.off {
		return nil, fmt.Errorf("%w: a part of %d bytes at %#x of %d", errDamaged, p.size, p.off, len(b))
	}
	return b[p.off : p.off+p.size : p.off+p.size], nil
}

// readPart reads the unit of one row.
func (d *Data) readPart(row map[uint32]part, info, types []byte, of *sections, byID map[uint64]*Unit) error {
	sec := *of
	sec.lines = nil
	loc := &sec.loc
	if len(of.loc) == 0 {
		loc = &sec.loclists
	}
	for kind, to := range map[uint32]*[]byte{sectAbbrev: &sec.abbrev, sectLine: &sec.line, sectLoc: loc, sectStrOffsets: &sec.strOffsets, sectRnglists: &sec.rnglists} {
		if p, ok := row[kind]; ok {
			if kind == sectRnglists && len(of.rnglists) == 0 {
				continue // in version 2 of the index it is a part of .debug_macro
			}
			b, err := p.bytesOf(*to)
			if err != nil {
				return err
			}
			*to = b
		}
	}
	for kind, b := range map[uint32][]byte{sectInfo: info, sectTypes: types} {
		p, ok := row[kind]
		if !ok || p.size == 0 {
			continue
		}
		b, err := p.bytesOf(b)
		if err != nil {
			return err
		}
		r, err := d.add(b)
		if err != nil {
			return err
		}
		if err := d.readUnits(r, &sec, kind == sectTypes, byID); err != nil {
			return err
		}
	}
	return nil
}

// indexRow is a unit of a package, by its ID or signature, with its parts of sections.
type indexRow struct {
	id    uint64
	parts map[uint32]part
}

// readIndex reads a package's index.
func readIndex(b []byte) (out []indexRow, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	c := &cursor{b: b}
	version := c.u32() // from 5 on two bytes, and two of padding
	columns, units, slots := c.u32(), c.u32(), c.u32()
	if c.bad || version != 2 && version&0xffff != 5 {
		return nil, fmt.Errorf("%w: an index of version %d: 2 and 5 are known", errDamaged, version&0xffff)
	}
	if columns > 16 || units > maxUnits || slots > uint64(len(b))/12 || units*columns*8 > uint64(len(b)) {
		return nil, fmt.Errorf("%w: an index of %d units, %d columns and %d slots in %d bytes", errDamaged, units, columns, slots, len(b))
	}
	ids, rows := &cursor{b: c.take(8 * slots)}, &cursor{b: c.take(4 * slots)}
	kinds := &cursor{b: c.take(4 * columns)}
	offsets, sizes := c.take(4*columns*units), c.take(4*columns*units)
	if c.bad {
		return nil, fmt.Errorf("%w: an index is cut off", errDamaged)
	}
	kind := make([]uint32, columns)
	for n := range kind {
		kind[n] = uint32(kinds.u32())
	}
	for range slots {
		id, n := ids.u64(), rows.u32()
		if n == 0 {
			continue // an empty slot
		}
		if n > units {
			return nil, fmt.Errorf("%w: row %d of an index of %d", errDamaged, n, units)
		}
		row := map[uint32]part{}
		for k := range kind {
			cell := 4 * ((n-1)*columns + uint64(k))
			row[kind[k]] = part{cursorAt(offsets, cell).u32(), cursorAt(sizes, cell).u32()}
		}
		out = append(out, indexRow{id, row})
	}
	return out, nil
}
