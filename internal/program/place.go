package program

import (
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// placement is what is decided about an object before it is loaded: where each
// program runs, and where each map is.
//
// What a program has in the guest is memory of the privilege that it runs at.
// CPL3 must neither read what a program has seen of the kernel, nor write what it
// relies on; and CPL0 must not touch what is of CPL3, or it faults once the guest
// has set CR4.SMAP. So programs of both privileges never share a map in the guest:
// the map is the kernel's, and the program of user code runs on the host.
type placement struct {
	why  []string          // by program: why it runs on the host; "": it need not
	user []bool            // by program: it is for code of CPL3
	mem  map[string]*arena // of maps that programs in the guest use
	heap *heap             // for the others
}

// plan makes the placement of an object.
func (rt *Runtime) plan(o *bpf.Object, opt LoadOptions, placed, cpus int) (*placement, error) {
	col, err := o.Load(cpus, &planned{}, opt.Budget)
	if err != nil {
		return nil, err
	}
	defer col.Close()
	pl := &placement{mem: map[string]*arena{}, heap: &rt.heap}
	for _, p := range col.Programs[:placed] {
		why, user := "", opt.User != nil && opt.User(p.AttachTo)
		if opt.OnHost {
			why = "it was asked for"
		} else if p.Kind() == bpf.Watch {
			why = "a watch takes an exit"
		} else if err := rt.where(p.Program, user); err != nil {
			why = err.Error()
		}
		pl.why = append(pl.why, why)
		pl.user = append(pl.user, user)
	}
	for _, user := range []bool{false, true} {
		for i, p := range col.Programs[:placed] {
			if pl.user[i] == user && pl.why[i] == "" {
				pl.why[i] = pl.give(p.Maps(), rt.arena(user))
			}
		}
	}
	return pl, nil
}

// give puts the maps of a program into mem, or says why not.
func (pl *placement) give(maps []*bpf.Map, mem *arena) string {
	for _, m := range maps {
		if a := pl.mem[m.Spec().Name]; a != nil && a != mem {
			return fmt.Sprintf("it shares map %q with a program at kernel code, and user code must not reach that", m.Spec().Name)
		}
	}
	for _, m := range maps {
		pl.mem[m.Spec().Name] = mem
	}
	return ""
}

// inGuest reports whether some program runs there.
func (pl *placement) inGuest() bool { return slices.Contains(pl.why, "") }

// toHost gives up the guest for all programs.
func (pl *placement) toHost(why string) {
	for i := range pl.why {
		if pl.why[i] == "" {
			pl.why[i] = why
		}
	}
	clear(pl.mem)
}

// memory is where a map goes.
func (pl *placement) memory(name string) bpf.Memory {
	if a := pl.mem[name]; a != nil {
		return a
	}
	return pl.heap
}
