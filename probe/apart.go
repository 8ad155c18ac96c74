package probe

import (
	"errors"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// ErrInside: a vCPU runs code of the engine's, or a handler, of which no address of the guest's own and
// registers to it can be told. It will be out of there soon, if it runs.
var ErrInside = errors.New("a vCPU is inside a probe's handlers")

// Apart runs f with the world stopped, and with nothing of the engine's in the guest's text. regs are the registers of
// the vCPUs as they would be without the engine. All is put back behind f, so that no hit is lost. Return addresses and
// saved contexts that lead into the engine's code are as they are: Home knows what those stand for. With ended the guest
// does not go on, and a vCPU that has come to its end inside has the registers that it has, at the address that its place stands for.
// Errors are ErrInside, ErrInHandler, ErrClosed, those of the target and of f.
func (e *Engine) Apart(ended bool, f func(regs []Regs) error) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	var failed error // as it is: that of a stop says that the guest could not be changed
	if err := e.stop(func(w World) error {
		failed = e.apart(w, ended, f)
		return nil
	}); err != nil {
		return err
	}
	return failed
}

// apart is Apart with the world stopped.
func (e *Engine) apart(w World, ended bool, f func(regs []Regs) error) (err error) {
	regs := make([]Regs, len(e.cpus))
	for i := range e.cpus {
		if regs[i], err = e.cpus[i].own(w.CPU(i)); err != nil && !ended {
			return err
		}
	}
	if list := e.mirrors.Load(); list != nil && !ended {
		for i := range *list {
			if (*list)[i].state.Load() != mirrorFree {
				return ErrInside
			}
		}
	}
	texts := e.lift(w)
	defer func() { // also where f panics
		for _, t := range texts {
			err = errors.Join(err, w.PatchText(t.addr, t.orig, t.ours))
		}
	}()
	return f(regs)
}

// own returns the registers of a vCPU as they would be without the engine.
func (c *cpu) own(s State) (Regs, error) {
	r := *s.Regs
	rip := guest.GVA(r.RIP)
	r.RIP = uint64(c.Home(rip))
	if c.depth != 0 || c.mirror != nil {
		return r, ErrInside
	}
	switch t := c.code.At(rip).(type) {
	case *detour:
		if rip != t.entry && rip != t.addr && rip != t.copies[0] && !t.whole(rip) {
			return r, ErrInside
		}
	case *instances:
		if _, ok := t.recordAt(rip); !ok {
			return r, ErrInside
		}
	}
	if c.step.active && c.InSlot(rip) {
		r.RFLAGS = r.RFLAGS&^(insn.FlagIF|insn.FlagTF) | c.step.flags
	}
	return r, nil
}

// patched is what stands in the text in place of the guest's own bytes.
type patched struct {
	addr       guest.GVA
	orig, ours []byte
}

// lift takes all bytes of the engine's out of the text. The world is stopped.
func (e *Engine) lift(w World) (texts []patched) {
	for _, st := range e.sortedSites() {
		if !st.armed.Load() || e.text.freed(st) {
			continue
		}
		t := patched{st.addr, slices.Clone(st.bytes()[:1]), []byte{insn.Int3}}
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
