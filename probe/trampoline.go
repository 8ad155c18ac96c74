package probe

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
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

// instance returns the instance whose trampoline is at a, or nil.
func (s *slots) instance(a guest.GVA) *instance {
	b := s.slab(a)
	if b == nil || b.inst == nil || (a-b.base)%trampSize != 0 {
		return nil
	}
	return &b.inst[(a-b.base)/trampSize]
}

// restedInstances is how many spare instances there are at least when some are
// lent: one that was given back is used again only when about as many others were
// lent since. A function that returns twice may have been probed by it, and its
// second return be still to come.
const restedInstances = 1024

// borrow returns n instances for a function at near.
func (s *slots) borrow(n int, user bool, near guest.GVA) ([]*instance, error) {
	t := &s.tramps
	k := 0
	if user {
		k = 1
	}
	// A second return was seen since they were given back.
	t.spare[k] = slices.DeleteFunc(t.spare[k], func(in *instance) bool {
		if !in.kept() {
			return false
		}
		t.orphans = append(t.orphans, in)
		return true
	})
	if lack := n + restedInstances - len(t.spare[k]); lack > 0 {
		if err := s.growTrampolines(lack, user, near); err != nil && len(t.spare[k]) < n {
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
func (s *slots) growTrampolines(n int, user bool, near guest.GVA) error {
	size := (n*trampSize + trampSlab - 1) &^ (trampSlab - 1)
	base, err := s.target.AllocExec(near, size)
	if err != nil {
		return fmt.Errorf("allocate %d trampolines near %v: %w", n, near, err)
	}
	if err := s.target.WriteExec(base, bytes.Repeat([]byte{opInt3}, size)); err != nil {
		return fmt.Errorf("write trampolines at %v: %w", base, err)
	}
	b := &slab{base: base, user: user, size: size, used: size, slot: noSlots(size), inst: make([]instance, size/trampSize)}
	k := 0
	if user {
		k = 1
	}
	for i := range b.inst {
		in := &b.inst[i]
		in.tramp, in.user = base+guest.GVA(i*trampSize), user
		s.tramps.spare[k] = append(s.tramps.spare[k], in)
	}
	s.add(b)
	return nil
}

// giveBack returns instances that no guest has ever seen, or that are free.
func (s *slots) giveBack(list []*instance) {
	for _, in := range list {
		k := 0
		if in.user {
			k = 1
		}
		s.tramps.spare[k] = append(s.tramps.spare[k], in)
	}
}

// retire takes the instances of a dead pool: those that are free may be lent
// again, the others when they have come back. Those of a function that returns
// twice only when their last task is gone: somewhere in the guest their addresses
// may be stored. The world is stopped.
func (s *slots) retire(p *pool) {
	s.tramps.orphans = append(s.tramps.orphans, p.inst...)
	s.reap()
}

// reap makes orphans that have come back available.
func (s *slots) reap() {
	t := &s.tramps
	t.orphans = slices.DeleteFunc(t.orphans, func(in *instance) bool {
		if in.state.Load()&phaseMask != phaseFree || in.kept() {
			return false
		}
		s.giveBack([]*instance{in})
		return true
	})
}
