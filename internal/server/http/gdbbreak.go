package http

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/server/gdb"
	"github.com/guestprobe/guestprobe/probe"
)

// breaking is a debugger's breakpoint or watchpoint. It is a probe of the
// engine's, in addition to any others at the same place.
//
// Debuggers remove all breakpoints at each stop and insert them again before
// they resume. Here they stay until the guest resumes; only then are the
// unwanted ones removed.
//
// A probe at the beginning of a function may be placed after an endbr64 or a
// call of the function tracer, where a debugger has nothing to look at. A vCPU
// that stops there is shown at the address that the debugger asked for.
type breaking struct {
	gdb.Breakpoint
	wanted bool
	probe  *probe.Kprobe // or
	watch  *probe.Watch
	passed map[uint64]int64 // code that a step led from Addr to the probe: its RSP, and the boot; guarded by hits.mu
}

// gdbHits are the hits, by vCPU, that the debugger has not seen yet.
//
// A hit is recorded before its vCPU stops, and another vCPU may stop the guest
// first. A hit of a vCPU that is not stopped yet is reported at the next stop. A
// vCPU's hits are removed when the vCPU resumes, whether the debugger or another
// client resumes it, and when their breakpoint is removed. Hits of an earlier
// boot are ignored.
type gdbHits struct {
	mu    sync.Mutex
	boots *atomic.Int64
	of    map[int][]gdbHit
}

// gdbHit is a hit of a breakpoint.
type gdbHit struct {
	b    *breaking
	boot int64
}

// add records a hit and reports whether the guest must stop for it. It need not
// if a step has led the same code past the breakpoint's address to its probe:
// the debugger has seen the breakpoint then. The code is recognized by its
// stack, because the vCPU may run something else first.
func (l *gdbHits) add(cpu int, rsp uint64, b *breaking) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := gdbHit{b, l.boots.Load()}
	boot, passed := b.passed[rsp]
	delete(b.passed, rsp)
	if passed && boot == h.boot {
		return false
	}
	// Of two breakpoints in one place, the vCPU reaches the lower address first.
	at := len(l.of[cpu])
	for at > 0 && l.of[cpu][at-1].b.probe != nil && b.probe != nil && l.of[cpu][at-1].b.Addr > b.Addr {
		at--
	}
	if !slices.Contains(l.of[cpu], h) {
		l.of[cpu] = slices.Insert(l.of[cpu], at, h)
	}
	return true
}

// take removes and returns the first hit of a vCPU that want accepts, or returns
// nil.
func (l *gdbHits) take(cpu int, want func(*breaking) bool) *breaking {
	l.mu.Lock()
	defer l.mu.Unlock()
	boot := l.boots.Load()
	l.of[cpu] = slices.DeleteFunc(l.of[cpu], func(h gdbHit) bool { return h.boot != boot })
	i := slices.IndexFunc(l.of[cpu], func(h gdbHit) bool { return want(h.b) })
	if i < 0 {
		return nil
	}
	b := l.of[cpu][i].b
	l.of[cpu] = slices.Delete(l.of[cpu], i, i+1)
	return b
}

// forget removes the hits of a vCPU, which has moved on.
func (l *gdbHits) forget(cpu int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, cpu)
}

// maxPassed bounds the memory for code that was stepped past a breakpoint and
// never reaches its probe.
const maxPassed = 64

// pass records that a step has led code with this stack from a breakpoint's
// address to its probe, which comes after it.
func (l *gdbHits) pass(rsp uint64, b *breaking) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(b.passed) >= maxPassed {
		clear(b.passed)
	}
	b.passed[rsp] = l.boots.Load()
}

// forgetPassed removes that record for code that the debugger has moved
// elsewhere.
func (l *gdbHits) forgetPassed(rsp uint64, breaks []*breaking) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range breaks {
		delete(b.passed, rsp)
	}
}

// remove removes the hits of a breakpoint.
func (l *gdbHits) remove(b *breaking) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for cpu := range l.of {
		l.of[cpu] = slices.DeleteFunc(l.of[cpu], func(h gdbHit) bool { return h.b == b })
	}
}

// hit runs on the vCPU's thread.
func (d *debugged) hit(b *breaking, c *probe.Context) {
	if d.hits.add(c.CPU, c.Regs.RSP, b) {
		d.g.StopAll(c)
		c.Stop()
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
	b := &breaking{Breakpoint: at, wanted: true, passed: map[uint64]int64{}}
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
		b.watch = &probe.Watch{Name: "gdb", Addr: guest.GVA(at.Addr), Len: int(min(at.Len, math.MaxInt32)), Access: access}
		b.watch.Handler = func(c *probe.Context) { d.hit(b, c) }
		// By a debug register; if none is available, by the page's protection.
		if refused := d.g.Engine().Watch(b.watch); refused != nil {
			b.watch.Emulate = true
			if err = d.g.Engine().Watch(b.watch); err != nil && err.Error() != refused.Error() {
				err = errors.Join(refused, err)
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

// settle removes the breakpoints that the debugger has removed.
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
		d.hits.remove(b)
		return true
	})
	return err
}

// clear removes all.
func (d *debugged) clear() error {
	for _, b := range d.breaks {
		b.wanted = false
	}
	return d.settle()
}
