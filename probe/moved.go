package probe

import "github.com/guestprobe/guestprobe/guest"

// A guest may copy a stack or move it: coroutines, runtimes that grow stacks, fork,
// setjmp. The copy holds our return addresses too, and has to return where the
// original does, at any time and any number of times. This works as follows:
//
// A trampoline that was on a stack leads to the same return address for as long as
// the guest may hold it. Its record is reused for calls that return to that address,
// and for any other call once a scan of all of the guest's memory has not found it
// (unbind). Until then such calls miss. Linux kernels copy no stacks: there a record
// is also reused when its last activation has returned from its place, and nothing
// else is known to hold the trampoline (reuseAny).
//
// An activation ends with the first return to its trampoline, wherever the stack is
// by then, and runs its return handler; later returns resume without one.

// setHeldBits notes bits of instHeld.
func (t *instances) setHeldBits(i int, bits uint64) {
	held := t.word(i, instHeld)
	held.Store(held.Load() | bits)
}

// noteMoved records that the guest has returned to the trampoline of record i from
// elsewhere than its place: it copies stacks.
func (t *instances) noteMoved(i int) {
	t.setHeldBits(i, heldElsewhere)
	if moves := &t.core.moves[guest.Level(t.user)]; !moves.Load() {
		moves.Store(true)
	}
}

// strayed reports whether the vCPU, which is at the trampoline of record i, has
// returned from elsewhere than its place. After a ret imm16 RSP alone does not tell,
// but the popped words are still there.
func (c *cpu) strayed(s State, t *instances, i int) bool {
	switch popped := s.Regs.RSP - 8 - t.word(i, instPlace).Load(); {
	case popped == 0:
		return false
	case popped > maxPopped:
		return true
	}
	w, ok := c.readWord(s, s.Regs.RSP-8)
	return ok && w == t.tramp(i)
}

// adopt moves record i, which is live and whose trampoline is at RSP, and the records
// that end with it, to that place.
func (c *cpu) adopt(s State, t *instances, i int) bool {
	place := t.word(i, instPlace).Load()
	if place == s.Regs.RSP {
		return true
	}
	if t.lent != nil {
		return false
	}
	for range maxHops {
		t.noteMoved(i)
		t.word(i, instPlace).Store(s.Regs.RSP)
		if t, i = c.trampoline(guest.GVA(t.word(i, instNext).Load())); t == nil {
			break
		}
		if t.word(i, instState).Load()&phaseMask != phaseLive || t.word(i, instPlace).Load() != place {
			break
		}
	}
	return true
}

// revive makes record i, whose state was state, leaving and the caller's, if its last
// activation was abandoned and turns out to have been under way: its stack was moved.
func (t *instances) revive(i int, s State, state uint64) bool {
	held := t.word(i, instHeld)
	h := held.Load()
	switch {
	case h&heldOpen == 0, h&^heldBits != state, state&phaseMask != phaseFree:
		return false
	case t.dead.Load(), t.user != (s.CPL == 3), !t.inSpace(i, s), !t.rp.unabandon():
		return false
	case !t.word(i, instState).CompareAndSwap(state, state+phaseLeaving):
		t.rp.abandoned.Add(1)
		return false
	}
	held.Store(h&^heldOpen | heldElsewhere)
	t.words[wordUsed].Add(1)
	return true
}

// unabandon subtracts one from the count of abandoned calls, and reports whether
// there was one: memory that the guest shares may claim one that never was.
func (rp *retprobe) unabandon() bool {
	for n := rp.abandoned.Load(); n != 0; n = rp.abandoned.Load() {
		if rp.abandoned.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// wanting reports whether a memory scan would help t: see unbind.
func (t *instances) wanting() bool {
	if t.left || t.lent != nil {
		return false
	}
	if t.crowded.Load() {
		return true
	}
	if !t.core.moves[guest.Level(t.user)].Load() {
		return false
	}
	var buf [8]byte
	for i := range t.n {
		if state := t.word(i, instState).Load(); state&phaseMask == phaseLive && t.fate(i, state, 0, buf[:]) == fateElsewhere {
			return true
		}
	}
	return false
}

// sighting is the result of a scan of all of the guest's memory for a table.
type sighting struct {
	tramps []bool // trampolines whose address a word or a register holds
	code   bool   // something holds an address in the code after the trampolines, with a record's number
}

// noteAddr records the address a in the code of t.
func (x *sighting) noteAddr(t *instances, a guest.GVA) {
	if i, ok := t.recordOf(a); ok {
		x.tramps[i] = true
	} else {
		x.code = true
	}
}

// unbind makes the records of t whose trampolines the guest does not hold usable for
// any return address, and ends the activations that nothing can return to. The world
// is stopped.
func (t *instances) unbind(x *sighting, referred func(guest.GVA) bool) {
	t.crowded.Store(false)
	if x.code {
		return
	}
	var buf [8]byte
	for i := range t.n {
		if x.tramps[i] || referred(t.tramp(i)) || t.word(i, instPlace).Load()%8 != 0 { // a scan sees words at multiples of 8
			continue
		}
		state := t.word(i, instState).Load()
		if state&phaseMask == phaseLive && t.fate(i, state, 0, buf[:]) == fateElsewhere {
			t.abandon(i, state, 0)
			state = t.word(i, instState).Load()
		}
		if state&phaseMask == phaseFree {
			t.setNext(i, 0)
			t.word(i, instHeld).Store(0)
		}
	}
}
