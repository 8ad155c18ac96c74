package probe

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/code"
)

// ErrInside: a vCPU or a task of the guest runs code of the engine's, or a handler, of which no address of the guest's own and
// registers to it can be told. It will be out of there soon, if it runs. An *InsideError says who it is.
var ErrInside = errors.New("it is inside a probe's handlers")

// InsideError is an ErrInside.
type InsideError struct {
	CPU    int       // -1: a task that is switched out, or was interrupted there
	Addr   guest.GVA // of the probed instruction; 0: not known
	Place  string    // the same as symbol+0xoffset, or ""
	Probes []string  // the names of what is attached there
}

// Error says who is inside what.
func (e *InsideError) Error() string {
	who := "a task of the guest that does not run"
	if e.CPU >= 0 {
		who = fmt.Sprintf("vcpu %d", e.CPU)
	}
	what := "a probe"
	if e.Place != "" {
		what += " at " + e.Place
	}
	if len(e.Probes) > 0 {
		what += " (" + strings.Join(e.Probes, ", ") + ")"
	}
	return who + " is inside the handlers of " + what
}

// Is makes the error an ErrInside.
func (e *InsideError) Is(target error) bool { return target == ErrInside }

// Clean is a guest without what the engine has put there. It is valid while the world is stopped.
type Clean struct {
	Regs []Regs // of the vCPUs

	// Inside are the vCPUs and tasks of a guest that has ended of which the registers are those that handlers have used.
	Inside []*InsideError

	e      *Engine
	w      World
	ended  bool
	live   liveChange
	bounds [2]code.Range // of the engine's code
}

// liveChange says what Clean.Memory changes of memory that the guest itself has.
type liveChange uint8

const (
	changeCopy     liveChange = iota // it is a copy: all at once
	changeNothing                    // whether it could
	changeContexts                   // saved contexts
	changeReturns                    // return addresses
)

// Apart runs f with the world stopped, and with nothing of the engine's in the guest's text. All is put back after f, so that no
// hit is lost. Return addresses and saved contexts in memory that lead into the engine's code are as they are: see
// Clean.Memory. With ended the guest does not go on, and what has come to its end inside is in Clean.Inside.
// Errors are *InsideError, ErrInHandler, ErrClosed, those of the target and of f.
func (e *Engine) Apart(ended bool, f func(*Clean) error) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	var failed error // as it is: that of a stop says that the guest could not be changed
	if err := e.stop(func(w World) error {
		failed = e.runUnpatched(w, ended, f)
		return nil
	}); err != nil {
		return err
	}
	return failed
}

// runUnpatched is Apart with the world stopped.
func (e *Engine) runUnpatched(w World, ended bool, f func(*Clean) error) (err error) {
	clean := &Clean{Regs: make([]Regs, len(e.cpus)), e: e, w: w, ended: ended, bounds: e.code.Bounds()}
	for i := range e.cpus {
		r, ok := e.cpus[i].guestRegs(w.CPU(i))
		if clean.Regs[i] = r; ok {
			continue
		}
		if err := clean.noteInside(i, guest.GVA(w.CPU(i).Regs.RIP)); err != nil {
			return err
		}
	}
	if st := e.siteOfSleeper(w); st != nil {
		if err := clean.noteInside(-1, st.addr); err != nil {
			return err
		}
	}
	texts := e.removePatches(w)
	defer func() { // also where f panics
		for _, t := range texts {
			err = errors.Join(err, w.PatchText(t.addr, t.orig, t.ours))
		}
	}()
	return f(clean)
}

// noteInside notes that a vCPU or task is inside, or returns the error.
func (c *Clean) noteInside(cpu int, rip guest.GVA) error {
	err := c.e.insideError(cpu, rip)
	if !c.ended && c.live < changeContexts {
		return err
	}
	if len(c.Inside) < maxInsideNotes {
		c.Inside = append(c.Inside, err)
	}
	return nil
}

// maxInsideNotes bounds Clean.Inside.
const maxInsideNotes = 64

