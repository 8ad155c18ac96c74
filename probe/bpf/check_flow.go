package bpf

import "fmt"

// jump checks a jump, call or exit by itself, and that it stays in the program.
func (c *checker) jump(pc int, i Insn) string {
	op, x := i.Op&opMask, i.Op&SrcX != 0
	switch {
	case op == OpJA:
		unused := i.Imm
		if i.Op == OpGotoL {
			unused = int64(i.Off)
		}
		if x {
			return badOpcode
		}
		if i.Dst != 0 || i.Src != 0 || unused != 0 {
			return badField
		}
	case op == OpCall || op == OpExit:
		if x || i.Class() == ClassJMP32 {
			return badOpcode
		}
		if i.Dst != 0 || i.Off != 0 || op == OpExit && (i.Src != 0 || i.Imm != 0) {
			return badField
		}
		if op == OpExit {
			return ""
		}
		return c.call(pc, i)
	case jumpLowered[op] == opInvalid:
		return badOpcode
	case x && i.Imm != 0 || !x && i.Src != 0:
		return badField
	}
	return c.target("jump", i.target(pc))
}

func (c *checker) target(what string, t int) string {
	switch {
	case t < 0 || t >= len(c.prog):
		return fmt.Sprintf("%s to slot %d, outside the program of %d", what, t, len(c.prog))
	case c.second[t]:
		return fmt.Sprintf("%s to slot %d, into the middle of a 64-bit immediate", what, t)
	}
	return ""
}

func (c *checker) call(pc int, i Insn) string {
	switch i.Src {
	case CallLocal:
		return c.target("call", i.target(pc))
	case CallBTF:
		return "calls by BTF ID are not supported"
	case CallHelper:
	default:
		return fmt.Sprintf("no kind %d of call", i.Src)
	}
	h := helperByID[Helper(i.Imm)]
	switch {
	case h == nil:
		return fmt.Sprintf("unknown helper %d", i.Imm)
	case h.needsCtx && !c.kind.hasRegs():
		return fmt.Sprintf("helper %s needs the registers of a probe", h.Name)
	case h.ID == HelperOverrideReturn && c.kind == Kretprobe:
		return "helper override_return works at a function's entry, not at its return"
	}
	return ""
}

// flow checks what concerns functions: jumps stay in theirs, and each ends in
// an exit or a jump.
func (c *checker) flow() error {
	for pc, i := range c.prog {
		if c.second[pc] || !i.isJump() {
			continue
		}
		if t := i.target(pc); c.fns.of(t) != c.fns.of(pc) {
			return c.fail(pc, fmt.Sprintf("jump to slot %d, into another function", t))
		}
	}
	for f := range c.fns.starts {
		_, hi := c.fns.bounds(f)
		last := hi - 1
		if c.second[last] {
			last--
		}
		if i := c.prog[last]; i.Op != OpExitK && i.Op != OpGoto && i.Op != OpGotoL {
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
			i := c.prog[pc]
			if c.second[pc] || i.Op != OpCallK || i.Src != CallLocal {
				continue
			}
			g := c.fns.of(i.target(pc))
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
