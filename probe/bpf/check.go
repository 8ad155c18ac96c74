package bpf

import "fmt"

// Limits of a program, which are those of Linux.
const (
	MaxFrames = 8   // functions that call each other, the first included
	FrameSize = 512 // bytes of stack of each
	StackSize = MaxFrames * FrameSize
	MaxMaps   = 64 // maps that one program may use
)

// CheckError is a refusal of the checker.
type CheckError struct {
	Index  int    // slot of the instruction, -1 when it is about the whole program
	Insn   Insn   // the instruction
	Reason string // what is wrong with it
}

// Error names the instruction and the reason.
func (e *CheckError) Error() string {
	if e.Index < 0 {
		return "check program: " + e.Reason
	}
	return fmt.Sprintf("check instruction %d (%v): %s", e.Index, e.Insn, e.Reason)
}

// checker checks one program. The back ends bound every access by themselves:
// what the checker lets through by mistake ends in a fault, not in harm.
type checker struct {
	prog   []Insn
	maps   []*Map
	kind   Kind
	second []bool // second slots of 64-bit immediates
	fns    *functions
}

// check returns the functions of a well-formed program, or a *CheckError.
func check(prog []Insn, maps []*Map, kind Kind) (*functions, error) {
	switch {
	case len(prog) == 0:
		return nil, &CheckError{Index: -1, Reason: "it has no instructions"}
	case len(prog) > MaxSlots:
		return nil, &CheckError{Index: -1, Reason: fmt.Sprintf("%d instruction slots, at most %d are allowed", len(prog), MaxSlots)}
	case len(maps) > MaxMaps:
		return nil, &CheckError{Index: -1, Reason: fmt.Sprintf("%d maps, at most %d are allowed", len(maps), MaxMaps)}
	}
	c := &checker{prog: prog, maps: maps, kind: kind, second: make([]bool, len(prog))}
	for pc := 0; pc < len(prog); pc++ {
		if prog[pc].wide() {
			if pc+1 == len(prog) || prog[pc+1] != (Insn{}) {
				return nil, c.fail(pc, "a 64-bit immediate has no second slot")
			}
			c.second[pc+1] = true
			pc++
		}
	}
	for pc, i := range prog {
		if c.second[pc] {
			continue
		}
		if reason := c.insn(pc, i); reason != "" {
			return nil, c.fail(pc, reason)
		}
	}
	c.fns = findFunctions(prog)
	if err := c.flow(); err != nil {
		return nil, err
	}
	return c.fns, c.calls()
}

func (c *checker) fail(pc int, reason string) error {
	return &CheckError{Index: pc, Insn: c.prog[pc], Reason: reason}
}

// insn checks one instruction by itself and returns what is wrong, or "".
func (c *checker) insn(pc int, i Insn) string {
	if i.Dst > R10 || i.Src > R10 {
		return fmt.Sprintf("no register r%d", max(i.Dst, i.Src))
	}
	if !i.wide() && i.Imm != int64(int32(i.Imm)) {
		return "the immediate does not fit in 32 bits"
	}
	switch i.Class() {
	case ClassALU, ClassALU64:
		return c.alu(i)
	case ClassJMP, ClassJMP32:
		return c.jump(pc, i)
	case ClassLD:
		return c.imm64(i)
	case ClassLDX:
		return c.load(i)
	}
	return c.store(i)
}

const (
	badOpcode = "unknown opcode"
	badField  = "a field that the instruction does not use is not zero"
	badFP     = "r10 is read-only"
)

