package debuginfo

import (
	"cmp"
	"debug/dwarf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
)

// ErrNone is returned for a file without debug information.
var ErrNone = errors.New("no debug information (build with -g)")

// Limits of what is read. Debian's kernels have 3,000 units.
const (
	MaxSection = 1 << 30 // bytes
	maxUnits   = 1 << 17
	maxPlaces  = 1 << 16 // found for one question
)

// Info is the debug information of one program. Little of it is read before it is asked
// for. Methods may be called from any goroutine; addresses are those of the file.
type Info struct {
	mu   sync.Mutex
	data *dwarf.Data
	info []byte // .debug_info
	str  []byte // .debug_str

	lists, locations, addrs []byte // .debug_loclists, .debug_loc, .debug_addr

	units  []unit
	anchor uint64 // address of that symbol; 0: there is none
	spans  []span // ascending; of all units

	read  map[int]*contents // of units that were asked for
	parts int               // of all of these

	named *names // nil: nobody has asked
}

// unit is one compilation unit.
type unit struct {
	entry *dwarf.Entry
	at    dwarf.Offset // of its header
	end   dwarf.Offset // of what is behind it
	plain bool         // its names are in .debug_str or in itself

	version uint16
	wide    byte   // 1: its offsets have 8 bytes, not 4
	low     uint64 // what addresses in its lists count from
}

// contents are what was read of a unit.
type contents struct {
	rows      []row
	files     []*dwarf.LineFile
	instances []instance
}

// maxParts bounds the rows and instances that are kept, of all units.
const maxParts = 1 << 19

// contents reads a unit's lines and functions.
func (i *Info) contents(n int) (*contents, error) {
	if c := i.read[n]; c != nil {
		return c, nil
	}
	c := &contents{}
	var err error
	if c.rows, c.files, err = i.readRows(n); err != nil {
		return nil, err
	}
	if c.instances, err = i.readInstances(n); err != nil {
		return nil, err
	}
	if i.parts += len(c.rows) + len(c.instances); i.parts > maxParts {
		i.parts = len(c.rows) + len(c.instances)
		clear(i.read)
	}
	i.read[n] = c
	return c, nil
}

// span is code of a unit.
type span struct {
	lo, hi uint64
	unit   int
}

// New reads the outlines of debug information; section returns the bytes of a section of
// the file, nil when there is none. Errors are ErrNone, those of section, and what is
// wrong with the format.
func New(section func(name string) ([]byte, error)) (*Info, error) {
	sections := map[string][]byte{}
	for _, name := range []string{".debug_abbrev", ".debug_info", ".debug_line", ".debug_ranges", ".debug_str",
		".debug_addr", ".debug_line_str", ".debug_rnglists", ".debug_str_offsets", ".debug_loclists", ".debug_loc"} {
		b, err := section(name)
		if err != nil {
			return nil, err
		}
		sections[name] = b
	}
	if len(sections[".debug_info"]) == 0 || len(sections[".debug_abbrev"]) == 0 {
		return nil, ErrNone
	}
	d, err := dwarf.New(sections[".debug_abbrev"], nil, nil, sections[".debug_info"], sections[".debug_line"], nil, sections[".debug_ranges"], sections[".debug_str"])
	if err != nil {
		return nil, fmt.Errorf("read debug information: %w", err)
	}
	for _, name := range []string{".debug_addr", ".debug_line_str", ".debug_rnglists", ".debug_str_offsets"} {
		if err := d.AddSection(name, sections[name]); err != nil {
			return nil, fmt.Errorf("read debug information: %w", err)
		}
	}
	i := &Info{
		data: d, info: sections[".debug_info"], str: sections[".debug_str"], read: map[int]*contents{},
		lists: sections[".debug_loclists"], locations: sections[".debug_loc"], addrs: sections[".debug_addr"],
	}
	if err := i.readUnits(len(sections[".debug_str_offsets"]) == 0); err != nil {
		return nil, err
	}
	return i, nil
}

// readUnits finds the units by their headers (DWARF 5, 7.5.1), and the code of each.
func (i *Info) readUnits(plain bool) error {
	for at := uint64(0); at+12 < uint64(len(i.info)); {
		if len(i.units) == maxUnits {
			return fmt.Errorf("read debug information: more than %d units", maxUnits)
		}
		b := i.info[at:]
		n, word := uint64(binary.LittleEndian.Uint32(b)), uint64(4)
		if n == 0xffffffff && len(b) >= 24 { // 64-bit DWARF
			n, word = binary.LittleEndian.Uint64(b[4:]), 8
			b = b[8:]
		}
		end := at + n + word
		if word == 8 {
			end += 4
		}
		if end <= at || end > uint64(len(i.info)) || n < 8 {
			return fmt.Errorf("read debug information: the unit at %#x is damaged", at)
		}
		head, full, version := uint64(0), true, binary.LittleEndian.Uint16(b[4:])
		switch {
		case version < 5:
			head = 4 + 2 + word + 1
		default:
			head, full = 4+2+1+1+word, b[6] == 1 // DW_UT_compile
		}
		if word == 8 {
			head += 8
		}
		if full {
			r := i.data.Reader()
			r.Seek(dwarf.Offset(at + head))
			e, err := r.Next()
			if err == nil && e != nil && e.Tag == dwarf.TagCompileUnit {
				u := unit{entry: e, at: dwarf.Offset(at), end: dwarf.Offset(end), plain: plain, version: version, wide: byte(word / 8)}
				u.low, _ = e.Val(dwarf.AttrLowpc).(uint64)
				i.addUnit(u)
			}
		}
		at = end
	}
	slices.SortFunc(i.spans, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	return nil
}

func (i *Info) addUnit(u unit) {
	ranges, err := i.data.Ranges(u.entry)
	if err != nil {
		return // a unit whose code nobody knows is found by nothing
	}
	for _, r := range ranges {
		if r[0] < r[1] && r[0] != 0 { // what the linker has dropped is at 0
			i.spans = append(i.spans, span{r[0], r[1], len(i.units)})
		}
	}
	i.units = append(i.units, u)
}

// unitAt returns the unit that addr is in the code of.
func (i *Info) unitAt(addr uint64) (int, bool) {
	n := sort.Search(len(i.spans), func(n int) bool { return i.spans[n].lo > addr }) - 1
	if n < 0 || addr >= i.spans[n].hi {
		return 0, false
	}
	return i.spans[n].unit, true
}
