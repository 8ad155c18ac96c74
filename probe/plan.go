package probe

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/code"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// slotCode returns the bytes of a slot of the given kind at address at, and
// how many of them are the copy. The error is code.ErrReach or says why the
// instruction cannot be moved.
func slotCode(st *site, kind slotKind, at guest.GVA) (b []byte, n int, err error) {
	var buf [insn.MaxRelocated + insn.JmpLen]byte
	n, err = insn.Relocate(buf[:], &st.plan().Inst, uint64(st.addr), uint64(at))
	if errors.Is(err, insn.ErrOutOfReach) {
		return nil, 0, code.ErrReach
	}
	if err != nil {
		return nil, 0, err
	}
	b = buf[:n]
	if kind == slotStep {
		return append(b, insn.Int3), n, nil
	}
	b, ok := insn.AppendJmp(b, uint64(at)+uint64(n), uint64(st.next()))
	if !ok {
		return nil, 0, code.ErrReach
	}
	return b, n, nil
}

// refuse turns a plan that refuses the instruction into an error.
func refuse(p insn.Plan, b []byte) *Error {
	detail := fmt.Sprintf("bytes % x", b)
	switch p.Reason {
	case insn.ReasonTrap:
		return newError(CodeTrapInsn, "the instruction is a trap itself", detail)
	case insn.ReasonEmulationPrefix:
		return newError(CodeEmulationPrefix, "the instruction is a prefix that a hypervisor emulates", detail)
	case insn.ReasonMasksExceptions:
		return newError(CodeMasksExceptions, "the instruction holds off interrupts and traps of the next one", detail)
	case insn.ReasonUndecodable:
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
		if kind != insn.Emulate && !can.InPlace {
			return newError(CodeHostCannot, "the instruction needs a slot, and this host cannot step in place", can.NoExec)
		}
		if st.user && st.plan().NoStep {
			return newError(CodeHostCannot, "the instruction enters the kernel or waits, and needs a slot", can.NoExec)
		}
		return nil
	}
	if kind == insn.Emulate {
		kind = st.plan().Fallback // for the hit at which emulation fails
	}
	if kind == insn.Boost && st.boosted.Load() == nil {
		sl, err := p.slot(st, slotBoost)
		if err != nil {
			return slotError(err)
		}
		st.boosted.Store(sl)
	}
	if (kind == insn.Step || kind == insn.Boost && watch && !st.plan().NoStep) && st.stepped.Load() == nil {
		sl, err := p.slot(st, slotStep)
		if err != nil {
			return slotError(err)
		}
		st.stepped.Store(sl)
	}
	return nil
}

// slotError says why there is no slot.
func slotError(err error) *Error {
	switch {
	case errors.Is(err, code.ErrReach):
		return newError(CodeOutOfReach, "no slot is within reach of the instruction's operand", "")
	case errors.Is(err, insn.ErrNotMovable):
		return newError(CodeUnsupported, "the instruction cannot be moved", "")
	default:
		x := newError(CodeNoSlot, "no executable memory for a slot", "")
		x.Cause = err
		return x
	}
}
