package probe

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// Geometry of trampoline memory. A trampoline is one int3; what it has to
// itself is more, so that the address behind it (which the processor saves for
// an int3) is no other trampoline's.
const (
	trampSize = 16
	trampSlab = 4 << 10 // trampolines are allocated in multiples of this
)

// trampolines are the engine's instances, each with a trampoline of its own for
// life. The address that a guest returns to therefore says at once which
// activation has ended, without a search or a lock, and the contents of a stack
// slot which activation it belongs to.
//
// They are lent to the pools of kretprobes. Guarded by Engine.mu.
type trampolines struct {
	spare   [2][]*instance // by 1 = user text
	orphans []*instance    // of unregistered probes, not yet known to be free

	idle map[retKey][]*retStage // of unregistered probes, in the guest
	code [2]int                 // bytes of all code of such, by 1 = user text
}

func newTrampolines() trampolines { return trampolines{idle: map[retKey][]*retStage{}} }

// trampBlock is the resident of trampolines that stand one behind the other.
type trampBlock struct {
	core *core
	base guest.GVA
	inst []instance
}

// instance returns the instance whose trampoline is at a, or nil.
func (k *core) instance(a guest.GVA) *instance {
	b, ok := k.code.At(a).(*trampBlock)
	if !ok {
		return nil
	}
	return b.instance(a)
}

func (b *trampBlock) instance(a guest.GVA) *instance {
	if (a-b.base)%trampSize != 0 {
		return nil
	}
	return &b.inst[(a-b.base)/trampSize]
}

// home implements resident: where the last activation returns to.
func (b *trampBlock) home(rip guest.GVA) guest.GVA {
	if in := b.instance(rip); in != nil && in.ret.Load() != 0 {
		return b.core.through(rip)
	}
	return rip
}

// trap implements resident.
func (b *trampBlock) trap(c *cpu, s State, kind TrapKind) (Verdict, bool) {
	in := b.instance(guest.GVA(s.Regs.RIP))
	if in == nil || kind != TrapBreakpoint {
		return Verdict{}, false
	}
	return c.comeBack(s, in), true
}

// fault implements resident. A trampoline that is not mapped in an address space
// cannot be fetched there; the function has returned all the same.
func (b *trampBlock) fault(c *cpu, s State, _ Trap) Verdict {
	if in := b.instance(guest.GVA(s.Regs.RIP)); in != nil && in.fits(s, in.state.Load()) {
		return c.comeBack(s, in)
	}
	return Verdict{Action: NotOurs}
}

// accessor implements resident.
func (b *trampBlock) accessor(_ *cpu, s State) (guest.GVA, bool) {
	return b.home(guest.GVA(s.Regs.RIP)), false
}

// restedInstances is how many spare instances there are at least when some are
// lent: one that was given back is used again only when about as many others were
// lent since. A function that returns twice may have been probed by it, and its
// second return be still to come.
const restedInstances = 1024

// borrow returns n instances for a function at near.
func (e *Engine) borrow(n int, user bool, near guest.GVA) ([]*instance, error) {
	t := &e.tramps
	k := guest.Level(user)
	// A second return was seen since they were given back.
	t.spare[k] = slices.DeleteFunc(t.spare[k], func(in *instance) bool {
		if !in.kept() {
			return false
		}
		t.orphans = append(t.orphans, in)
		return true
	})
	if lack := n + restedInstances - len(t.spare[k]); lack > 0 {
		if err := e.growTrampolines(lack, user, near); err != nil && len(t.spare[k]) < n {
			return nil, err
		}
	}
	// Those that have been spare for the longest time: what they remember is the
	// least likely to be asked for.
	out := slices.Clone(t.spare[k][:n])
	t.spare[k] = slices.Delete(t.spare[k], 0, n)
	return out, nil
}

// growTrampolines adds at least n spare instances.
func (e *Engine) growTrampolines(n int, user bool, near guest.GVA) error {
	size := (n*trampSize + trampSlab - 1) &^ (trampSlab - 1)
	b := &trampBlock{core: &e.core, inst: make([]instance, size/trampSize)}
	err := e.code.Put(near, user, b, func(at guest.GVA) ([]byte, error) {
		b.base = at
		return bytes.Repeat([]byte{insn.Int3}, size), nil
	})
	if err != nil {
		return fmt.Errorf("allocate %d trampolines near %v: %w", n, near, err)
	}
	for i := range b.inst {
		in := &b.inst[i]
		in.tramp, in.user = b.base+guest.GVA(i*trampSize), user
		e.tramps.spare[guest.Level(user)] = append(e.tramps.spare[guest.Level(user)], in)
	}
	return nil
}

// giveBack returns instances that no guest has ever seen, or that are free.
func (t *trampolines) giveBack(list []*instance) {
	for _, in := range list {
		k := guest.Level(in.user)
		t.spare[k] = append(t.spare[k], in)
	}
}

// retire takes the instances of a dead pool: those that are free may be lent
// again, the others when they have come back. Those of a function that returns
// twice only when their last task is gone: somewhere in the guest their addresses
// may be stored. The world is stopped.
func (t *trampolines) retire(p *pool) {
	t.orphans = append(t.orphans, p.inst...)
	t.reap()
}

// reap makes orphans that have come back available.
func (t *trampolines) reap() {
	t.orphans = slices.DeleteFunc(t.orphans, func(in *instance) bool {
		if in.state.Load()&phaseMask != phaseFree || in.kept() {
			return false
		}
		t.giveBack([]*instance{in})
		return true
	})
}
