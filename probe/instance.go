package probe

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// instance is the record of one activation of a function with a kretprobe. Its
// trampoline is in the place of the return address while it is live.
//
// A vCPU takes it from its pool (reserved), fills it in, puts the trampoline
// into the guest's stack and makes it live, all in one hit. The vCPU at which
// the guest comes to the trampoline, perhaps another one, reserves it again,
// runs the return handler and gives it back (free). Its fields are atomic
// because sweep looks at them from anywhere; who has reserved it is alone in
// changing them.
type instance struct {
	tramp guest.GVA // fixed for life
	user  bool      // trampoline in user text; fixed for life

	// state is the number of the activation, shifted by phaseBits, and the
	// phase. After the activation ret, slot and root stay what they were, for a
	// copy of the activation that a fork made.
	state atomic.Uint64

	pool  atomic.Pointer[pool] // whom it is lent to, or was
	fresh atomic.Bool          // not used by that pool; what it remembers is of a former one
	data  []byte               // private to the activation; made at registration

	slot atomic.Uint64 // address of the return address on the guest's stack
	ret  atomic.Uint64 // the real return address, which was there
	root atomic.Uint64 // page tables of the activation, where it matters (user)

	owner owner

	// below is the activation whose trampoline was in the slot before: of
	// another kretprobe on the function, or of a caller that left by a jump to
	// this function. Both end together.
	below      atomic.Pointer[instance]
	belowState atomic.Uint64 // number of that activation
}

// Phases of an instance.
const (
	phaseFree = iota
	phaseReserved
	phaseLive

	phaseBits = 2
	phaseMask = 1<<phaseBits - 1
)

// number returns the number of the activation in a state.
func number(state uint64) uint64 { return state >> phaseBits }

// to changes the phase of an instance that the caller has reserved.
func (in *instance) to(phase uint64) {
	in.state.Store(in.state.Load()&^phaseMask | phase)
}

// reserve makes the live activation n the caller's own. It fails when another
// one was faster.
func (in *instance) reserve(n uint64) bool {
	return in.state.CompareAndSwap(n<<phaseBits|phaseLive, n<<phaseBits|phaseReserved)
}

// pool holds the instances of one kretprobe. Everything on the hit path is
// lock-free.
//
// There are more instances than activations at a time, so that an instance is
// used again late, and when it is, for the same place on the same stack if
// possible: what it remembers of its last activation serves returns that nobody
// announces (see comeAgain).
type pool struct {
	ret  *retprobe
	inst []*instance
	prof *guest.Profile // of the image, nil without one

	used   atomic.Int64  // instances that are not free, at most ret.max
	high   atomic.Int64  // the most there ever were
	cursor atomic.Uint32 // where the next search for a free one begins
	swept  atomic.Uint32 // where the next sweep begins

	unwound atomic.Uint32 // where the next unwind begins

	// undecided: the last sweep over all of it has met an instance of which only a
	// stopped world shows what has become.
	undecided atomic.Bool

	// again: the function has returned twice. From then on an instance is used
	// again only for the same activation as its last one.
	again atomic.Bool

	// dead: the probe was unregistered. Its outstanding activations return
	// without a handler. Changes only while the world is stopped.
	dead atomic.Bool
}

// spareInstances returns how many instances a pool has beyond what it is asked
// for.
func spareInstances(max int) int { return min(max+16, 256) }

// newPool makes a pool of instances that were borrowed for rp.
func newPool(rp *retprobe, list []*instance, prof *guest.Profile) *pool {
	p := &pool{ret: rp, inst: list, prof: prof}
	for _, in := range list {
		in.fresh.Store(true)
		in.data = make([]byte, rp.probe.DataSize)
		in.pool.Store(p)
	}
	return p
}

// origin is what tells an activation from others: where its return address is,
// and what that is.
type origin struct{ slot, ret, root uint64 }

// hash spreads origins over a pool.
func (o origin) hash() uint32 {
	return uint32((o.slot*0x9e3779b97f4a7c15 ^ o.ret*0xc2b2ae3d27d4eb4f ^ o.root) >> 32)
}

// last reports whether o is that of the instance's last activation.
func (in *instance) last(o origin) bool {
	return in.ret.Load() == o.ret && in.slot.Load() == o.slot && in.root.Load() == o.root
}

// get takes a free instance for an activation and reserves it, or returns nil.
func (p *pool) get(o origin) *instance {
	for {
		used := p.used.Load()
		if used+p.ret.usedInGuest() >= int64(p.ret.max) {
			return nil
		}
		if !p.used.CompareAndSwap(used, used+1) {
			continue
		}
		p.ret.spare(-1)
		all := used + 1 + p.ret.usedInGuest()
		for high := p.high.Load(); all > high && !p.high.CompareAndSwap(high, all); high = p.high.Load() {
		}
		break
	}
	n := uint32(len(p.inst))
	// Where the same activation was before, or would be had it been the first.
	home := o.hash() % n
	for i := range min(2, n) {
		if in := p.inst[(home+i)%n]; in.take(o, false) {
			return in
		}
	}
	other := !p.again.Load()
	for range 2 * n { // others may have taken what this one has just passed by
		if in := p.inst[(p.cursor.Add(1)-1)%n]; in.take(o, other) {
			return in
		}
	}
	p.used.Add(-1)
	p.ret.spare(1)
	return nil
}

// take reserves an instance if it is free, and, unless other is set, has not
// been used yet or was last used for o.
func (in *instance) take(o origin, other bool) bool {
	st := in.state.Load()
	if st&phaseMask != phaseFree || !other && !in.fresh.Load() && in.ret.Load() != 0 && !in.last(o) ||
		!in.state.CompareAndSwap(st, (number(st)+1)<<phaseBits|phaseReserved) {
		return false
	}
	in.fresh.Store(false)
	return true
}

