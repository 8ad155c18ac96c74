package probe

import (
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// instances is everything a kretprobe needs to follow calls: a table with a record
// for each activation of its function under way, and a trampoline for each record,
// whose address replaces the return address until the function returns. So the
// address that a guest returns to identifies the activation that has ended, without a
// search or a lock; and a word on a stack identifies the activation that it belongs
// to.
//
// The table is in the engine's own memory or, if the probe's handlers can run in the
// guest, in memory that both share. Its words are the same in both cases, and the
// host takes, ends and recycles records by the same code; the code in the guest does
// the same (entryStage, returnCode):
//
//	line 0             used, high, run, lost
//	then               shared: for each vCPU handled, filtered, missed, returns, entry's block, return's block
//	then               the records: state, place, next, trampoline, task, root, owner; private data from the next line on
//
// used counts the records that are not free, at most max; high is its maximum so far;
// run is 1 until the probe is unregistered. There are more records than concurrent
// activations, so that a record is reused late, and mostly for the same place on the
// same stack: its memory of the last activation serves returns that come without
// warning (moved.go).
//
// The guest can write to shared memory. It can only falsify its own calls: the host's
// counts and all locations are kept elsewhere.
type instances struct {
	core  *core
	rp    *retprobe
	tasks *guest.Profile // of the image; nil: the owner of a stack cannot be determined
	prof  guest.Profile  // of the code that runs in the guest
	user  bool
	site  guest.GVA
	max   int
	n     int // records: when the table is shared, a power of two
	cpus  int // with a line; 0: the table is private

	base    guest.GVA // of the memory, when it is shared
	bytes   []byte
	words   []atomic.Uint64
	shown   []atomic.Uint64 // private, nil for want of memory: by record, the address that its trampoline replaces, which the guest can read
	shownAt guest.GVA
	stride  int // bytes from one record to the next

	tramps guest.GVA     // the first trampoline
	left   bool          // there are no trampolines: the function's returns are probed (leaves.go)
	lent   []guest.GVA   // or, in a table without memory of the engine's (returns.borrow), the borrowed int3s, ascending
	end    guest.GVA     // of all code
	exit   guest.GVA     // shared: the exit for returns that belong to no activation
	placed []placedStage // shared: the code that may fault
	push   int           // shared: where a trampoline pushes its number, with RSP 8 lower
	touch  touch         // shared, at CPL3: of the far end of the stack that the code uses; offsets from tramps
	entry  *Stage        // shared: the stage that a detour calls

	stances stances   // shared: from tramps on
	ended   guest.GVA // shared: the place after the return stage, where the activation is over

	noStage string // why the table is private although the probe has the stages
	short   bool   // for want of memory

	steal   bool          // a record may be used for another return address: see reuseAny
	crowded atomic.Bool   // a call was missed although records were free
	cursor  atomic.Uint32 // where the next search for a free record begins
	swept   atomic.Uint32 // where the next sweep begins
	unwound atomic.Uint32 // where the next unwind begins

	// undecided: the last full sweep met a record whose state only a stopped world
	// shows.
	undecided atomic.Bool

	// dead: the probe was unregistered. Its outstanding activations return
	// without a handler. Changes only while the world is stopped.
	dead atomic.Bool
}

// Words of line 0.
const (
	wordUsed = iota
	wordHigh
	wordRun
	wordLost

	lineSize  = 64
	lineWords = lineSize / 8
)

// Words of a vCPU's line.
const (
	cellHandled = iota
	cellFiltered
	cellMissed
	cellReturns
	cellEntryBlock
	cellReturnBlock
)

// Words of a record. They keep their values when the activation has ended.
const (
	instState = iota // the number of the activation, shifted by phaseBits, and its phase
	instPlace        // address of the return address on the guest's stack
	instNext         // the former word: the return address, or the trampoline of another activation of the place
	instTramp        // the record's trampoline
	instTask         // the task's number + 1, negative when the activation has ended; 0: not known
	instRoot         // page tables, if the host has begun the activation; else 0
	instOwner        // where the task's structure is, with a profile by GS
	instHeld         // the host's: bits below, and the free state that heldOpen is about
)

// Words of a record of a table without trampolines.
const (
	instStack = instTramp // descriptor of the stack, or 0
	instBelow = instHeld  // how far below that stack's end the place is
)

// Bits of instHeld.
const (
	// heldElsewhere: the guest may hold the trampoline elsewhere than at a place of a
	// call under way. Only a scan of all memory clears it (unbind).
	heldElsewhere = 1 << iota
	// heldOpen: the last activation was abandoned, and was not seen to return.
	heldOpen

	heldBits = heldElsewhere | heldOpen
)

// Phases of a record. The context that sets it to entering or leaving has the sole
// right to change the rest.
const (
	phaseFree     = iota
	phaseEntering // being filled in; its trampoline is not on the stack yet
	phaseLive
	phaseLeaving // its return, or what ends it otherwise, is under way

	phaseBits = 2
	phaseMask = 1<<phaseBits - 1
	nextTaken = 1<<phaseBits + phaseEntering // from a free state to that of the next activation
)

// trampSize is the size of a trampoline. The address after its first instruction,
// which the processor saves for an int3, is never another trampoline's.
const trampSize = 16

// spareInstances returns the number of records beyond the number requested.
func spareInstances(max int) int { return min(max+16, 256) }

// minInstances is the least number of records.
const minInstances = 64

// newInstances returns the table of rp on st, without memory.
func newInstances(k *core, rp *retprobe, st *site) *instances {
	_, kernel := k.target.Symbols().(Kernel)
	return &instances{
		steal: kernel && !st.user,
		core:  k, rp: rp, tasks: k.tasks.Load(), user: st.user, site: st.addr, max: rp.max,
		n:      max(minInstances, rp.max+spareInstances(rp.max)),
		stride: lineSize + (rp.probe.DataSize+lineSize-1)&^(lineSize-1),
	}
}

// size returns how many bytes the table takes.
func (t *instances) size() int { return lineSize*(1+t.cpus) + t.n*t.stride }

// setMemory makes b, which is zeroed, the memory of the table.
func (t *instances) setMemory(b []byte) {
	t.bytes, t.words = b, guest.AtomicWords(b)
	t.words[wordRun].Store(1)
}

// fill writes into a shared table what the guest's code reads there.
func (t *instances) fill() {
	for i := range t.n {
		t.word(i, instTramp).Store(uint64(t.tramp(i)))
	}
	for cpu := range t.cpus {
		if x := t.rp.probe.Stage; x != nil {
			t.cell(cpu, cellEntryBlock).Store(uint64(x.Block) + uint64(cpu)*x.Stride)
		}
		x := t.rp.probe.ReturnStage
		t.cell(cpu, cellReturnBlock).Store(uint64(x.Block) + uint64(cpu)*x.Stride)
	}
}

// stages returns the stages that the code of the table calls.
func (t *instances) stages() []*Stage {
	if t.rp.probe.Stage == nil {
		return []*Stage{t.rp.probe.ReturnStage}
	}
	return []*Stage{t.rp.probe.ReturnStage, t.rp.probe.Stage}
}

// shared reports whether the table is in memory that the guest shares.
func (t *instances) shared() bool { return t.cpus != 0 }

// cell returns a word of a vCPU's line.
func (t *instances) cell(cpu, word int) *atomic.Uint64 { return &t.words[lineWords*(1+cpu)+word] }

// word returns a word of record i.
func (t *instances) word(i, word int) *atomic.Uint64 {
	return &t.words[lineWords*(1+t.cpus)+i*(t.stride/8)+word]
}

// task returns the word of record i that identifies the task.
func (t *instances) task(i int) int64 { return int64(t.word(i, instTask).Load()) }

// data returns the private memory of record i.
func (t *instances) data(i int) []byte {
	at := lineSize*(1+t.cpus) + i*t.stride + lineSize
	return t.bytes[at : at+t.rp.probe.DataSize]
}

// tramp returns the trampoline of record i.
func (t *instances) tramp(i int) guest.GVA {
	if t.lent != nil {
		return t.lent[i]
	}
	return t.tramps + guest.GVA(i*trampSize)
}

// cells and records are where those parts are in the guest.
func (t *instances) cells() guest.GVA   { return t.base + lineSize }
func (t *instances) records() guest.GVA { return t.base + guest.GVA(lineSize*(1+t.cpus)) }

// trampoline returns the record whose trampoline is at a; t is nil if none is.
func (k *core) trampoline(a guest.GVA) (t *instances, i int) {
	t, ok := k.code.ResidentAt(a).(*instances)
	if !ok {
		return nil, 0
	}
	if i, ok = t.recordAt(a); !ok {
		return nil, 0
	}
	return t, i
}

// recordAt returns the record whose trampoline is at a.
func (t *instances) recordAt(a guest.GVA) (i int, ok bool) {
	i, ok = t.recordOf(a)
	return i, ok && t.tramp(i) == a
}

// recordOf returns the record whose trampoline a is in.
func (t *instances) recordOf(a guest.GVA) (i int, ok bool) {
	if t.lent != nil {
		return slices.BinarySearch(t.lent, a)
	}
	off := a - t.tramps
	return int(off / trampSize), off < guest.GVA(t.n*trampSize)
}

// origin identifies an activation: where its return address is, what that address
// finally is, and in which address space.
type origin struct{ place, ret, root uint64 }

// spread and spreadRet are factors for the place of a return address on the stack,
// and for the address itself: an activation begins to look for a record where the
// last one of the same place and caller found its own.
const (
	spread    = 0x61c88647
	spreadRet = 0x2c1b3c6d
)

// home returns the record to begin with for an activation.
func (o origin) home(n int) int { return int(uint32((o.place*spread+o.ret*spreadRet)>>24) % uint32(n)) }

// take makes a free record entering for an activation, or returns -1.
func (t *instances) take(o origin) int {
	used := &t.words[wordUsed]
	for {
		n := used.Load()
		if n >= uint64(t.max) {
			return -1
		}
		if used.CompareAndSwap(n, n+1) {
			t.raiseHighMark(n + 1)
			break
		}
	}
	// The record that the same activation used before, or would have used had it been
	// the first.
	home := o.home(t.n)
	for _, i := range [...]int{home, (home + 1) % t.n} {
		if t.claim(i, o, reuseCall) {
			return i
		}
	}
	how := reuseReturn
	switch {
	case t.rp.again.Load():
		how = reuseCall
	case t.steal:
		how = reuseAny
	}
	for range 2 * t.n { // other threads may have taken the records just passed
		if i := int((t.cursor.Add(1) - 1) % uint32(t.n)); t.claim(i, o, how) {
			return i
		}
	}
	used.Add(^uint64(0))
	t.crowded.Store(true)
	return -1
}

// raiseHighMark raises the high mark to n.
func (t *instances) raiseHighMark(n uint64) {
	high := &t.words[wordHigh]
	for h := high.Load(); n > h && !high.CompareAndSwap(h, n); h = high.Load() {
	}
}

// claim makes record i entering if it is free and how allows it for the activation o.
func (t *instances) claim(i int, o origin, how reuse) bool {
	state := t.word(i, instState)
	s := state.Load()
	if s&phaseMask != phaseFree || !t.reusable(i, o, how) {
		return false
	}
	return state.CompareAndSwap(s, s+nextTaken)
}

// markLeaving makes a live record, whose state was state, leaving, and the caller's.
// It fails if another thread was faster.
func (t *instances) markLeaving(i int, state uint64) bool {
	return t.word(i, instState).CompareAndSwap(state, state+phaseLeaving-phaseLive)
}

// recycle frees a record that is entering or leaving, and the caller's.
func (t *instances) recycle(i int) {
	if task := t.task(i); task > 0 {
		t.word(i, instTask).Store(uint64(-task))
	}
	state := t.word(i, instState)
	state.Store(state.Load() &^ phaseMask)
	t.words[wordUsed].Add(^uint64(0))
}

// highMark returns the most records that were in use at a time, as reported by the
// guest.
func (t *instances) highMark() int { return int(min(t.words[wordHigh].Load(), uint64(t.max))) }

// counts are Stage.Counts: the calls handled in the guest, as reported by the guest.
func (t *instances) counts(cpu int) (handled, filtered, missed uint64) {
	handled, filtered, missed = t.cell(cpu, cellHandled).Load(), t.cell(cpu, cellFiltered).Load(), t.cell(cpu, cellMissed).Load()
	if cpu == 0 {
		missed += t.words[wordLost].Load()
	}
	return handled, filtered, missed
}

// activation is a record that a hit has taken for a call.
type activation struct {
	t *instances
	i int
}

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
