package probe

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/code"
)

// slotCode returns the bytes of a slot of the given kind at address at, and
// how many of them are the copy. The error is code.ErrReach or says why the
// instruction cannot be moved.
func slotCode(st *site, kind slotKind, at guest.GVA) (b []byte, n int, err error) {
	var buf [x86.MaxRelocated + x86.JmpLen]byte
	n, err = x86.Relocate(buf[:], &st.plan().Inst, uint64(st.addr), uint64(at))
	if errors.Is(err, x86.ErrOutOfReach) {
		return nil, 0, code.ErrReach
	}
	if err != nil {
		return nil, 0, err
	}
	b = buf[:n]
	if kind == slotStep {
		return append(b, x86.Int3), n, nil
	}
	b, ok := x86.AppendJmp(b, uint64(at)+uint64(n), uint64(st.next()))
	if !ok {
		return nil, 0, code.ErrReach
	}
	return b, n, nil
}

// planError turns a plan that rejects the instruction into an error.
func planError(p x86.Plan, b []byte) *Error {
	detail := fmt.Sprintf("bytes % x", b)
	switch p.Reason {
	case x86.ReasonTrap:
		return newError(CodeTrapInsn, "the instruction is a trap itself", detail)
	case x86.ReasonEmulationPrefix:
		return newError(CodeEmulationPrefix, "the instruction is a prefix that a hypervisor emulates", detail)
	case x86.ReasonMasksExceptions:
		return newError(CodeMasksExceptions, "the instruction holds off interrupts and traps of the next one", detail)
	case x86.ReasonUndecodable:
		return newError(CodeUndecodable, "the bytes are not a valid instruction", detail)
	default:
		return newError(CodeUnsupported, "the instruction cannot be executed away from its place", detail)
	}
}

// needSlots makes the slots that st's plan needs; watch says that a probe there
// has a post or a fault handler.
func (p *places) needSlots(st *site, watch bool) *Error {
	kind := st.plan().Kind
	if can := p.can[guest.Level(st.user)]; can.NoExec != "" {
		if kind != x86.Emulate && !can.InPlace {
			return newError(CodeHostCannot, "the instruction needs a slot, and this host cannot step in place", can.NoExec)
		}
		if st.user && st.plan().NoStep {
			return newError(CodeHostCannot, "the instruction enters the kernel or waits, and needs a slot", can.NoExec)
		}
		return nil
	}
	if kind == x86.Emulate {
		kind = st.plan().Fallback // for the hit at which emulation fails
	}
	if kind == x86.Boost && st.boosted.Load() == nil {
		sl, err := p.slot(st, slotBoost)
		if err != nil {
			return slotError(err)
		}
		st.boosted.Store(sl)
	}
	if (kind == x86.Step || kind == x86.Boost && watch && !st.plan().NoStep) && st.stepped.Load() == nil {
		sl, err := p.slot(st, slotStep)
		if err != nil {
			return slotError(err)
		}
		st.stepped.Store(sl)
	}
	return nil
}

// slotError says why a slot could not be made.
func slotError(err error) *Error {
	switch {
	case errors.Is(err, code.ErrReach):
		return newError(CodeOutOfReach, "no slot is within reach of the instruction's operand", "")
	case errors.Is(err, x86.ErrNotMovable):
		return newError(CodeUnsupported, "the instruction cannot be moved", "")
	default:
		x := newError(CodeNoSlot, "no executable memory for a slot", "")
		x.Cause = err
		return x
	}
}
