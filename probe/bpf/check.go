package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/asm"
)

// Limits of a program, the same as in Linux.
const (
	MaxFrames = 8   // nested calls of functions, including the first function
	FrameSize = 512 // bytes of stack of each
	StackSize = MaxFrames * FrameSize
	MaxMaps   = 64 // maps that one program may use
)

// CheckError is a rejection by the checker.
type CheckError struct {
	Index  int             // slot of the instruction, -1 if it is about the whole program
	Insn   asm.Instruction // the instruction
	Reason string          // why it is rejected
}

// Error names the instruction and the reason.
func (e *CheckError) Error() string {
	if e.Index < 0 {
		return "check program: " + e.Reason
	}
	return fmt.Sprintf("check instruction %d (%v): %s", e.Index, e.Insn, e.Reason)
}

// checker checks one program. The back ends bound every access by themselves: an
// instruction that the checker accepts by mistake ends in a fault and has no other
// effect.
type checker struct {
	slots slots
	maps  []*Map
	kind  Kind
	fns   *functions
}

// slots are the instructions of a program, indexed by slot; the second slot of a
// 64-bit immediate is nil.
type slots []*asm.Instruction

// check returns a well-formed program by slot, with its functions, or a *CheckError.
func check(prog asm.Instructions, maps []*Map, kind Kind) (slots, *functions, error) {
	size := 0
	for i := range prog {
		size += int(prog[i].Width())
	}
	switch {
	case len(prog) == 0:
		return nil, nil, &CheckError{Index: -1, Reason: "it has no instructions"}
	case size > MaxSlots:
		return nil, nil, &CheckError{Index: -1, Reason: fmt.Sprintf("%d instruction slots, at most %d are allowed", size, MaxSlots)}
	case len(maps) > MaxMaps:
		return nil, nil, &CheckError{Index: -1, Reason: fmt.Sprintf("%d maps, at most %d are allowed", len(maps), MaxMaps)}
	}
	c := &checker{slots: make(slots, size), maps: maps, kind: kind}
	for it := prog.Iterate(); it.Next(); {
		c.slots[it.Offset] = it.Ins
	}
	for pc, i := range c.slots {
		if i == nil {
			continue
		}
		if reason := c.insn(pc, i); reason != "" {
			return nil, nil, c.fail(pc, reason)
		}
	}
	c.fns = findFunctions(c.slots)
	if err := c.flow(); err != nil {
		return nil, nil, err
	}
	return c.slots, c.fns, c.calls()
}

func (c *checker) fail(pc int, reason string) error {
	return &CheckError{Index: pc, Insn: *c.slots[pc], Reason: reason}
}

// insn checks one instruction by itself and returns the reason to reject it, or "".
func (c *checker) insn(pc int, i *asm.Instruction) string {
	if i.Dst > asm.R10 || i.Src > asm.R10 {
		return fmt.Sprintf("no register r%d", max(i.Dst, i.Src))
	}
	if !i.OpCode.IsDWordLoad() && i.Constant != int64(int32(i.Constant)) {
		return "the immediate does not fit in 32 bits"
	}
	switch class := i.OpCode.Class(); class {
	case asm.LdClass:
		return c.imm64(pc, i)
	case asm.LdXClass:
		return c.load(i)
	case asm.StClass, asm.StXClass:
		return c.store(i)
	default:
		if class.IsALU() {
			return c.alu(i)
		}
		return c.jump(pc, i)
	}
}

const (
	badOpcode = "unknown opcode"
	badField  = "a field that the instruction does not use is not zero"
	badFP     = "r10 is read-only"
)

func (c *checker) alu(i *asm.Instruction) string {
	op, x := i.OpCode.ALUOp(), i.OpCode&asm.OpCode(asm.RegSource) != 0
	wide := i.OpCode.Class() == asm.ALU64Class
	if i.Dst == asm.R10 {
		return badFP
	}
	switch op {
	case asm.Neg:
		if x || i.Src != 0 || i.Constant != 0 || i.Offset != 0 {
			return badField
		}
		return ""
	case asm.Swap:
		switch {
		case x && wide:
			return badOpcode
		case i.Src != 0 || i.Offset != 0:
			return badField
		case i.Constant != 16 && i.Constant != 32 && i.Constant != 64:
			return fmt.Sprintf("no byte swap of %d bits", i.Constant)
		}
		return ""
	case asm.MovSX8, asm.MovSX16, asm.MovSX32:
		if bits := signBits[op]; !x || bits == 32 && !wide {
			return badVariant(bits)
		}
	default:
		if aluLowered[op] == opInvalid {
			return badOpcode
		}
	}
	switch {
	case i.Offset != 0 && (op == asm.Div || op == asm.Mod || op == asm.Mov):
		return badVariant(i.Offset)
	case i.Offset != 0, x && i.Constant != 0, !x && i.Src != 0:
		return badField
	}
	return ""
}

