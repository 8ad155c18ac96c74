package probe

import "github.com/guestprobe/guestprobe/guest"

// maxChain bounds the trampolines that are followed; maxHops bounds the followed ones
// in memory that the guest shares, because it could contain a cycle.
const (
	maxChain = 1 << 16
	maxHops  = 1 << 8
)

// resolveReturn returns the final target of a return to a, through all activations on
// the same place of the stack.
func (k *core) resolveReturn(a guest.GVA) guest.GVA {
	for range maxHops {
		t, i := k.trampoline(a)
		if t == nil {
			break
		}
		next := t.word(i, instNext).Load()
		if next == 0 {
			break
		}
		a = guest.GVA(next)
	}
	return a
}

// leadsTo reports whether a return to word reaches the trampoline at want: it is that
// trampoline, or belongs to activations that end before it on the same place of the
// stack. It also returns true for a chain that is too long to follow.
func (k *core) leadsTo(word, want guest.GVA) bool {
	hops := 0
	for range maxChain {
		if word == want {
			return true
		}
		t, i := k.trampoline(word)
		if t == nil {
			return false
		}
		if t.shared() {
			if hops++; hops > maxHops {
				return true
			}
		}
		word = guest.GVA(t.word(i, instNext).Load())
	}
	return true
}

// taskOf returns the number + 1 of the task that the vCPU runs, and where its
// structure is; 0 if that cannot be determined.
func (c *cpu) taskOf(s State, prof *guest.Profile) (int64, guest.GVA) {
	if prof == nil || !c.readTask(prof, &c.task, s) {
		return 0, 0
	}
	return int64(c.task.PID) + 1, c.task.At
}

// ownerGone reports whether task, which has or had an activation of record i, is known
// to be gone (guest.Profile.Gone). buf has room for a word.
func (t *instances) ownerGone(i int, task int64, root guest.GPA, buf []byte) bool {
	if task <= 0 || t.tasks == nil {
		return false
	}
	if t.tasks.GS {
		root = 0 // under page-table isolation the tables of CPL3 lack it
	}
	return t.tasks.Gone(t.word(i, instPlace).Load(), guest.GVA(t.word(i, instOwner).Load()), uint32(task-1), buf,
		func(addr guest.GVA, p []byte) error { return t.core.target.ReadMemory(root, addr, p) })
}

// spaceOf returns the page tables to read the stack of record i by, and whether they
// are known. root is the address space at hand, or 0.
func (t *instances) spaceOf(i int, root guest.GPA) (guest.GPA, bool) {
	if !t.user && int64(t.word(i, instPlace).Load()) < 0 {
		return root, true
	}
	// An address space's lower half is its own; a kernel whose stacks are there may
	// have switched to another one since.
	own := guest.GPA(t.word(i, instRoot).Load())
	return own, own == 0 || t.user || root == 0 || root == own
}

// fate is the state, as far as known, of an activation under way.
type fate uint8

const (
	fateLive      fate = iota // it may return
	fateOpen                  // it may return, as far as can be determined while the guest runs
	fateElsewhere             // its place holds something else, and this guest moves stacks: only a scan of all memory can tell
	fateLeft                  // its place holds something else: the stack was unwound
	fateGone                  // its task is gone
)

// heldBits returns the bits to record for an activation with that fate when it is
// abandoned.
func (f fate) heldBits() uint64 {
	if f == fateGone {
		return 0
	}
	return heldBits
}

// maxSelector is the largest value that a pushed SS can have, selectorRPL its
// requested privilege level (SDM Vol. 3, 3.4.2).
const (
	maxSelector = 0xffff
	selectorRPL = 3
)

