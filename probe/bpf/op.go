package bpf

// opc is a lowered operation: what is spread over opcode, source, offset and
// immediate in an instruction is one number here, so that both back ends
// switch once. An op stands at the index of its instruction's slot.
type opc uint8

// op is a lowered instruction.
type op struct {
	code opc
	dst  uint8
	src  uint8
	size uint8 // bytes that a load, store or atomic operation moves
	off  int32 // displacement of a memory operand; for jumps and local calls the target's slot
	cost int32 // what a jump back or a local call takes from the budget
	imm  int64 // immediate, extended with sign; helper number; atomic operation
}

// Arithmetic comes in fours: 64 bits with immediate, 64 with register, 32 with
// immediate, 32 with register.
const (
	opInvalid opc = 4 * iota
	opAdd
	opSub
	opMul
	opDiv
	opSdiv
	opOr
	opAnd
	opLsh
	opRsh
	opMod
	opSmod
	opXor
	opMov
	opArsh
	// Conditional jumps come in the same fours.
	opJeq
	opJne
	opJgt
	opJge
	opJlt
	opJle
	opJsgt
	opJsge
	opJslt
	opJsle
	opJset
	opSingles // the rest comes one by one

	form64K opc = 0
	form64X opc = 1
	form32K opc = 2
	form32X opc = 3
)

const (
	opNeg64 opc = opSingles + iota
	opNeg32
	opMovs8 // 64 bits, with sign, from 8, 16, 32
	opMovs16
	opMovs32
	opMovs8w // 32 bits
	opMovs16w
	opLe16 // on a little-endian machine a cut
	opLe32
	opNop // le64
	opSwap16
	opSwap32
	opSwap64
	opJa
	opCall
	opCallLocal
	opExit
	opLoadImm // 64-bit immediate, map handle or address; the next slot is skipped
	opLoad8
	opLoad16
	opLoad32
	opLoad64
	opLoads8
	opLoads16
	opLoads32
	opStoreK // of src's size
	opStoreX
	opAtomic

	numOpcodes
)

var aluLowered = map[Opcode]opc{
	OpAdd: opAdd, OpSub: opSub, OpMul: opMul, OpDiv: opDiv, OpOr: opOr, OpAnd: opAnd, OpLsh: opLsh,
	OpRsh: opRsh, OpMod: opMod, OpXor: opXor, OpMov: opMov, OpArsh: opArsh,
}

var jumpLowered = map[Opcode]opc{
	OpJEQ: opJeq, OpJNE: opJne, OpJGT: opJgt, OpJGE: opJge, OpJLT: opJlt, OpJLE: opJle,
	OpJSGT: opJsgt, OpJSGE: opJsge, OpJSLT: opJslt, OpJSLE: opJsle, OpJSET: opJset,
}

// lower translates a checked program. maps are those that its immediates name.
func lower(prog []Insn, fns *functions) []op {
	ops := make([]op, len(prog))
	for pc, i := range prog {
		ops[pc] = lowerInsn(prog, pc, i, fns)
	}
	return ops
}

func lowerInsn(prog []Insn, pc int, i Insn, fns *functions) op {
	o := op{dst: uint8(i.Dst), src: uint8(i.Src), off: int32(i.Off), imm: i.Imm, size: uint8(i.size())}
	switch i.Class() {
	case ClassALU, ClassALU64:
		o.code = lowerALU(i)
		if i.Op&opMask != OpEnd && i.Class() == ClassALU && i.Op&SrcX == 0 {
			o.imm = int64(uint32(i.Imm))
		}
	case ClassJMP, ClassJMP32:
		lowerJump(&o, prog, pc, i, fns)
	case ClassLD:
		if !i.wide() {
			break // second half
		}
		o.code = opLoadImm
		switch i.Src {
		case ImmMapFD, ImmMapIdx:
			o.imm = int64(mapHandle(int(uint32(i.Imm))))
		case ImmMapValue, ImmMapValIdx:
			o.imm = int64(segPointer(segMaps+int(uint32(i.Imm)), 0, int(uint64(i.Imm)>>32)))
		}
	case ClassLDX:
		o.code = map[uint8]opc{1: opLoad8, 2: opLoad16, 4: opLoad32, 8: opLoad64}[o.size]
		if i.Op&modeMask == ModeMEMSX {
			o.code = map[uint8]opc{1: opLoads8, 2: opLoads16, 4: opLoads32}[o.size]
		}
	case ClassST:
		o.code = opStoreK
		unused := 64 - 8*o.size
		o.imm = i.Imm << unused >> unused
	case ClassSTX:
		o.code = opStoreX
		if i.Op&modeMask == ModeATOMIC {
			o.code = opAtomic
		}
	}
	return o
}

func lowerALU(i Insn) opc {
	long, x := i.Class() == ClassALU64, i.Op&SrcX != 0
	switch i.Op & opMask {
	case OpNeg:
		if long {
			return opNeg64
		}
		return opNeg32
	case OpEnd:
		if long || x {
			return map[int64]opc{16: opSwap16, 32: opSwap32, 64: opSwap64}[i.Imm]
		}
		return map[int64]opc{16: opLe16, 32: opLe32, 64: opNop}[i.Imm]
	}
	if i.Op&opMask == OpMov && i.Off != 0 {
		if long {
			return map[int16]opc{8: opMovs8, 16: opMovs16, 32: opMovs32}[i.Off]
		}
		return map[int16]opc{8: opMovs8w, 16: opMovs16w}[i.Off]
	}
	c := aluLowered[i.Op&opMask]
	if i.Off == 1 {
		switch c {
		case opDiv:
			c = opSdiv
		case opMod:
			c = opSmod
		}
	}
	return c + form(long, x)
}

func form(long, x bool) opc {
	f := form64K
	if !long {
		f = form32K
	}
	if x {
		f++
	}
	return f
}

func lowerJump(o *op, prog []Insn, pc int, i Insn, fns *functions) {
	switch {
	case i.Op == OpExitK:
		o.code = opExit
		return
	case i.Op == OpCallK && i.Src == CallHelper:
		o.code = opCall
		return
	case i.Op == OpCallK:
		o.code = opCallLocal
		o.off = int32(i.target(pc))
		o.cost = int32(fns.size(int(o.off)))
		return
	case i.Op == OpGoto, i.Op == OpGotoL:
		o.code = opJa
	default:
		o.code = jumpLowered[i.Op&opMask] + form(i.Class() == ClassJMP, i.Op&SrcX != 0)
		if i.Class() == ClassJMP32 && i.Op&SrcX == 0 {
			o.imm = int64(uint32(i.Imm))
		}
	}
	t := i.target(pc)
	o.off = int32(t)
	if t <= pc {
		o.cost = int32(pc - t + 1)
	}
}