func (c *checker) alu(i Insn) string {
	op, x := i.Op&opMask, i.Op&SrcX != 0
	if i.Dst == R10 {
		return badFP
	}
	switch op {
	case OpNeg:
		if x || i.Src != 0 || i.Imm != 0 || i.Off != 0 {
			return badField
		}
		return ""
	case OpEnd:
		switch {
		case x && i.Class() == ClassALU64:
			return badOpcode
		case i.Src != 0 || i.Off != 0:
			return badField
		case i.Imm != 16 && i.Imm != 32 && i.Imm != 64:
			return fmt.Sprintf("no byte swap of %d bits", i.Imm)
		}
		return ""
	}
	if aluLowered[op] == opInvalid {
		return badOpcode
	}
	if x && i.Imm != 0 || !x && i.Src != 0 {
		return badField
	}
	switch {
	case i.Off == 0:
	case (op == OpDiv || op == OpMod) && i.Off == 1:
	case op == OpMov && x && (i.Off == 8 || i.Off == 16 || i.Off == 32 && i.Class() == ClassALU64):
	case op == OpMov || op == OpDiv || op == OpMod:
		return fmt.Sprintf("no variant %d of this operation", i.Off)
	default:
		return badField
	}
	return ""
}

func (c *checker) imm64(i Insn) string {
	switch i.Op & modeMask {
	case ModeABS, ModeIND:
		return "the packet conformance group (legacy packet access) is not supported"
	}
	switch {
	case !i.wide():
		return badOpcode
	case i.Dst == R10:
		return badFP
	case i.Off != 0:
		return badField
	}
	n, off := int64(uint32(i.Imm)), uint64(i.Imm)>>32
	switch i.Src {
	case ImmConst:
		return ""
	case ImmVarAddr:
		return "addresses of platform variables are not supported"
	case ImmCodeAddr:
		return "addresses of functions are not supported"
	case ImmMapFD, ImmMapIdx, ImmMapValue, ImmMapValIdx:
	default:
		return fmt.Sprintf("no kind %d of 64-bit immediate", i.Src)
	}
	if n >= int64(len(c.maps)) {
		return fmt.Sprintf("no map %d: the program has %d", n, len(c.maps))
	}
	if i.Src == ImmMapFD || i.Src == ImmMapIdx {
		if off != 0 {
			return badField
		}
		return ""
	}
	m := c.maps[n]
	switch {
	case m.spec.Kind != Array:
		return fmt.Sprintf("values of map %q have no fixed address: it is a %v", m.spec.Name, m.spec.Kind)
	case off >= uint64(m.spec.ValueSize):
		return fmt.Sprintf("offset %d is outside the %d bytes of a value of map %q", off, m.spec.ValueSize, m.spec.Name)
	}
	return ""
}

func (c *checker) load(i Insn) string {
	switch i.Op & modeMask {
	case ModeMEM:
	case ModeMEMSX:
		if i.Op&sizeMask == SizeDW {
			return badOpcode
		}
	default:
		return badOpcode
	}
	switch {
	case i.Dst == R10:
		return badFP
	case i.Imm != 0:
		return badField
	}
	return stackAccess(i.Src, i)
}

func (c *checker) store(i Insn) string {
	atomic := i.Class() == ClassSTX && i.Op&modeMask == ModeATOMIC
	switch {
	case atomic:
		if s := i.Op & sizeMask; s != SizeW && s != SizeDW {
			return badOpcode
		}
		switch i.Imm {
		case AtomicAdd, AtomicOr, AtomicAnd, AtomicXor:
		case AtomicAdd | AtomicFetch, AtomicOr | AtomicFetch, AtomicAnd | AtomicFetch, AtomicXor | AtomicFetch, AtomicXchg:
			if i.Src == R10 {
				return badFP
			}
		case AtomicCmpXchg:
		default:
			return fmt.Sprintf("no atomic operation %#x", i.Imm)
		}
		if i.Off%int16(i.size()) != 0 && i.Dst == R10 {
			return "an atomic operation on the stack is not aligned"
		}
	case i.Op&modeMask != ModeMEM:
		return badOpcode
	case i.Class() == ClassST && i.Src != 0, i.Class() == ClassSTX && i.Imm != 0:
		return badField
	}
	return stackAccess(i.Dst, i)
}

// stackAccess checks an access relative to the frame pointer.
func stackAccess(base Reg, i Insn) string {
	if base != R10 {
		return ""
	}
	if lo, hi := int(i.Off), int(i.Off)+i.size(); lo < -FrameSize || hi > 0 {
		return fmt.Sprintf("stack access at r10%+d of %d bytes is outside the frame of %d bytes", lo, i.size(), FrameSize)
	}
	return ""
}
