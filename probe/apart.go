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

// ErrInside: a vCPU or a task of the guest is inside the engine's code or a handler,
// at a point where its guest address and registers cannot be determined. It will
// leave that code soon, if it runs. An *InsideError names the vCPU or task.
var ErrInside = errors.New("it is inside a probe's handlers")

// InsideError is an ErrInside.
type InsideError struct {
	CPU    int       // -1: a task that is scheduled out, or was interrupted there
	Addr   guest.GVA // of the probed instruction; 0: not known
	Place  string    // the same as symbol+0xoffset, or ""
	Probes []string  // the names of the probes there
}

// Error names the vCPU or task and the probe it is inside.
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

// Clean is a guest without the engine's bytes and addresses. It is valid while the
// world is stopped.
type Clean struct {
	Regs []Regs // of the vCPUs

	// Traced says of each vCPU that the TrapOfTF of the guest's last instruction is
	// still to come. Untraced says that a pending TrapOfTF was caused by an
	// instruction of the engine's.
	Traced, Untraced []bool

	// Inside are the vCPUs and tasks of a guest that has ended whose registers are
	// still those used by handlers.
	Inside []*InsideError

	g      *registry
	w      World
	ended  bool
	live   liveChange
	bounds [2]code.Range // of the engine's code
}

// liveChange says what Clean.Memory changes in the guest's own memory, as opposed to
// a copy.
type liveChange uint8

const (
	changeCopy     liveChange = iota // it is a copy: change everything
	changeNothing                    // only check whether it could
	changeContexts                   // saved contexts
	changeReturns                    // return addresses
)

// RunUnpatched runs f with the world stopped and all the engine's bytes removed from
// the guest's text. It puts them back after f, so no hit is lost. It does not touch
// return addresses and saved contexts in memory that lead into the engine's code: see
// Clean.Memory. If ended is set, the guest does not resume, and Clean.Inside lists
// the contexts that were inside handlers. Errors are *InsideError, ErrInHandler,
// ErrClosed, and any error of the target or of f.
func (e *Engine) RunUnpatched(ended bool, f func(*Clean) error) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	var failed error // returned as it is: an error of stop would say that the guest could not be changed
	if err := e.stop(func(w World) error {
		failed = e.runUnpatched(w, ended, f)
		return nil
	}); err != nil {
		return err
	}
	return failed
}

// runUnpatched is RunUnpatched with the world stopped.
func (g *registry) runUnpatched(w World, ended bool, f func(*Clean) error) (err error) {
	n := len(g.cpus)
	clean := &Clean{Regs: make([]Regs, n), Traced: make([]bool, n), Untraced: make([]bool, n), g: g, w: w, ended: ended, bounds: g.code.Bounds()}
	for i := range g.cpus {
		r, ok := g.cpus[i].guestRegs(w.CPU(i))
		clean.Traced[i], clean.Untraced[i] = g.cpus[i].traceFlags(w.CPU(i), r.RFLAGS&x86.FlagTF != 0)
		if clean.Regs[i] = r; ok {
			continue
		}
		if err := clean.noteInside(i, guest.GVA(w.CPU(i).Regs.RIP)); err != nil {
			return err
		}
	}
	if st := g.siteOfSleeper(w); st != nil {
		if err := clean.noteInside(-1, st.addr); err != nil {
			return err
		}
	}
	texts := g.removePatches(w)
	defer func() { // also where f panics
		for _, t := range texts {
			err = errors.Join(err, w.PatchText(t.addr, t.orig, t.ours))
		}
	}()
	return f(clean)
}