// signBits is how many bits of its source a sign-extending move takes, which its
// encoding has as the offset.
var signBits = map[asm.ALUOp]int16{asm.MovSX8: 8, asm.MovSX16: 16, asm.MovSX32: 32}

func badVariant(off int16) string { return fmt.Sprintf("no variant %d of this operation", off) }

// Kinds of 64-bit immediate without names in package asm (RFC 9669, section 5.4).
const (
	pseudoVarAddr  asm.Register = 3 // platform variable: rejected
	pseudoMapIdx   asm.Register = 5 // as asm.PseudoMapFD
	pseudoMapIdxVa asm.Register = 6 // as asm.PseudoMapValue
)

// mapImm decodes the reference of a 64-bit immediate to a map: its number, and
// whether it is the address of its first value, plus the offset in it.
func mapImm(i *asm.Instruction) (number int, value bool, off int, ok bool) {
	number, off = int(uint32(i.Constant)), int(uint64(i.Constant)>>32)
	switch i.Src {
	case asm.PseudoMapFD, pseudoMapIdx:
		return number, false, off, true
	case asm.PseudoMapValue, pseudoMapIdxVa:
		return number, true, off, true
	}
	return 0, false, 0, false
}

func (c *checker) imm64(pc int, i *asm.Instruction) string {
	switch i.OpCode.Mode() {
	case asm.AbsMode, asm.IndMode:
		return "the packet conformance group (legacy packet access) is not supported"
	}
	switch {
	case !i.OpCode.IsDWordLoad():
		return badOpcode
	case i.Dst == asm.R10:
		return badFP
	case i.Offset != 0:
		return badField
	}
	switch i.Src {
	case asm.R0:
		return ""
	case pseudoVarAddr:
		return "addresses of platform variables are not supported"
	case asm.PseudoFunc:
		return c.target("address of a function", target(i, pc))
	}
	n, value, off, ok := mapImm(i)
	switch {
	case !ok:
		return fmt.Sprintf("no kind %d of 64-bit immediate", uint8(i.Src))
	case n >= len(c.maps):
		return fmt.Sprintf("no map %d: the program has %d", n, len(c.maps))
	case !value && off != 0:
		return badField
	case !value:
		return ""
	}
	m := c.maps[n]
	switch {
	case m.spec.Kind != Array:
		return fmt.Sprintf("values of map %q have no fixed address: it is a %v", m.spec.Name, m.spec.Kind)
	case off >= int(m.spec.ValueSize):
		return fmt.Sprintf("offset %d is outside the %d bytes of a value of map %q", off, m.spec.ValueSize, m.spec.Name)
	}
	return ""
}

func (c *checker) load(i *asm.Instruction) string {
	switch i.OpCode.Mode() {
	case asm.MemMode:
	case asm.MemSXMode:
		if i.OpCode.Size() == asm.DWord {
			return badOpcode
		}
	default:
		return badOpcode
	}
	switch {
	case i.Dst == asm.R10:
		return badFP
	case i.Constant != 0:
		return badField
	}
	return stackAccess(i.Src, i)
}

func (c *checker) store(i *asm.Instruction) string {
	size := i.OpCode.Size().Sizeof()
	switch mode := i.OpCode.Mode(); {
	case i.OpCode.AtomicOp() != asm.InvalidAtomic:
		if size < 4 {
			return badOpcode
		}
		what := atomicOp(i)
		switch what {
		case asm.AddAtomic, asm.OrAtomic, asm.AndAtomic, asm.XorAtomic, asm.CmpXchg:
		case asm.FetchAdd, asm.FetchOr, asm.FetchAnd, asm.FetchXor, asm.Xchg:
			if i.Src == asm.R10 {
				return badFP
			}
		default:
			return fmt.Sprintf("no atomic operation %#x", uint32(what)>>8)
		}
		if int(i.Offset)%size != 0 && i.Dst == asm.R10 {
			return "an atomic operation on the stack is not aligned"
		}
	case mode != asm.MemMode:
		return badOpcode
	case i.OpCode.Class() == asm.StClass && i.Src != 0, i.OpCode.Class() == asm.StXClass && i.Constant != 0:
		return badField
	}
	return stackAccess(i.Dst, i)
}

// atomicOp returns the atomic operation of an instruction. The immediate encodes it,
// and package asm keeps only the bits that it knows.
func atomicOp(i *asm.Instruction) asm.AtomicOp {
	return i.OpCode.AtomicOp() | asm.AtomicOp(i.Constant<<8)
}

// stackAccess checks an access relative to the frame pointer.
func stackAccess(base asm.Register, i *asm.Instruction) string {
	if base != asm.R10 {
		return ""
	}
	size := i.OpCode.Size().Sizeof()
	if lo, hi := int(i.Offset), int(i.Offset)+size; lo < -FrameSize || hi > 0 {
		return fmt.Sprintf("stack access at r10%+d of %d bytes is outside the frame of %d bytes", lo, size, FrameSize)
	}
	return ""
}
