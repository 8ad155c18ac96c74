package probe

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// Geometry of slot memory. A slot has room for the longest instruction and a
// jump, and never crosses a 32-byte line.
const (
	slotSize = 32
	slabSize = 16 << 10
	slabMin  = 4 << 10 // what is asked for when a whole slab is not to be had
)

// slotKind says what stands behind the copied instruction.
type slotKind uint8

const (
	slotBoost slotKind = iota // jmp to the next instruction
	slotStep                  // int3
)

// slot is executable guest memory with a copy of one instruction:
//
//	boosted  [copy][e9 rel32 to the instruction behind the original]
//	stepped  [copy][cc]
//
// It belongs to that instruction at that address for ever (until the guest is
// reset): a task that was preempted in it may come back long after the
// probe is gone, and still finds what it left.
type slot struct {
	addr  guest.GVA // of the copy
	orig  guest.GVA // of the original
	next  guest.GVA // behind the original
	n     uint8     // length of the copy
	kind  slotKind
	flags atomic.Uint32 // stepped: the interrupted IF, for a step that lost its vCPU
}

// end returns the address behind the copy.
func (s *slot) end() guest.GVA { return s.addr + guest.GVA(s.n) }

// home returns the address in the original text that a saved RIP inside the
// slot stands for.
func (s *slot) home(rip guest.GVA) guest.GVA {
	if rip < s.end() {
		return s.orig
	}
	return s.next
}

// slotKey names what a slot is a copy of.
type slotKey struct {
	addr  guest.GVA
	kind  slotKind
	n     uint8
	bytes [insn.MaxLen]byte
}

// slab is one piece of executable memory, cut into slots.
type slab struct {
	base guest.GVA
	user bool
	size int
	used int // bytes; guarded by Engine.mu
	slot []atomic.Pointer[slot]
	inst []instance // a slab of trampolines instead of slots

	detours *atomic.Pointer[[]*detour] // a slab of detours instead: ascending, replaced as a whole
	returns *retStage                  // the code of a kretprobe in the guest instead
}

// slots is the engine's slot memory. Lookups take no lock; the rest is guarded
// by Engine.mu.
type slots struct {
	target Target
	byKey  map[slotKey]*slot
	slabs  atomic.Pointer[[]*slab] // ascending by base, replaced as a whole
	tramps trampolines
	boards boards
}

func newSlots(t Target) *slots {
	s := &slots{target: t}
	s.forget()
	return s
}

// forget drops all memory: the guest was reset, and it with it.
func (s *slots) forget() {
	s.byKey = map[slotKey]*slot{}
	s.slabs.Store(new([]*slab))
	s.tramps = trampolines{idle: map[retKey][]*retStage{}}
	s.boards.forget()
}

// find returns the slot that a lies in, its end included, or nil.
func (s *slots) find(a guest.GVA) *slot {
	b := s.slab(a)
	if b == nil {
		return nil
	}
	return b.slot[(a-b.base)/slotSize].Load()
}

// slab returns the slab that holds a, or nil.
func (s *slots) slab(a guest.GVA) *slab {
	list := *s.slabs.Load()
	lo, hi := 0, len(list)
	for lo < hi {
		if m := int(uint(lo+hi) >> 1); list[m].base <= a {
			lo = m + 1
		} else {
			hi = m
		}
	}
	if lo == 0 {
		return nil
	}
	if b := list[lo-1]; a-b.base < guest.GVA(b.size) {
		return b
	}
	return nil
}

// errReach is returned by fill when a displacement does not fit from there.
var errReach = errors.New("displacement out of range")

// get returns the slot of the given kind for the site's instruction, making it
// if need be. Errors: errReach, and those of the target.
func (s *slots) get(st *site, kind slotKind) (*slot, error) {
	key := slotKey{addr: st.addr, kind: kind, n: st.n, bytes: st.orig}
	if sl := s.byKey[key]; sl != nil {
		return sl, nil
	}
	list := *s.slabs.Load()
	for i := len(list) - 1; i >= 0; i-- {
		b := list[i]
		if b.user != st.user || b.detours != nil || b.returns != nil || b.used+slotSize > b.size {
			continue
		}
		sl, err := s.fill(b, st, kind)
		if err == nil {
			s.byKey[key] = sl
			return sl, nil
		}
		if !errors.Is(err, errReach) || insn.JmpReaches(uint64(b.base), uint64(st.next())) {
			// Not for lack of nearness to the site: it is the instruction's operand
			// that is too far away, and more memory here would be no help.
			return nil, err
		}
	}
	b, err := s.grow(st)
	if err != nil {
		return nil, err
	}
	sl, err := s.fill(b, st, kind)
	if err != nil {
		return nil, err
	}
	s.byKey[key] = sl
	return sl, nil
}

// grow adds a slab within reach of st.
func (s *slots) grow(st *site) (*slab, error) {
	size := slabSize
	base, err := s.target.AllocExec(st.addr, size)
	if err != nil {
		size = slabMin
		if base, err = s.target.AllocExec(st.addr, size); err != nil {
			return nil, fmt.Errorf("allocate slot memory near %v: %w", st.addr, err)
		}
	}
	b := &slab{base: base, user: st.user, size: size, slot: noSlots(size)}
	s.add(b)
	return b, nil
}

// noSlots returns the empty table of a slab of size bytes.
func noSlots(size int) []atomic.Pointer[slot] { return make([]atomic.Pointer[slot], size/slotSize) }

// add makes b known to lookups.
func (s *slots) add(b *slab) {
	list := append(slices.Clone(*s.slabs.Load()), b)
	slices.SortFunc(list, func(x, y *slab) int {
		if x.base < y.base {
			return -1
		}
		return 1
	})
	s.slabs.Store(&list)
}

// fill writes the next free slot of b. The slot is complete in guest memory
// before it can be found, and found before any text leads to it.
func (s *slots) fill(b *slab, st *site, kind slotKind) (*slot, error) {
	at := b.base + guest.GVA(b.used)
	code, n, err := slotCode(st, kind, at)
	if err != nil {
		return nil, err
	}
	if err := s.target.WriteExec(at, code); err != nil {
		return nil, fmt.Errorf("write slot at %v: %w", at, err)
	}
	sl := &slot{addr: at, orig: st.addr, next: st.next(), n: uint8(n), kind: kind}
	b.slot[b.used/slotSize].Store(sl)
	b.used += slotSize
	return sl, nil
}
