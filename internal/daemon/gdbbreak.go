package daemon

import (
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/gdb"
	"github.com/guestprobe/guestprobe/probe"
)

// breaking is a debugger's breakpoint or watchpoint: a probe of the engine's, beside those of
// others at the same place, if there are any.
//
// Debuggers take all of them out at each stop, and put them back to go on. Here they stay until
// the guest goes on without them: what is not wanted any more is taken out then.
//
// A probe at the beginning of a function may be behind an endbr64 or a call of the function tracer,
// which have nothing that a debugger would look at. A vCPU that stops there is shown to be where
// the debugger wanted it.
type breaking struct {
	gdb.Breakpoint
	wanted bool
	probe  *probe.Kprobe // or
	watch  *probe.Watch
}

// gdbHit is a hit of one.
type gdbHit struct {
	b   *breaking
	cpu int
}

// maxHits is how many hits may wait for the debugger: one of each vCPU, and then it stands.
const maxHits = guest.MaxVCPUs

// hit runs on the vCPU's thread.
func (d *debugged) hit(b *breaking, c *probe.Context) {
	d.g.StopAll(c)
	c.Stop()
	select {
	case d.hits <- gdbHit{b, c.CPU}:
	default: // a hit of this vCPU is there that nobody was told of
	}
}

// Insert implements gdb.Target.
func (d *debugged) Insert(at gdb.Breakpoint) error {
	if at.Kind <= gdb.Hardware {
		at.Len = 0
	}
	if i := d.find(at); i >= 0 {
		d.breaks[i].wanted = true
		return nil
	}
	b := &breaking{Breakpoint: at, wanted: true}
	var err error
	switch at.Kind {
	case gdb.Software, gdb.Hardware:
		b.probe = &probe.Kprobe{Name: "gdb", Addr: guest.GVA(at.Addr)}
		b.probe.Pre = func(c *probe.Context) int { d.hit(b, c); return 0 }
		err = d.g.Engine().Register(b.probe)
	case gdb.WatchWrite, gdb.WatchAccess:
		access := probe.AccessWrite
		if at.Kind == gdb.WatchAccess {
			access |= probe.AccessRead
		}
		b.watch = &probe.Watch{Name: "gdb", Addr: guest.GVA(at.Addr), Len: int(min(at.Len, 16)), Access: access}
		b.watch.Handler = func(c *probe.Context) { d.hit(b, c) }
		// By a debug register, or where that is not to be had by the page's protection.
		if err = d.g.Engine().Watch(b.watch); err != nil {
			b.watch.Emulate = true
			if err2 := d.g.Engine().Watch(b.watch); err2 != nil {
				err = errors.Join(err, err2)
			} else {
				err = nil
			}
		}
	default:
		return fmt.Errorf("reads alone cannot be watched, which x86 has no means for: use awatch: %w", gdb.ErrUnsupported)
	}
	if err != nil {
		return err
	}
	d.breaks = append(d.breaks, b)
	return nil
}

// Remove implements gdb.Target.
func (d *debugged) Remove(at gdb.Breakpoint) error {
	if at.Kind <= gdb.Hardware {
		at.Len = 0
	}
	if i := d.find(at); i >= 0 {
		d.breaks[i].wanted = false
	}
	return nil
}

func (d *debugged) find(at gdb.Breakpoint) int {
	return slices.IndexFunc(d.breaks, func(b *breaking) bool { return b.Breakpoint == at })
}

// settle takes out what is not wanted.
func (d *debugged) settle() error {
	var err error
	d.breaks = slices.DeleteFunc(d.breaks, func(b *breaking) bool {
		if b.wanted {
			return false
		}
		e := d.g.Engine()
		if b.watch != nil {
			err = errors.Join(err, e.Unwatch(b.watch))
		} else {
			err = errors.Join(err, e.Unregister(b.probe))
		}
		return true
	})
	return err
}

// clear takes out all.
func (d *debugged) clear() error {
	for _, b := range d.breaks {
		b.wanted = false
	}
	return d.settle()
}