// kept reports whether in, which is free, may not be used for anybody else: its
// function returns twice, and its last activation may come back.
func (in *instance) kept() bool {
	return in.ret.Load() != 0 && !in.fresh.Load() && in.pool.Load().again.Load()
}

// put gives back an instance that the caller has reserved.
func (p *pool) put(in *instance) {
	in.to(phaseFree)
	p.used.Add(-1)
	if !p.dead.Load() {
		p.ret.spare(1)
	}
}

// sweepBatch bounds the instances that one hit looks at when the pool is empty.
const sweepBatch = 128

// sweep looks at up to n instances, going on where the last sweep ended, and
// gives those back whose activation was abandoned: the function was left by
// another way than its return (an exit of its task, a long jump). root is the
// address space that kernel stacks are read in, 0 when none is at hand; buf has
// room for a word. It returns how many there were.
//
// An activation can still return exactly as long as its task is there, and its
// trampoline is at its place on the stack, or is the RIP of a task that was
// interrupted between the return and the int3 (see verdict). User memory that is
// not mapped decides nothing: it may be swapped out. Anything else there means
// that the stack was unwound past the slot and used anew.
//
// Of a function that returns twice the free instances are looked at, too: those
// whose last activation's task is gone may be used for any other.
func (k *core) sweep(p *pool, root guest.GPA, n int, buf []byte) int {
	freed := 0
	open := false
	for range min(n, len(p.inst)) {
		in := p.inst[(p.swept.Add(1)-1)%uint32(len(p.inst))]
		st := in.state.Load()
		switch {
		case st&phaseMask == phaseLive:
			switch k.fate(in, p.prof, root, buf) {
			case fateGone:
				if in.reserve(number(st)) {
					p.ret.abandoned.Add(1)
					p.put(in)
					freed++
				}
			case fateOpen:
				open = true
			}
		case st&phaseMask == phaseFree && in.kept() && k.forgotten(in, p.prof, root, buf) &&
			in.state.CompareAndSwap(st, (number(st)+1)<<phaseBits|phaseReserved):
			in.ret.Store(0)
			in.to(phaseFree)
			freed++
		}
	}
	if n >= len(p.inst) {
		p.undecided.Store(open)
	}
	return freed
}

// spaceOf returns the page tables by which the stack of in is to be read, and
// whether they are known. root is the address space at hand, or 0.
func (in *instance) spaceOf(root guest.GPA) (guest.GPA, bool) {
	own := guest.GPA(in.root.Load())
	if !in.user && int64(in.slot.Load()) < 0 {
		return root, true
	}
	// What an address space has in its lower half is its own; a kernel whose
	// stacks are there may have gone to another one since.
	return own, in.user || root == 0 || root == own
}

// What is known of a live activation.
type fate uint8

const (
	fateLive fate = iota // it may return
	fateOpen             // so it may, as far as can be seen while the guest runs
	fateGone             // it can never return
)

// fate says what has become of the live activation of in.
//
// When an interrupt comes between the return and the int3, the processor pushes
// its frame from the trampoline's place downwards (SDM Vol. 3, 6.14.2): SS, whose
// RPL is 0 at CPL0 (5.5), RSP, RFLAGS, CS and RIP. Not at CPL3: the stack is
// another one then. What looks like that SS decides nothing while the guest runs,
// because the rest of the frame may be on its way; in a stopped world it is there.
func (k *core) fate(in *instance, prof *guest.Profile, root guest.GPA, buf []byte) fate {
	root, ok := in.spaceOf(root)
	if !ok {
		return fateLive
	}
	if k.ownerGone(&in.owner, prof, root, buf) {
		return fateGone
	}
	if err := k.target.ReadMemory(root, guest.GVA(in.slot.Load()), buf[:8]); err != nil {
		if in.user {
			return fateLive
		}
		return fateGone
	}
	switch word := le.Uint64(buf); {
	case k.covers(guest.GVA(word), in):
		return fateLive
	case !in.user && word <= maxSelector && word&selectorRPL == 0:
		return fateOpen
	}
	return fateGone
}

// interrupted reports whether the task of in, which fate leaves open, is in an
// interrupt that came at the trampoline, or in the guest's handler for the
// trampoline's int3 (which saves the address behind it). The world is stopped.
func (k *core) interrupted(in *instance, root guest.GPA, buf []byte) bool {
	root, _ = in.spaceOf(root)
	slot := in.slot.Load()
	if k.target.ReadMemory(root, guest.GVA(slot-8), buf[:8]) != nil || le.Uint64(buf) != slot+8 {
		return false
	}
	if k.target.ReadMemory(root, guest.GVA(slot-32), buf[:8]) != nil {
		return false
	}
	rip := guest.GVA(le.Uint64(buf))
	return k.covers(rip, in) || k.covers(rip-1, in)
}

// forgotten reports whether nobody can come back to the last activation of in,
// which has ended.
func (k *core) forgotten(in *instance, prof *guest.Profile, root guest.GPA, buf []byte) bool {
	root, ok := in.spaceOf(root)
	return ok && k.ownerGone(&in.owner, prof, root, buf)
}

// maxSelector is the largest value that a pushed SS can have, selectorRPL its
// requested privilege level (SDM Vol. 3, 3.4.2).
const (
	maxSelector = 0xffff
	selectorRPL = 3
)

// covers reports whether the trampoline at word ends the activation of in:
// its own, or that of one which lies above it on the same slot.
func (k *core) covers(word guest.GVA, in *instance) bool { return k.leadsTo(word, in.tramp) }
