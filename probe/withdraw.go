package probe

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
)

// Memory is what a World adds that has all of the guest's memory, and all registers of its vCPUs, at hand.
type Memory interface {
	// Pieces calls f with each piece of what the guest can write, other than AllocShared's, which f may change. More returns 8 bytes at an
	// address, which may be in another piece, or nil.
	Pieces(f func(pa guest.GPA, p []byte, more func(guest.GPA) []byte) error) error
	// Registers calls f with the bytes of each register of each vCPU that the guest's code can keep an address in, but for the general ones:
	// x87, MMX, vector and mask registers, FS.base and GS.base, CR2, debug registers and MSRs that are for addresses. f may change them. Ip says that it has the
	// address of an instruction, the last one of the x87 unit.
	Registers(f func(reg []byte, ip bool)) error
}

// Withdraw takes out of the guest what the engine has put there: text is the guest's own
// again, and so are the return addresses on its stacks, whose calls count as abandoned. Registers of vCPUs and contexts in memory that
// were in the engine's code are where they would be without it, those in memory if the World is a Memory. It is for a
// guest that puts its memory aside, to be there again where no engine serves what is in it, or that
// gets such memory in place of its own. The probes are gone until a reset brings their code back
// (Reload). gone is called with the world still stopped, when everything is out; it is the target's
// to have no text from then on.
//
// Where the registers of a vCPU or a task that is inside a probe's handlers cannot be told, the error is an *InsideError, and
// nothing has happened: it will be out of there soon, if it runs. With anyway all else is taken out, and it stays where it is. Other
// errors are ErrInHandler, ErrClosed, those of the target, and about text that was lost.
func (e *Engine) Withdraw(anyway bool, gone func()) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	var lost []error
	var inside error // as it is: that of a stop says that the guest could not be changed
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

// leaveContexts makes all contexts of the guest its own. What is inside handlers stays as it is: the error is about all of it. With try it
// is about the first, nothing is changed, and mirrors that vCPUs run do not count: they are ended before. The world is stopped.
func (e *Engine) leaveContexts(w World, try bool) error {
	clean := &Clean{Regs: make([]Regs, len(e.cpus)), e: e, w: w, live: changeContexts, bounds: e.code.Bounds()}
	if try {
		clean.live = changeNothing
	}
	left := make([]bool, len(e.cpus))
	for i := range e.cpus {
		c, s := &e.cpus[i], w.CPU(i)
		if clean.Regs[i], left[i] = c.guestRegs(s); left[i] || try && c.depth == 0 && c.inMirror(s) {
			continue
		}
		if err := clean.noteInside(i, guest.GVA(s.Regs.RIP)); err != nil {
			return err
		}
	}
	if st := e.siteOfSleeper(w); st != nil {
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
	if clean.live = changeReturns; ok { // contexts in the code of returns are told by them
		if err := errors.Join(memory.Pieces(clean.Memory), memory.Registers(clean.Register)); err != nil {
			return err
		}
	}
	for i := range e.cpus {
		if c := &e.cpus[i]; left[i] {
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

// unhook puts the return addresses of all activations back, which are over then. The world
// is stopped.
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
