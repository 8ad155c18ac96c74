package probe

import (
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// instances are all that a kretprobe has to follow calls by: a table with a record
// for each activation of its function that is under way, and a trampoline for each
// record, whose address is in the place of the return address meanwhile. The address
// that a guest returns to therefore says at once which activation has ended, without
// a search or a lock, and the contents of a place on a stack which activation it
// belongs to.
//
// The table is in the engine's own memory, or, where the probe's handlers can run in the
// guest, in memory that both share. Either way its words are the same, and the host
// takes, ends and recycles records by the same code; what runs in the guest does as
// that does (entryStage, returnCode):
//
//	line 0             used, high, run, lost
//	then               shared: for each vCPU handled, filtered, missed, returns, entry's block, return's block
//	then               the records: state, place, next, trampoline, task, root, owner; private data from the next line on
//
// used counts the records that are not free, at most max; high is the most there ever
// were; run is 1 until the probe is unregistered. There are more records than
// activations at a time, so that one is used again late, and mostly for the same place
// on the same stack: what a record remembers of its last activation serves returns
// that nobody announces (moved.go).
//
// The guest can write to what is shared. It can lie about its own calls; what the host
// has counted, and where anything is, is not there.
type instances struct {
	core  *core
	rp    *retprobe
	tasks *guest.Profile // of the image; nil: whose stack it is cannot be told
	prof  guest.Profile  // of what runs in the guest
	user  bool
	site  guest.GVA
	max   int
	n     int // records: when the table is shared, a power of two
	cpus  int // with a line; 0: the table is private

	base    guest.GVA // of the memory, when it is shared
	bytes   []byte
	words   []atomic.Uint64
	shown   []atomic.Uint64 // private, nil for want of memory: by record what its trampoline stands for, which the guest can read
	shownAt guest.GVA
	stride  int // bytes from one record to the next

	tramps guest.GVA     // the first trampoline
	left   bool          // there are none: the function's returns are probed (leaves.go)
	lent   []guest.GVA   // or those of a table without memory of the engine's (returns.borrow), ascending
	end    guest.GVA     // of all code
	exit   guest.GVA     // shared: the exit for arrivals that belong to no activation
	placed []placedStage // shared: what may fault
	push   int           // shared: where a trampoline pushes its number, with RSP 8 lower
	touch  touch         // shared, at CPL3: of the far end of the stack that the code uses; from tramps on
	entry  *Stage        // shared: what a detour calls

	stances stances   // shared: from tramps on
	ended   guest.GVA // shared: where the return stage has run, and the activation is over

	noStage string // why the table is private although the probe has the stages
	short   bool   // for want of memory

	steal   bool          // a record may be used for another return address: see reuseAny
	crowded atomic.Bool   // a call was missed although records were free
	cursor  atomic.Uint32 // where the next search for a free record begins
	swept   atomic.Uint32 // where the next sweep begins
	unwound atomic.Uint32 // where the next unwind begins

	// undecided: the last sweep over all of it has met a record of which only a
	// stopped world shows what has become.
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

// Words of a record. They keep what they were when the activation has ended.
const (
	instState = iota // the number of the activation, shifted by phaseBits, and its phase
	instPlace        // address of the return address on the guest's stack
	instNext         // what was there: the return address, or the trampoline of another activation of the place
	instTramp        // the record's trampoline
	instTask         // the task's number + 1, negative when the activation has ended; 0: not known
	instRoot         // page tables, where the host has begun the activation; else 0
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
	// call that is under way. Only a look at all memory clears it (unbind).
	heldElsewhere = 1 << iota
	// heldOpen: the last activation was given up, and was not seen to return.
	heldOpen

	heldBits = heldElsewhere | heldOpen
)

// Phases of a record. Whoever makes it entering or leaving is alone in changing the
// rest.
const (
	phaseFree     = iota
	phaseEntering // being filled in; its trampoline is not on the stack yet
	phaseLive
	phaseLeaving // its return, or what ends it otherwise, is under way

	phaseBits = 2
	phaseMask = 1<<phaseBits - 1
	nextTaken = 1<<phaseBits + phaseEntering // from a free state to that of the next activation
)

// trampSize is the room of a trampoline. The address behind its first instruction,
// which the processor saves for an int3, is no other trampoline's.
const trampSize = 16

// spareInstances returns how many records there are beyond what is asked for.
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

// stages returns those that the code of the table leads to.
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

// task returns the word of record i that says whose it is.
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

// trampoline returns the record whose trampoline is at a; t is nil when there is
// none.
func (k *core) trampoline(a guest.GVA) (t *instances, i int) {
	t, ok := k.code.At(a).(*instances)
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

// origin is what tells an activation from others: where its return address is,
// what that is in the end, and in which address space.
type origin struct{ place, ret, root uint64 }

// spread and spreadRet are what the place of a return address on the stack, and the
// address itself, are multiplied with: an activation begins to look for a record where
// the last one of the same place and caller had found its own.
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
	// Where the same activation was before, or would be had it been the first.
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
	for range 2 * t.n { // others may have taken what this one has just passed by
		if i := int((t.cursor.Add(1) - 1) % uint32(t.n)); t.claim(i, o, how) {
			return i
		}
	}
	used.Add(^uint64(0))
	t.crowded.Store(true)
	return -1
}

// raiseHighMark keeps the high mark.
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

// markLeaving makes a live record, whose state was state, leaving, and the caller's. It
// fails when another one was faster.
func (t *instances) markLeaving(i int, state uint64) bool {
	return t.word(i, instState).CompareAndSwap(state, state+phaseLeaving-phaseLive)
}

// recycle gives back a record that is entering or leaving, and the caller's.
func (t *instances) recycle(i int) {
	if task := t.task(i); task > 0 {
		t.word(i, instTask).Store(uint64(-task))
	}
	state := t.word(i, instState)
	state.Store(state.Load() &^ phaseMask)
	t.words[wordUsed].Add(^uint64(0))
}

// highMark returns the most records that were in use at a time, as the guest says.
func (t *instances) highMark() int { return int(min(t.words[wordHigh].Load(), uint64(t.max))) }

// counts are Stage.Counts: what ran in the guest, as that says.
func (t *instances) counts(cpu int) (handled, filtered, missed uint64) {
	handled, filtered, missed = t.cell(cpu, cellHandled).Load(), t.cell(cpu, cellFiltered).Load(), t.cell(cpu, cellMissed).Load()
	if cpu == 0 {
		missed += t.words[wordLost].Load()
	}
	return handled, filtered, missed
}
