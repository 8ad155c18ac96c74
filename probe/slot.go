package probe

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// slotKind says what follows the copied instruction.
type slotKind uint8

const (
	slotBoost slotKind = iota // jmp to the next instruction
	slotStep                  // int3
)

// slot is executable guest memory with a copy of one instruction:
//
//	boosted  [copy][e9 rel32 to the instruction after the original]
//	stepped  [copy][cc]
//
// It belongs to that instruction at that address until no context can be in it: a
// task that was preempted there may come back long after the probe is gone, and must
// still find its code.
type slot struct {
	key   slotKey
	addr  guest.GVA // of the copy
	orig  guest.GVA // of the original
	next  guest.GVA // after the original
	n     uint8     // length of the copy
	kind  slotKind
	flags atomic.Uint32 // stepped: the interrupted IF, for a step that lost its vCPU
}

// end returns the address after the copy.
func (s *slot) end() guest.GVA { return s.addr + guest.GVA(s.n) }

// slotKey identifies the original of a slot.
type slotKey struct {
	addr  guest.GVA
	kind  slotKind
	n     uint8
	bytes [x86.MaxLen]byte
}

// slot returns the slot of the given kind for the site's instruction. It makes the
// slot if necessary. Errors: any of slotCode's, code.ErrReach, and errors that wrap
// code.ErrNoMemory. Callers hold mu.
func (p *places) slot(st *site, kind slotKind) (*slot, error) {
	key := slotKey{addr: st.addr, kind: kind, n: st.orig.Load().n, bytes: st.orig.Load().bytes}
	if sl := p.slots[key]; sl != nil {
		return sl, nil
	}
	sl := &slot{key: key, orig: st.addr, next: st.next(), kind: kind}
	err := p.code.Put(st.addr, st.user, sl, func(at guest.GVA) ([]byte, error) {
		b, n, err := slotCode(st, kind, at)
		sl.addr, sl.n = at, uint8(n)
		return b, err
	})
	if err != nil {
		return nil, err
	}
	p.slots[key] = sl
	return sl, nil
}

// home implements resident.
func (s *slot) home(rip guest.GVA) guest.GVA {
	if rip < s.end() {
		return s.orig
	}
	return s.next
}

// trap implements resident: at the int3, on a vCPU that is not known to be in the
// slot. Its step was assumed abandoned, or the task was moved. The instruction is
// done; the address to resume at is certain, and IF nearly so.
func (s *slot) trap(c *cpu, st State, kind TrapKind) (hit *site, from *detour, ok bool) {
	if kind != TrapBreakpoint || s.kind != slotStep || guest.GVA(st.Regs.RIP) != s.end() {
		return nil, nil, false
	}
	count(&c.counts.strays)
	st.Regs.RIP = uint64(s.next)
	st.Regs.RFLAGS |= uint64(s.flags.Load()) & x86.FlagIF
	return nil, nil, true
}

// fault implements resident: the fault of a boosted slot, or of a slot that the guest
// returned to by itself.
func (s *slot) fault(c *cpu, st State, _ Trap) Verdict {
	rip := guest.GVA(st.Regs.RIP)
	if rip > s.end() {
		return Verdict{Action: NotOurs}
	}
	count(&c.counts.faults)
	st.Regs.RIP = uint64(s.home(rip))
	if s.kind == slotStep {
		count(&c.counts.strays)
		st.Regs.RFLAGS |= uint64(s.flags.Load()) & x86.FlagIF
	}
	return Verdict{Action: NotOurs}
}

// accessor implements resident.
// fixup implements resident.
func (s *slot) fixup(guest.GVA) (guest.GVA, bool) { return 0, false }

func (s *slot) loads() bool { return false }

func (s *slot) accessor(*cpu, State) (guest.GVA, bool) { return s.orig, true }
