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

// Limits on reading.
const (
	MaxSection = 1 << 30 // bytes
	maxPlaces  = 1 << 16 // results of one query
)

// Info is the debug information of one program. It is read lazily. Methods may be
// called from any goroutine; addresses are the file's.
type Info struct {
	mu   sync.Mutex
	data *dies.Data

	units  []*dies.Unit
	anchor uint64 // address of that symbol; 0: not in the file
	spans  []span // ascending; of all units

	read  map[int]*contents // units read so far
	parts int               // of all of these

	named *names // nil: not read yet
}

// contents is the part of a unit that was read.
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

// New reads the outlines of a program's debug information; open opens the other files
// that contain parts of it, and may be nil. Errors are ErrNone, *dies.MissingError,
// any error of f.Section, and errors in the format.
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

// paths are the other files that contain parts of the debug information.
func (i *Info) paths() []string { return i.data.Paths }

// addSpans records the code of a unit. A unit whose code is not known cannot be found
// by address.
func (i *Info) addSpans(n int, u *dies.Unit) {
	if u.Kind != dies.Compile {
		return
	}
	ranges, err := u.Ranges()
	if err != nil {
		return
	}
	for _, r := range ranges {
		if r[0] < r[1] && r[0] != 0 { // code that the linker has dropped is at 0
			i.spans = append(i.spans, span{r[0], r[1], n})
		}
	}
}

// unitAt returns the unit whose code contains addr.
func (i *Info) unitAt(addr uint64) (int, bool) {
	n := sort.Search(len(i.spans), func(n int) bool { return i.spans[n].lo > addr }) - 1
	if n < 0 || addr >= i.spans[n].hi {
		return 0, false
	}
	return i.spans[n].unit, true
}
