package probe

import "github.com/guestprobe/guestprobe/guest"

// A guest may copy a stack or move it: coroutines, runtimes that grow stacks, fork, setjmp.
// The copy holds our return addresses, too, and has to return where the original does, at
// any time and any number of times. What makes that so:
//
// A trampoline that was on a stack leads to the same return address for as long as the guest
// may hold it. Its record is used again for calls that return to that address, and for any
// other when a look at all of the guest's memory has not found it (unbind). Until then such
// calls miss. Linux kernels copy no stacks: there a record is also used again when its last
// activation has returned from its place, and nothing else is known to hold the trampoline
// (reuseAny).
//
// An activation ends with the first return to its trampoline, wherever the stack is by then,
// and runs its return handler; later ones go on without.

// reuse says which free records a call may take. All may take unused ones.
type reuse uint8

const (
	reuseCall   reuse = iota // those last used for the same place and return address
	reuseReturn              // those last used for the same return address
	reuseAny                 // those, and all whose trampoline the guest is not known to hold
)

// reusable reports whether the free record i may be used for the activation o.
func (t *instances) reusable(i int, o origin, how reuse) bool {
	switch next := t.word(i, instNext).Load(); {
	case next == 0:
		return true
	case next == o.ret || uint64(t.core.resolveReturn(guest.GVA(next))) == o.ret:
		return how != reuseCall || t.word(i, instPlace).Load() == o.place && t.word(i, instRoot).Load() == o.root
	}
	return how == reuseAny && t.word(i, instHeld).Load()&heldElsewhere == 0
}

// setHeldBits notes bits of instHeld.
func (t *instances) setHeldBits(i int, bits uint64) {
	held := t.word(i, instHeld)
	held.Store(held.Load() | bits)
}

// noteMoved notes that the guest has returned to the trampoline of record i from elsewhere than
// its place: it copies stacks.
func (t *instances) noteMoved(i int) {
	t.setHeldBits(i, heldElsewhere)
	if moves := &t.core.moves[guest.Level(t.user)]; !moves.Load() {
		moves.Store(true)
	}
}

// strayed reports whether the vCPU, which is at the trampoline of record i, has returned from
// elsewhere than its place. Behind a ret imm16 RSP alone does not say, but what was popped is
// still there.
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

// adopt makes record i, which is live and whose trampoline is at RSP, and those that end with
// it, ones of that place.
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

// revive makes record i, whose state was state, leaving and the caller's, where its last
// activation was given up and turns out to have been under way: its stack was moved.
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

// unabandon takes one from the count of abandoned calls, and reports whether there was one: what
// is in memory that the guest shares may say so without.
func (rp *retprobe) unabandon() bool {
	for n := rp.abandoned.Load(); n != 0; n = rp.abandoned.Load() {
		if rp.abandoned.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// wanting reports whether a look at memory would help t: see unbind.
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

// sighting is what a look at all of the guest's memory has found of a table.
type sighting struct {
	tramps []bool // whose trampoline a word or a register holds
	code   bool   // something holds an address in what trampolines lead to, with a record's number
}

// noteAddr notes the address a in the code of t.
func (x *sighting) noteAddr(t *instances, a guest.GVA) {
	if i, ok := t.recordOf(a); ok {
		x.tramps[i] = true
	} else {
		x.code = true
	}
}

// unbind frees the records of t for any return address whose trampolines the guest does
// not hold, and ends the activations that nothing can return to. The world is stopped.
func (t *instances) unbind(x *sighting, referred func(guest.GVA) bool) {
	t.crowded.Store(false)
	if x.code {
		return
	}
	var buf [8]byte
	for i := range t.n {
		if x.tramps[i] || referred(t.tramp(i)) || t.word(i, instPlace).Load()%8 != 0 { // a look sees words at multiples of 8
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
