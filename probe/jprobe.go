package probe

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Jprobe is a probe on a function's entry that looks at its arguments. Fill in the
// place and the handlers, then Engine.Register it; everywhere else pass the embedded
// Kprobe. Its Filter decides which calls are looked at; Pre, Post and Fault must be
// nil.
//
// Entry is a handler like any other. Mirror is the kernel's original form: a function
// of the guest with the same arguments runs first, then the probed one. One of them,
// or both, must be given.
type Jprobe struct {
	Kprobe

	// Entry runs at the function's entry with a view of the arguments, which it
	// may change.
	Entry func(*Context, Args)

	// Mirror names a function of the guest that runs at the probed function's entry,
	// with the same registers and stack, so that it can be declared with the same
	// arguments. It must somewhere call the function End, or return; then the probed
	// function runs with all general registers and RFLAGS as they were, and with the
	// first StackSize bytes of its stack. Its return address is End.
	//
	// It runs with interrupts off, and like the kernel's must not sleep; probes
	// that it hits count as missed. XMM registers are not restored.
	Mirror string

	// End is the symbol of the function that mirrors end with; "" means
	// jprobe_return. It is never left: the engine takes over at its first
	// instruction.
	End string

	// StackSize is the size of the stack area from the return address upwards that is
	// restored after the mirror, in bytes: the arguments there are the mirror's own,
	// and it may overwrite them. 0 means DefaultJprobeStack; it is rounded up to a
	// multiple of 8, and bytes past the end of the stack's memory are ignored.
	StackSize int
}

// Sizes of the stack area that is restored after a mirror, in bytes.
const (
	DefaultJprobeStack = 64 // as in the kernel
	MaxJprobeStack     = 4096
)

// jprobe is the kind of jprobes, with the data that kprobes do not have.
type jprobe struct {
	ordinary

	probe  *Jprobe
	entry  guest.GVA // 0 = none
	ends   guest.GVA // the function that the mirror ends with
	stack  int
	ending *registration // where the mirror ends: hidden, registered with the jprobe
}

// registration implements Probe.
func (j *Jprobe) registration(g *registry) *registration {
	if j == nil {
		return nil
	}
	r := j.Kprobe.registration(g)
	jp := &jprobe{probe: j, stack: DefaultJprobeStack}
	if j.StackSize > 0 {
		jp.stack = (j.StackSize + 7) &^ 7
	}
	r.kind = jp
	return r
}

// traits implements kind.
func (jp *jprobe) traits() traits { return listed | counted }

// describe implements kind.
func (jp *jprobe) describe(i *Info) { i.Type = 'j' }

// guestStage implements kind: the handlers of a jprobe run on the host.
func (jp *jprobe) guestStage(*registration) (s *Stage, last bool) { return nil, false }

// check implements kind, and finds the mirror.
func (jp *jprobe) check(_ *registration, p *places, at place) *Error {
	j := jp.probe
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
	return jp.findMirror(p, at)
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
			jp.entry = s.Addr
		} else {
			jp.ends = s.Addr
		}
	}
	return nil
}

// checkEnd checks that the mirror ends.
func (jp *jprobe) checkEnd(p *places) *Error {
	if p.functions().reaches(jp.entry, jp.ends) {
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
