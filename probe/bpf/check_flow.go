package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
)

// mayGoto is the operation of a jump that the machine may take at any time, so that a
// loop ends (BPF_JCOND, may_goto).
const mayGoto asm.JumpOp = 0xe0

// mayGotoLeft says when it is taken: when less than 1 / mayGotoLeft of the budget is left.
const mayGotoLeft = 4

// isJump reports whether i is a jump, conditional or not, and not a call or an
// exit.
func isJump(i *asm.Instruction) bool {
	op := i.OpCode.JumpOp()
	return op != asm.InvalidJumpOp && op != asm.Call && op != asm.Exit
}

// isLongJump reports whether i is a jump whose distance is in the immediate.
func isLongJump(i *asm.Instruction) bool {
	return i.OpCode.JumpOp() == asm.Ja && i.OpCode.Class() == asm.Jump32Class
}

// target returns the target slot of the jump or local call at slot pc, or the slot of
// the function whose address is taken there.
func target(i *asm.Instruction, pc int) int {
	if refersToFunction(i) || isLongJump(i) {
		return pc + 1 + int(i.Constant)
	}
	return pc + 1 + int(i.Offset)
}

// refersToFunction reports whether i calls a function of the program, or takes its
// address for a helper to call.
func refersToFunction(i *asm.Instruction) bool {
	return i.IsFunctionCall() || i.IsLoadOfFunctionPointer()
}

// jump checks a jump, call or exit by itself, and that it stays in the program.
func (c *checker) jump(pc int, i *asm.Instruction) string {
	op, x := i.OpCode.JumpOp(), i.OpCode.Source() == asm.RegSource
	switch op {
	case asm.Ja:
		unused := i.Constant
		if isLongJump(i) {
			unused = int64(i.Offset)
		}
		if x {
			return badOpcode
		}
		if i.Dst != 0 || i.Src != 0 || unused != 0 {
			return badField
		}
	case mayGoto:
		if x || i.OpCode.Class() != asm.JumpClass {
			return badOpcode
		}
		if i.Src != 0 {
			return fmt.Sprintf("no kind %d of conditional jump", uint8(i.Src))
		}
		if i.Dst != 0 || i.Constant != 0 {
			return badField
		}
	case asm.Call, asm.Exit:
		if x {
			return badOpcode
		}
		if i.Dst != 0 || i.Offset != 0 || op == asm.Exit && (i.Src != 0 || i.Constant != 0) {
			return badField
		}
		if op == asm.Exit {
			return ""
		}
		return c.call(pc, i)
	default:
		if jumpLowered[op] == opInvalid {
			return badOpcode
		}
		if x && i.Constant != 0 || !x && i.Src != 0 {
			return badField
		}
	}
	return c.target("jump", target(i, pc))
}

func (c *checker) target(what string, t int) string {
	switch {
	case t < 0 || t >= len(c.slots):
		return fmt.Sprintf("%s to slot %d, outside the program of %d", what, t, len(c.slots))
	case c.slots[t] == nil:
		return fmt.Sprintf("%s to slot %d, into the middle of a 64-bit immediate", what, t)
	}
	return ""
}

func (c *checker) call(pc int, i *asm.Instruction) string {
	switch {
	case i.IsFunctionCall():
		return c.target("call", target(i, pc))
	case i.IsKfuncCall():
		return "calls by BTF ID are not supported"
	case !i.IsBuiltinCall():
		return fmt.Sprintf("no kind %d of call", uint8(i.Src))
	}
	return ""
}

// unavailable returns why a program of that kind cannot call a helper, "" if it can. The
// call is rejected where the program may reach it.
func unavailable(i *asm.Instruction, kind Kind) string {
	h := helperByID[Helper(i.Constant)]
	switch {
	case h == nil && refusedHelpers[Helper(i.Constant)] != "":
		return fmt.Sprintf("unknown helper %v: %s", Helper(i.Constant), refusedHelpers[Helper(i.Constant)])
	case h == nil:
		return fmt.Sprintf("unknown helper %v", Helper(i.Constant))
	case h.needsCtx && !kind.hasRegs():
		return fmt.Sprintf("helper %s needs the registers of a probe", h.Name)
	case h.ID == HelperSetReg && kind == Watch:
		return "helper set_reg works at a probed instruction or a return, not after the access of a watch"
	case h.ID == HelperOverrideReturn && kind.AtReturn():
		return "helper override_return works at a function's entry, not at its return"
	}
	return ""
}

// flow checks functions: jumps stay in theirs, and each ends in an exit or a jump.
func (c *checker) flow() error {
	for pc, i := range c.slots {
		if i == nil || !isJump(i) {
			continue
		}
		if t := target(i, pc); c.fns.indexOf(t) != c.fns.indexOf(pc) {
			return c.fail(pc, fmt.Sprintf("jump to slot %d, into another function", t))
		}
	}
	for f := range c.fns.starts {
		_, hi := c.fns.bounds(f)
		last := hi - 1
		if c.slots[last] == nil {
			last--
		}
		if op := c.slots[last].OpCode.JumpOp(); op != asm.Exit && op != asm.Ja {
			return c.fail(last, "control runs off the end of the function")
		}
	}
	return nil
}

// calls checks that no function can be its own caller and that no chain of
// calls is longer than MaxFrames.
func (c *checker) calls() error {
	const open = -1
	depth := make([]int, len(c.fns.starts)) // frames needed, 0 = not known yet
	var visit func(f int) error
	visit = func(f int) error {
		depth[f] = open
		need := 1
		lo, hi := c.fns.bounds(f)
		for pc := lo; pc < hi; pc++ {
			i := c.slots[pc]
			if i == nil || !refersToFunction(i) {
				continue
			}
			g := c.fns.indexOf(target(i, pc))
			if depth[g] == open {
				return c.fail(pc, "the function calls itself, directly or not")
			}
			if depth[g] == 0 {
				if err := visit(g); err != nil {
					return err
				}
			}
			if need = max(need, depth[g]+1); need > MaxFrames {
				return c.fail(pc, fmt.Sprintf("calls nest deeper than %d frames of %d bytes of stack", MaxFrames, FrameSize))
			}
		}
		depth[f] = need
		return nil
	}
	for f := range c.fns.starts {
		if depth[f] == 0 {
			if err := visit(f); err != nil {
				return err
			}
		}
	}
	return nil
}