// fate determines the fate of the activation of record i, whose state is state.
//
// An activation can return only while its task exists, and while its trampoline is at
// its place on the stack, or is the RIP of a task that was interrupted between the
// return and the trampoline's first instruction. User memory that is not mapped
// decides nothing: it may be swapped out. Any other contents mean that the stack was
// unwound past the place and used again; or, if the guest has been seen to move
// stacks, that the trampoline may be anywhere.
//
// If an interrupt occurs between the return and the trampoline, the processor pushes
// its frame from the place downwards (SDM Vol. 3, 6.14.2): SS, whose RPL is 0 at CPL0
// (5.5), RSP, RFLAGS, CS and RIP. Not at CPL3: there the interrupt uses another
// stack. A word that looks like that SS decides nothing while the guest runs, because
// the rest of the frame may not be written yet; in a stopped world it is.
func (t *instances) fate(i int, state uint64, root guest.GPA, buf []byte) fate {
	root, ok := t.spaceOf(i, root)
	switch {
	case !ok:
		return fateLive
	case t.ownerGone(i, t.task(i), root, buf):
		return fateGone
	case state&phaseMask != phaseLive:
		return fateLive // its task is about to proceed
	}
	place := guest.GVA(t.word(i, instPlace).Load())
	if t.left && t.word(i, instStack).Load() != 0 { // the stack may have moved by now
		if t.core.target.ReadMemory(root, guest.GVA(t.word(i, instStack).Load()+8), buf[:8]) != nil {
			return fateLive
		}
		end, below := le.Uint64(buf), t.word(i, instBelow).Load()
		if end < below {
			return fateLeft // there is no such stack any more
		}
		place = guest.GVA(end - below)
	}
	if t.core.target.ReadMemory(root, place, buf[:8]) != nil {
		if t.user {
			return fateLive
		}
		return t.fateWithoutTramp()
	}
	switch word := le.Uint64(buf); {
	case t.left:
		if word != t.word(i, instNext).Load() {
			return fateLeft
		}
		return fateLive
	case t.core.leadsTo(guest.GVA(word), t.tramp(i)), t.core.mirrored(t.word(i, instPlace).Load(), word):
		return fateLive
	case !t.user && word <= maxSelector && word&selectorRPL == 0:
		return fateOpen
	}
	return t.fateWithoutTramp()
}

// fateWithoutTramp is the fate of an activation whose place does not hold its trampoline.
func (t *instances) fateWithoutTramp() fate {
	if !t.left && t.lent == nil && t.core.moves[guest.Level(t.user)].Load() {
		return fateElsewhere
	}
	return fateLeft
}

// interrupted reports whether the task of record i, whose fate is open, is in an
// interrupt that occurred at the trampoline, or in the guest's handler for the
// trampoline's int3 (which saves the address after it). The world is stopped.
func (t *instances) interrupted(i int, buf []byte) bool {
	root, _ := t.spaceOf(i, 0)
	place := t.word(i, instPlace).Load()
	m := t.core.target
	if m.ReadMemory(root, guest.GVA(place-8), buf[:8]) != nil || le.Uint64(buf) != place+8 {
		return false
	}
	if m.ReadMemory(root, guest.GVA(place-32), buf[:8]) != nil {
		return false
	}
	rip := guest.GVA(le.Uint64(buf))
	return t.core.leadsTo(rip, t.tramp(i)) || t.core.leadsTo(rip-1, t.tramp(i))
}

// returning reports whether a vCPU stands in the code of t, having just returned from
// the place of record i. The world is stopped.
func (t *instances) returning(w World, i int) bool {
	for k := range t.core.cpus {
		s := w.CPU(k)
		if t.core.code.ResidentAt(guest.GVA(s.Regs.RIP)) == resident(t) && t.word(i, instPlace).Load()-s.Regs.RSP+8 <= 4<<10 {
			return true
		}
	}
	return false
}

// abandon ends the activation of record i, whose state is state and which, as far as
// is known, can never return. It reports false if another thread was faster. held are
// bits of instHeld: whether the trampoline may be elsewhere, and the activation
// return after all.
func (t *instances) abandon(i int, state, held uint64) bool {
	if state&phaseMask == phaseLive {
		if !t.markLeaving(i, state) {
			return false
		}
		if !t.dead.Load() { // the counts are final
			t.rp.abandoned.Add(1)
		}
		if held != 0 {
			held |= state &^ phaseMask
		}
		if !t.left {
			t.word(i, instHeld).Store(held | t.word(i, instHeld).Load()&heldElsewhere)
		}
	}
	t.recycle(i)
	return true
}

