package program

import (
	"errors"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// walks reports whether the program walks stacks.
func walks(p *bpf.Program) bool {
	return slices.ContainsFunc(p.Helpers(), func(h bpf.Helper) bool { return h == bpf.HelperGetStack || h == bpf.HelperGetStackID })
}

// stacksOf returns how stacks are walked in the guest, for a program of code of that
// privilege: by frame pointers, with ch; or, if ch is nil, by the engine before the
// program runs. The error says why they are not.
func (rt *Runtime) stacksOf(p *bpf.Program, user bool) (ch *probe.Chain, err error) {
	e := rt.cfg.Engine
	ch, err = e.Chain()
	if err == nil || user || e.CanWalk() != nil {
		return ch, err
	}
	if p.Kind().AtReturn() {
		return nil, errAtReturn
	}
	return nil, nil
}

var errAtReturn = errors.New("at returns only the host walks the stacks of this kernel")

// frames converts a Chain for compiled code of that privilege.
func frames(ch *probe.Chain, user bool) *bpf.Frames {
	f := &bpf.Frames{User: user, Longest: guest.MaxFrame}
	f.Trampolines.Magic, f.Trampolines.Jump, f.Trampolines.Size = probe.Trampolines()
	for _, r := range slices.Concat(ch.Text[guest.Level(user)], ch.Text[guest.Level(!user)]) {
		f.Text = append(f.Text, bpf.Range{Start: uint64(r.Start), End: uint64(r.End)})
	}
	if own := ch.Text[guest.Level(user)]; len(own) > 0 {
		f.Trampolines.Near = bpf.Range{Start: uint64(own[len(own)-1].End) - 1<<31, End: uint64(own[0].Start) + 1<<31}
	}
	for _, x := range []struct {
		to   *[]bpf.FrameAt
		from []probe.FrameAt
	}{{&f.Calls, ch.Calls}, {&f.Returns, ch.Returns}} {
		for i := range x.from {
			*x.to = append(*x.to, frameAt(&x.from[i]))
		}
	}
	return f
}

func frameAt(f *probe.FrameAt) bpf.FrameAt {
	return bpf.FrameAt{PC: uint64(f.PC), FrameRule: bpf.FrameRule{FromRBP: f.Base == guest.FrameRBP, CFA: f.CFA, RBP: f.RBP, Outer: f.Outer}}
}

// frame returns the rule of the code that a program at addr interrupts, if it is the
// same each time, and nil if the program does not need it.
func (rt *Runtime) frame(p *bpf.Program, ch *probe.Chain, addr guest.GVA) (*bpf.FrameAt, error) {
	if ch == nil {
		return nil, nil
	}
	at, err := rt.cfg.Engine.Frame(ch, addr)
	if err != nil && !p.Kind().AtReturn() {
		return nil, err
	}
	f := frameAt(&at)
	return &f, nil
}
