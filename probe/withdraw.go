package probe

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
)

// Memory is an optional interface of a World with access to all of the guest's
// memory, and all registers of its vCPUs.
type Memory interface {
	// Pieces calls f with each piece of the memory that the guest can write, except
	// AllocShared's; f may change it. More returns 8 bytes at an address, which may
	// be in another piece, or nil.
	Pieces(f func(pa guest.GPA, p []byte, more func(guest.GPA) []byte) error) error
	// Registers calls f with the bytes of each register of each vCPU that the guest's
	// code can keep an address in, except the general ones: x87, MMX, vector and mask
	// registers, FS.base and GS.base, CR2, debug registers and MSRs that are for
	// addresses. f may change them. ip says that it has the address of an
	// instruction, the last one of the x87 unit.
	Registers(f func(reg []byte, ip bool)) error
}

// Withdraw removes everything the engine has put into the guest: text is the guest's
// own again, and so are the return addresses on its stacks, whose calls count as
// abandoned. Registers of vCPUs and contexts in memory that were in the engine's code
// are moved to where they would be without it, the contexts in memory only if the
// World is a Memory. It is for a guest that saves its memory, to be restored where no
// engine handles the probes in it, or that gets such memory in place of its own. The
// probes are gone until a reset restores their code (Reload). gone is called with the
// world still stopped, when everything is out; from then on it is up to the target to
// have no text.
//
// If the registers of a vCPU or a task inside a probe's handlers cannot be
// determined, the error is an *InsideError, and nothing has changed: it will leave
// the handlers soon, if it runs. With anyway, everything else is removed, and that
// context stays where it is. Other errors are ErrInHandler, ErrClosed, any error of
// the target, and errors about text that was lost.
func (e *Engine) Withdraw(anyway bool, gone func()) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	var lost []error
	var inside error // returned as it is: an error of stop would say that the guest could not be changed
	err := e.stop(func(w World) error {
		if !anyway {
			if inside = e.leaveContexts(w, true); inside != nil {
				return nil
			}
		}
		e.abortMirrors(w)
		lost = append(lost, e.leaveContexts(w, false))
		sites := e.sortedSites()
		for _, st := range sites {
			for _, r := range *st.chain.Load() {
				r.enabled.Store(false)
			}
		}
		if _, err := e.text.updateArming(w, sites, &lost); err != nil {
			lost = append(lost, err)
		}
		var buf [8]byte
		for r := range e.code.Residents() {
			if t, ok := r.(*instances); ok {
				t.unhook(buf[:])
			}
		}
		for _, st := range sites {
			e.dropGoneSite(st)
		}
		gone()
		return nil
	})
	return errors.Join(append(lost, inside, err)...)
}

// leaveContexts makes all contexts of the guest its own. Contexts inside handlers
// stay as they are: the error lists all of them. If try is set, the error is about
// the first one, nothing is changed, and mirrors that vCPUs run do not count: they
// are ended before. The world is stopped.
func (g *registry) leaveContexts(w World, try bool) error {
	clean := &Clean{Regs: make([]Regs, len(g.cpus)), g: g, w: w, live: changeContexts, bounds: g.code.Bounds()}
	if try {
		clean.live = changeNothing
	}
	left := make([]bool, len(g.cpus))
	for i := range g.cpus {
		c, s := &g.cpus[i], w.CPU(i)
		if clean.Regs[i], left[i] = c.guestRegs(s); left[i] || try && c.depth == 0 && c.inMirror(s) {
			continue
		}
		if err := clean.noteInside(i, guest.GVA(s.Regs.RIP)); err != nil {
			return err
		}
	}
	if st := g.siteOfSleeper(w); st != nil {
		if err := clean.noteInside(-1, st.addr); err != nil {
			return err
		}
	}
	memory, ok := w.(Memory)
	if ok {
		if err := memory.Pieces(clean.Memory); err != nil {
			return err
		}
	}
	if try {
		return nil
	}
	if clean.live = changeReturns; ok { // needed to recognize contexts in the code of returns
		if err := errors.Join(memory.Pieces(clean.Memory), memory.Registers(clean.Register)); err != nil {
			return err
		}
	}
	for i := range g.cpus {
		if c := &g.cpus[i]; left[i] {
			*w.CPU(i).Regs = clean.Regs[i]
			if c.step.active && !c.step.inPlace {
				c.step = step{}
			}
		}
	}
	var inside []error
	for _, x := range clean.Inside {
		inside = append(inside, x)
	}
	return errors.Join(inside...)
}

// unhook restores the return addresses of all activations, which are over then. The
// world is stopped.
func (t *instances) unhook(buf []byte) {
	for i := range t.n {
		state := t.word(i, instState).Load()
		if state&phaseMask == phaseFree {
			continue
		}
		m, place := t.core.target, guest.GVA(t.word(i, instPlace).Load())
		if root, ok := t.spaceOf(i, 0); ok && m.ReadMemory(root, place, buf) == nil {
			word := guest.GVA(le.Uint64(buf))
			if ret := t.core.resolveReturn(word); ret != word {
				le.PutUint64(buf, uint64(ret))
				if err := m.WriteMemory(root, place, buf); err != nil {
					t.core.log.Warn("a return address cannot be put back", "place", place, "err", err)
				}
			}
		}
		t.abandon(i, state, 0)
	}
}