// sweepBatch bounds the number of records that one hit looks at when none is free.
const sweepBatch = 128

// sweep looks at up to n records, starting where the last sweep ended, and recycles
// those whose activation was abandoned: the function was left otherwise than by its
// return (an exit of its task, a long jump). If look is set it recycles nothing:
// while the guest runs, a shared record may by now belong to another activation. root
// is the address space that kernel stacks are read in, 0 when none is at hand; buf
// has room for a word. It returns the number of such records.
//
// If the function returns twice, the free records are examined too: those whose last
// activation's task is gone may be used for any other.
func (t *instances) sweep(root guest.GPA, n int, look bool, buf []byte) int {
	freed := 0
	open := false
	for range min(n, t.n) {
		i := int((t.swept.Add(1) - 1) % uint32(t.n))
		state := t.word(i, instState).Load()
		if state&phaseMask == phaseFree {
			freed += t.forget(i, state, root, buf)
			continue
		}
		switch f := t.fate(i, state, root, buf); {
		case f == fateLive:
		case look || f == fateOpen || f == fateElsewhere:
			open = true
		case t.abandon(i, state, f.heldBits()):
			freed++
		}
	}
	if n >= t.n {
		t.undecided.Store(open)
	}
	return freed
}

// forget makes record i, which is free, usable for any activation, if it was kept for
// its last one and that one's task is gone. It returns 1 if it did.
func (t *instances) forget(i int, state uint64, root guest.GPA, buf []byte) int {
	if !t.rp.again.Load() || t.word(i, instNext).Load() == 0 || t.word(i, instHeld).Load()&heldElsewhere != 0 {
		return 0
	}
	root, ok := t.spaceOf(i, root)
	if !ok || !t.ownerGone(i, -t.task(i), root, buf) || !t.word(i, instState).CompareAndSwap(state, state+nextTaken) {
		return 0
	}
	t.setNext(i, 0)
	t.word(i, instState).Store(state + nextTaken - phaseEntering)
	return 1
}

// reclaim is sweep with the world stopped: nothing is undecided then.
func (t *instances) reclaim(w World, buf []byte) {
	for i := range t.n {
		state := t.word(i, instState).Load()
		if state&phaseMask == phaseFree {
			continue
		}
		f := t.fate(i, state, 0, buf)
		switch f {
		case fateLive, fateElsewhere:
			continue
		case fateOpen:
			if t.interrupted(i, buf) {
				continue
			}
		}
		if !t.returning(w, i) {
			t.abandon(i, state, f.heldBits())
		}
	}
	t.undecided.Store(false)
}

// unwindBatch bounds the records that unwind looks at. It reads no guest
// memory.
const unwindBatch = 64

// unwind recycles records whose activations the vCPU's task has unwound without
// returning: they are in the stack that the vCPU is on, at CPL0, below RSP. A
// kernel's stacks are used from their tops down only (guest.Profile), so a place
// below the stack pointer of the task itself holds nothing, and only the task could
// know better. The stacks of user code may be split into several.
func (t *instances) unwind(s State) {
	if t.tasks == nil || s.CPL != 0 || t.words[wordUsed].Load() == 0 {
		return
	}
	stack := s.Regs.RSP & t.tasks.StackMask
	if stack == 0 || t.user {
		return
	}
	for range min(unwindBatch, t.n) {
		i := int((t.unwound.Add(1) - 1) % uint32(t.n))
		state := t.word(i, instState).Load()
		place := t.word(i, instPlace).Load()
		if state&phaseMask != phaseLive || t.task(i) <= 0 || place&t.tasks.StackMask != stack || place >= s.Regs.RSP {
			continue
		}
		// An address space's lower half is its own.
		if root := t.word(i, instRoot).Load(); int64(stack) >= 0 && root != 0 && guest.GPA(root) != s.Root {
			continue
		}
		t.abandon(i, state, heldOpen)
	}
}

// activeCount returns how many activations are under way.
func (t *instances) activeCount() (n int) {
	for i := range t.n {
		if t.word(i, instState).Load()&phaseMask != phaseFree {
			n++
		}
	}
	return n
}
