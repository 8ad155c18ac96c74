package debuginfo

import (
	"cmp"
	"debug/dwarf"
	"slices"
	"sort"
	"sync"

	"github.com/guestprobe/guestprobe/guest/dies"
)

// ErrNone is returned for a file without debug information.
var ErrNone = dies.ErrNone

// Limits of what is read.
const (
	MaxSection = 1 << 30 // bytes
	maxPlaces  = 1 << 16 // found for one question
)

// Info is the debug information of one program. Little of it is read before it is asked
// for. Methods may be called from any goroutine; addresses are those of the file.
type Info struct {
	mu   sync.Mutex
	data *dies.Data

	units  []*dies.Unit
	anchor uint64 // address of that symbol; 0: there is none
	spans  []span // ascending; of all units

	read  map[int]*contents // of units that were asked for
	parts int               // of all of these

	named *names // nil: nobody has asked
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

// New reads the outlines of a program's debug information; open opens the files that it is in beside the program's, and may be nil.
// Errors are ErrNone, *dies.MissingError, those of f.Section, and what is wrong with the format.
func New(f *dies.File, open dies.Opener) (*Info, error) {
	d, err := dies.New(f, open)
	if err != nil {
		return nil, err
	}
	i := &Info{data: d, units: d.Units, read: map[int]*contents{}}
	for n, u := range i.units {
		i.addSpans(n, u)
	}
	slices.SortFunc(i.spans, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	return i, nil
}

// Paths are the files that the debug information is in beside the program's.
func (i *Info) Paths() []string { return i.data.Paths }

// addSpans notes the code of a unit. One whose code is not known is found by nothing.
func (i *Info) addSpans(n int, u *dies.Unit) {
	if u.Kind != dies.Compile {
		return
	}
	ranges, err := u.Ranges()
	if err != nil {
		return
	}
	for _, r := range ranges {
		if r[0] < r[1] && r[0] != 0 { // what the linker has dropped is at 0
			i.spans = append(i.spans, span{r[0], r[1], n})
		}
	}
}

// unitAt returns the unit that addr is in the code of.
func (i *Info) unitAt(addr uint64) (int, bool) {
	n := sort.Search(len(i.spans), func(n int) bool { return i.spans[n].lo > addr }) - 1
	if n < 0 || addr >= i.spans[n].hi {
		return 0, false
	}
	return i.spans[n].unit, true
}