// noteInside records that a vCPU or task is inside, or returns the error.
func (c *Clean) noteInside(cpu int, rip guest.GVA) error {
	err := c.g.insideError(cpu, rip)
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

// insideError returns the error for a context at an address.
func (g *registry) insideError(cpu int, rip guest.GVA) *InsideError {
	err := &InsideError{CPU: cpu}
	if cpu >= 0 {
		if m := g.cpus[cpu].mirror; m != nil && m.site != nil {
			rip = m.site.addr
		}
	}
	if r := g.code.ResidentAt(rip); r != nil {
		switch x := r.(type) {
		case *detour:
			err.Addr = x.site()
		case *instances:
			err.Addr = x.site
		case *slot:
			err.Addr = x.orig
		}
	} else if g.sites.Find(rip) != nil {
		err.Addr = rip
	}
	if err.Addr == 0 {
		return err
	}
	if s, ok := g.target.Symbols().Find(err.Addr); ok {
		err.Place = fmt.Sprintf("%s+%#x", s.Name, uint64(err.Addr-s.Addr))
	}
	if st := g.sites.Find(err.Addr); st != nil {
		for _, r := range *st.chain.Load() {
			if r.name != "" {
				err.Probes = append(err.Probes, r.name)
			}
		}
	}
	return err
}

// siteOfSleeper returns the site of a mirror that a scheduled-out task is in, or nil.
// A mirror that was left otherwise than by its end no longer has the word that covers
// the return address.
func (g *registry) siteOfSleeper(w World) *site {
	list := g.mirrors.Load()
	if list == nil {
		return nil
	}
	for i := range *list {
		m := &(*list)[i]
		if m.state.Load() == mirrorFree || m.site == nil || g.runsMirror(w, m) {
			continue
		}
		var b [8]byte
		if g.target.ReadMemory(guest.GPA(m.root.Load()), guest.GVA(m.sp.Load()), b[:]) == nil && le.Uint64(b[:]) == m.back.Load() {
			return m.site
		}
	}
	return nil
}

// runsMirror reports whether a vCPU is inside the mirror.
func (g *registry) runsMirror(w World, m *mirror) bool {
	for i := range g.cpus {
		if c := &g.cpus[i]; c.mirror == m && c.inMirror(w.CPU(i)) {
			return true
		}
	}
	return false
}

// nearStack is how far from RSP the place of an activation may be whose return address is in a register, in bytes, where it is the guest's own text.
const nearStack = 64 << 10

// guestRegs returns the registers that a vCPU would have without the engine. It
// returns false if they cannot be determined; then only RIP is the guest's.
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
	for n := x86.RAX; n <= x86.R15; n++ { // values that code has read from its stack, or from a saved context
		p := r.Reg(n)
		if home, ok := c.guestWord(guest.GVA(*p)); ok {
			*p = uint64(home)
		} else if t, i := c.trampoline(guest.GVA(*p)); t != nil && t.word(i, instPlace).Load()-s.Regs.RSP+nearStack < 2*nearStack {
			*p = uint64(t.home(guest.GVA(*p)))
		}
	}
	return r, true
}

// traceFlags returns Clean.Traced and Clean.Untraced of the vCPU; tf is the TF of its guest. A step in a slot clears TF, and the trap is raised when that
// step ends, after the copy. Guest code for returns is not traced: the trap of the return instruction comes with the first instruction after
// that code. In a detour only the copies are traced.
func (c *cpu) traceFlags(s State, tf bool) (traced, untraced bool) {
	rip := guest.GVA(s.Regs.RIP)
	if sl := c.step.slot; c.step.active && !c.step.inPlace && sl != nil && rip == sl.end() {
		return c.step.flags&x86.FlagTF != 0, false
	}
	switch r := c.code.ResidentAt(rip).(type) {
	case *instances:
		return tf && r.shared(), false
	case *detour:
		return false, !r.instCompleted(rip)
	}
	return false, false
}

// patched records the engine's bytes that replace the guest's own at an address.
type patched struct {
	addr       guest.GVA
	orig, ours []byte
}

// removePatches removes all bytes of the engine's from the text. The world is
// stopped.
func (g *registry) removePatches(w World) (texts []patched) {
	for _, st := range g.sortedSites() {
		if !st.armed.Load() || g.text.freed(st) {
			continue
		}
		t := patched{st.addr, slices.Clone(st.bytes()[:1]), []byte{x86.Int3}}
		if d := st.detour(); d != nil {
			j := d.jump()
			t.orig, t.ours = slices.Clone(d.orig[:]), j[:]
		}
		// If the guest has overwritten them, those bytes are its own.
		if w.PatchText(t.addr, t.ours, t.orig) == nil {
			texts = append(texts, t)
		}
	}
	return texts
}
