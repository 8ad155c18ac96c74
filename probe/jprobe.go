package probe

import (
	"fmt"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
)

// Jprobe is a probe on a function's entry that looks at its arguments. Fill in
// where and what, then Engine.Register it; the embedded Kprobe stands for
// it everywhere else. Its Filter decides which calls are looked at; Pre, Post and
// Fault must be nil.
//
// Entry is a handler like any other. Mirror is the kernel's original form: a
// function of the guest with the same arguments runs first, then the probed
// one. One of them, or both, must be given.
type Jprobe struct {
	Kprobe

	// Entry runs at the function's entry with a view of the arguments, which it
	// may change.
	Entry func(*Context, Args)

	// Mirror names a function of the guest that runs at the probed function's
	// entry, with the same registers and stack, so that it can be declared with the
	// same arguments. It ends in a call of the function End, which its code must
	// come to somewhere, or in a return; then the probed function runs with all
	// general registers and RFLAGS as they were, and with the first StackSize bytes
	// of its stack. The return address that it finds is that of End.
	//
	// It runs with interrupts off, and like the kernel's must not sleep; probes
	// that it hits count as missed. XMM registers are not restored.
	Mirror string

	// End is the symbol of the function that mirrors end with; "" stands for
	// jprobe_return. It is never left: the engine takes over at its first
	// instruction.
	End string

	// StackSize is the size of the stack area from the return address upwards
	// that is restored after the mirror, in bytes: the arguments there are the
	// mirror's own, and it may overwrite them. 0 stands for DefaultJprobeStack;
	// it is rounded up to a multiple of 8, and what is behind the end of the stack's
	// memory does not count.
	StackSize int
}

// Sizes of the stack area that is restored after a mirror, in bytes.
const (
	DefaultJprobeStack = 64 // as in the kernel
	MaxJprobeStack     = 4096
)

// jprobe is what a registration of a jprobe has besides that of a kprobe.
type jprobe struct {
	probe  *Jprobe
	mirror guest.GVA // 0 = none
	ends   guest.GVA // the function that the mirror ends with
	stack  int
	end    *registration // where the mirror ends: hidden, registered with the jprobe
}

// registration implements Probe.
func (j *Jprobe) registration(e *Engine) *registration {
	if j == nil {
		return nil
	}
	r := j.Kprobe.registration(e)
	r.kind, r.check = kindJprobe, (*registration).checkJprobe
	r.jprobe = &jprobe{probe: j, stack: DefaultJprobeStack}
	if j.StackSize > 0 {
		r.jprobe.stack = (j.StackSize + 7) &^ 7
	}
	return r
}

// checkJprobe makes the checks of a jprobe, and finds its mirror.
func (r *registration) checkJprobe(p *places, at place) *Error {
	j := r.jprobe.probe
	switch {
	case !at.entry:
		return notEntryError(at)
	case j.Pre != nil || j.Post != nil || j.Fault != nil:
		return newError(CodeHandlers, "a jprobe has an entry handler and a mirror", "Pre, Post and Fault must be nil")
	case j.Entry == nil && j.Mirror == "":
		return newError(CodeHandlers, "a jprobe needs an entry handler or a mirror", "")
	case j.StackSize < 0 || j.StackSize > MaxJprobeStack:
		return newError(CodeDataSize, fmt.Sprintf("%d bytes of stack", j.StackSize), fmt.Sprintf("0 to %d", MaxJprobeStack))
	case j.Mirror == "":
		return nil
	}
	return r.jprobe.findMirror(p, at)
}

// findMirror resolves the mirror of a jprobe at at.
func (jp *jprobe) findMirror(p *places, at place) *Error {
	j := jp.probe
	if at.sym.User && p.oneSpace {
		return newError(CodeHostCannot, "this target cannot access the stack with the rights of user code", "")
	}
	for _, name := range []string{j.Mirror, j.endName()} {
		s, err := p.symbol("function", name)
		switch {
		case err != nil:
			err.Detail = "the mirror, and the function that it ends with, are the guest's"
			return err
		case !p.target.Symbols().IsText(s.Addr):
			return newError(CodeNotText, fmt.Sprintf("%s is not code", name), "")
		case s.User != at.sym.User:
			return newError(CodeNotText, fmt.Sprintf("%s is code of another privilege level than %s", name, at.sym.Name), "")
		case !s.Addr.Canonical():
			return newError(CodeHostCannot, fmt.Sprintf("%s is in a file, which each process has somewhere else", name), "")
		}
		if name == j.Mirror {
			jp.mirror = s.Addr
		} else {
			jp.ends = s.Addr
		}
	}
	return nil
}

// checkEnd checks that the mirror comes to its end.
func (jp *jprobe) checkEnd(p *places) *Error {
	if p.functions().reaches(jp.mirror, jp.ends) {
		return nil
	}
	return newError(CodeMirror, fmt.Sprintf("%s is no mirror: its code does not come to %s", jp.probe.Mirror, jp.probe.endName()),
		"a mirror ends in a call of that function; another one can be named")
}

// endName returns the symbol that the mirror of j ends with.
func (j *Jprobe) endName() string {
	if j.End == "" {
		return "jprobe_return"
	}
	return j.End
}

// endOf returns the hidden registration at the end of a jprobe's mirror.
func (e *Engine) endOf(j *jprobe) *registration {
	if e.mirrors.Load() == nil {
		e.noteStacks()
		list := make([]mirror, max(16, 4*len(e.cpus)))
		e.mirrors.Store(&list)
	}
	return &registration{tally: e.newTally(j.probe.Name), engine: e, kind: kindMirrorEnd, where: where{symbol: j.probe.endName()}}
}

// dropEnds notes that the hidden probes of regs, which are being removed, are
// to go as well.
func (e *Engine) dropEnds(regs []*registration) {
	for _, r := range regs {
		if r.jprobe != nil && r.jprobe.end != nil {
			e.ends = append(e.ends, r.jprobe.end)
			r.jprobe.end = nil
		}
	}
}

// ripeEnds returns the hidden probes that nobody needs any more. Where another
// jprobe's mirrors end at the same place there is one left. Otherwise, while a
// mirror is under way, they stay, because without its end it would run on into
// nothing. The world is stopped.
func (e *Engine) ripeEnds() []*registration {
	if len(e.ends) == 0 {
		return nil
	}
	going := map[*registration]bool{}
	for _, r := range e.ends {
		going[r] = true
	}
	mirroring := e.mirroring()
	var ripe, later []*registration
	for _, r := range e.ends {
		if mirroring && !slices.ContainsFunc(*r.site.chain.Load(), func(o *registration) bool { return o.kind == kindMirrorEnd && !going[o] }) {
			later = append(later, r)
		} else {
			ripe = append(ripe, r)
		}
	}
	e.ends = later
	return ripe
}

// endTries bounds how often awaitEnds looks; each time it waits twice as long,
// from 50 us on: 50 ms in all. Mirrors run with interrupts off, so they end
// soon, unless their vCPU is held.
const endTries = 10

// awaitEnds lets the mirrors that were under way when their jprobe was removed
// come to their end, so that the text there is what it was. What is left then
// goes with the next removal. Callers hold mu.
func (e *Engine) awaitEnds() error {
	for i := 0; i < endTries && len(e.ends) != 0; i++ {
		time.Sleep(50 * time.Microsecond << i)
		if err := e.remove(nil); err != nil {
			return err
		}
	}
	return nil
}
