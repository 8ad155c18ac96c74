package program

import (
	"slices"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// placement is the plan for an object before it is loaded: where each program runs,
// and where each map is.
type placement struct {
	why  []string          // by program: why it runs on the host; "": it can run in the guest
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
	if placed == allPlaced {
		placed = len(col.Programs)
	}
	at := bpf.Places(col.Programs[:placed], func(p *bpf.LoadedProgram) (why string, user bool) {
		user = opt.User != nil && opt.User(p.AttachTo)
		switch {
		case opt.OnHost:
			return "it was asked for", user
		case p.Kind() == bpf.Watch:
			return p.HostReason(), user
		}
		if err := rt.checkGuest(p.Program, user); err != nil {
			why = err.Error()
		}
		return why, user
	})
	pl := &placement{why: at.Why, user: at.User, mem: map[string]*arena{}, heap: &rt.heap}
	for name, user := range at.Maps {
		pl.mem[name] = rt.arena(user)
	}
	return pl, nil
}

// inGuest reports whether some program runs in the guest.
func (pl *placement) inGuest() bool { return slices.Contains(pl.why, "") }

// moveToHost moves all programs to the host.
func (pl *placement) moveToHost(why string) {
	for i := range pl.why {
		if pl.why[i] == "" {
			pl.why[i] = why
		}
	}
	clear(pl.mem)
}

// memory returns the memory for a map.
func (pl *placement) memory(name string) bpf.Memory {
	if a := pl.mem[name]; a != nil {
		return a
	}
	return pl.heap
}