// insideError is about a context at an address.
func (e *Engine) insideError(cpu int, rip guest.GVA) *InsideError {
	err := &InsideError{CPU: cpu}
	if cpu >= 0 {
		if m := e.cpus[cpu].mirror; m != nil && m.site != nil {
			rip = m.site.addr
		}
	}
	if r := e.code.At(rip); r != nil {
		switch x := r.(type) {
		case *detour:
			err.Addr = x.site()
		case *instances:
			err.Addr = x.site
		case *slot:
			err.Addr = x.orig
		}
	} else if e.sites.Find(rip) != nil {
		err.Addr = rip
	}
	if err.Addr == 0 {
		return err
	}
	if s, ok := e.target.Symbols().Find(err.Addr); ok {
		err.Place = fmt.Sprintf("%s+%#x", s.Name, uint64(err.Addr-s.Addr))
	}
	if st := e.sites.Find(err.Addr); st != nil {
		for _, r := range *st.chain.Load() {
			if r.name != "" {
				err.Probes = append(err.Probes, r.name)
			}
		}
	}
	return err
}

// siteOfSleeper returns the site of a mirror that a task is in which no vCPU runs, or nil. One that was left in another way than by its
// end has what covers the return address no more.
func (e *Engine) siteOfSleeper(w World) *site {
	list := e.mirrors.Load()
	if list == nil {
		return nil
	}
	for i := range *list {
		m := &(*list)[i]
		if m.state.Load() == mirrorFree || m.site == nil || e.runsMirror(w, m) {
			continue
		}
		var b [8]byte
		if e.target.ReadMemory(guest.GPA(m.root.Load()), guest.GVA(m.sp.Load()), b[:]) == nil && le.Uint64(b[:]) == m.back.Load() {
			return m.site
		}
	}
	return nil
}

// runsMirror reports whether a vCPU is inside the mirror.
func (e *Engine) runsMirror(w World, m *mirror) bool {
	for i := range e.cpus {
		if c := &e.cpus[i]; c.mirror == m && c.inMirror(w.CPU(i)) {
			return true
		}
	}
	return false
}

// nearStack is how far from RSP the place of an activation may be whose return address is in a register, in bytes, where it is the guest's own text.
const nearStack = 64 << 10

// guestRegs returns the registers of a vCPU as they would be without the engine, and false where they cannot be told: then RIP alone is the
// guest's.
func (c *cpu) guestRegs(s State) (Regs, bool) {
	r := *s.Regs
	rip := guest.GVA(r.RIP)
	if c.depth != 0 || c.inMirror(s) || !c.undo(&r, s.Root, false) {
		r.RIP = uint64(c.Home(rip))
		return r, false
	}
	if c.step.active && c.InSlot(rip) {
		r.RFLAGS = r.RFLAGS&^(x86.FlagIF|x86.FlagTF) | c.step.flags
	}
	for n := x86.RAX; n <= x86.R15; n++ { // what code has read from its stack, or from a saved context
		p := r.Reg(n)
		if home, ok := c.guestWord(guest.GVA(*p)); ok {
			*p = uint64(home)
		} else if t, i := c.trampoline(guest.GVA(*p)); t != nil && t.word(i, instPlace).Load()-s.Regs.RSP+nearStack < 2*nearStack {
			*p = uint64(t.home(guest.GVA(*p)))
		}
	}
	return r, true
}

// patched is what stands in the text in place of the guest's own bytes.
type patched struct {
	addr       guest.GVA
	orig, ours []byte
}

// removePatches takes all bytes of the engine's out of the text. The world is stopped.
func (e *Engine) removePatches(w World) (texts []patched) {
	for _, st := range e.sortedSites() {
		if !st.armed.Load() || e.text.freed(st) {
			continue
		}
		t := patched{st.addr, slices.Clone(st.bytes()[:1]), []byte{x86.Int3}}
		if d := st.detour(); d != nil {
			j := d.jump()
			t.orig, t.ours = slices.Clone(d.orig[:]), j[:]
		}
		// What the guest has put over them is its own.
		if w.PatchText(t.addr, t.ours, t.orig) == nil {
			texts = append(texts, t)
		}
	}
	return texts
}
