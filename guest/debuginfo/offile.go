package debuginfo

import (
	"debug/dwarf"
	"fmt"

	"github.com/guestprobe/guestprobe/guest/dies"
)

// maxImports bounds a chain of imports of units.
const maxImports = 1 << 12

// fileVariable finds a variable that is declared outside of functions: preferably a
// declaration with a location, otherwise any. The unit of link-time optimization has
// the variables of several files: variables of the file of the function around addr
// are preferred.
func (i *Info) fileVariable(n int, addr uint64, name string) (found declared, err error) {
	var own *dies.Unit // of the function's source
	if c, err := i.contents(n); err == nil {
		if around := c.instancesAround(addr); len(around) > 0 {
			all := i.originsOf(around[0].at)
			own = i.data.UnitOf(all[len(all)-1])
		}
	}
	best := 0
	consider := func(e *dwarf.Entry) {
		all := i.originsOf(e.Offset)
		rank := 1
		if i.attribute(e, dwarf.AttrLocation) != nil {
			rank = 2
			if i.data.UnitOf(all[len(all)-1]) == own {
				rank = 3
			}
		}
		if rank > best {
			best, found.Entry = rank, e
		}
	}
	todo, seen := []*dies.Unit{i.units[n]}, map[*dies.Unit]bool{i.units[n]: true}
	for len(todo) > 0 && best < 3 {
		u := todo[0]
		todo = todo[1:]
		r := i.data.Reader()
		r.Seek(u.Entry.Offset)
		if e, err := r.Next(); err != nil || !e.Children {
			continue
		}
		for {
			e, err := r.Next()
			if err != nil {
				return declared{}, fmt.Errorf("read variables: %w", err)
			}
			if e == nil || e.Tag == 0 {
				break
			}
			if e.Tag == dwarf.TagVariable && i.name(e, nil) == name {
				consider(e)
			}
			if to, ok := e.Val(dwarf.AttrImport).(dwarf.Offset); ok && e.Tag == dwarf.TagImportedUnit {
				if u := i.data.UnitOf(to); u != nil && !seen[u] && len(seen) < maxImports {
					seen[u] = true
					todo = append(todo, u)
				}
			}
			if err := skip(r, e); err != nil {
				return declared{}, err
			}
		}
	}
	return found, nil
}
