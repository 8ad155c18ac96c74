package bpf

import "github.com/cilium/ebpf/asm"

// opc is a lowered operation: the opcode, source, offset and immediate of an
// instruction are combined into one number, so that both back ends need a single
// switch. The index of an op is its instruction's slot.
type opc uint8

// op is a lowered instruction.
type op struct {
	code opc
	dst  uint8
	src  uint8
	size uint8 // bytes that a load, store or atomic operation moves
	off  int32 // displacement of a memory operand; for jumps and local calls the target's slot
	cost int32 // the cost of a jump back or a call
	imm  int64 // immediate, extended with sign; helper number; atomic operation
}

// Arithmetic has four forms: 64 bits with immediate, 64 with register, 32 with
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
	// Conditional jumps have the same four forms.
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
	opSingles // the rest has one form

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
	opLe16 // on a little-endian machine a truncation
	opLe32
	opNop // le64
	opSwap16
	opSwap32
	opSwap64
	opJa
	opCall
	opCallLocal
	opMayGoto // jumps when the budget is nearly used up
	opExit
	opMissing // must be unreachable
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
)

// Atomic operations, the immediate of opAtomic (RFC 9669, section 5.3): the old
// value goes to the source register with atomicFetch.
const (
	atomicAdd     = int64(asm.AddAtomic) >> 8
	atomicOr      = int64(asm.OrAtomic) >> 8
	atomicAnd     = int64(asm.AndAtomic) >> 8
	atomicXor     = int64(asm.XorAtomic) >> 8
	atomicXchg    = int64(asm.Xchg) >> 8
	atomicCmpXchg = int64(asm.CmpXchg) >> 8
	atomicFetch   = 1
)

var aluLowered = map[asm.ALUOp]opc{
	asm.Add: opAdd, asm.Sub: opSub, asm.Mul: opMul, asm.Div: opDiv, asm.SDiv: opSdiv, asm.Or: opOr, asm.And: opAnd, asm.LSh: opLsh,
	asm.RSh: opRsh, asm.Mod: opMod, asm.SMod: opSmod, asm.Xor: opXor, asm.Mov: opMov, asm.ArSh: opArsh,
}

var jumpLowered = map[asm.JumpOp]opc{
	asm.JEq: opJeq, asm.JNE: opJne, asm.JGT: opJgt, asm.JGE: opJge, asm.JLT: opJlt, asm.JLE: opJle,
	asm.JSGT: opJsgt, asm.JSGE: opJsge, asm.JSLT: opJslt, asm.JSLE: opJsle, asm.JSet: opJset,
}

// lower translates a checked program.
func lower(prog slots, fns *functions, kind Kind) []op {
	ops := make([]op, len(prog))
	for pc, i := range prog {
		if i != nil {
			if ops[pc] = lowerInsn(pc, i, fns); i.IsBuiltinCall() && unavailable(i, kind) != "" {
				ops[pc].code = opMissing
			}
		}
	}
	return ops
}

func lowerInsn(pc int, i *asm.Instruction, fns *functions) op {
	o := op{dst: uint8(i.Dst), src: uint8(i.Src), off: int32(i.Offset), imm: i.Constant}
	if s := i.OpCode.Size(); s != asm.InvalidSize {
		o.size = uint8(s.Sizeof())
	}
	switch class := i.OpCode.Class(); class {
	case asm.ALUClass, asm.ALU64Class:
		o.code = lowerALU(i, class == asm.ALU64Class)
		if class == asm.ALUClass && i.OpCode.ALUOp() != asm.Swap {
			o.imm = int64(uint32(i.Constant))
		}
	case asm.JumpClass, asm.Jump32Class:
		lowerJump(&o, pc, i, fns)
	case asm.LdClass:
		o.code = opLoadImm
		if n, value, off, ok := mapImm(i); ok && value {
			o.imm = int64(segPointer(segMaps+n, 0, off))
		} else if ok {
			o.imm = int64(mapHandle(n))
		} else if i.IsLoadOfFunctionPointer() {
			o.imm = int64(funcHandle(target(i, pc)))
		}
	case asm.LdXClass:
		o.code = map[uint8]opc{1: opLoad8, 2: opLoad16, 4: opLoad32, 8: opLoad64}[o.size]
		if i.OpCode.Mode() == asm.MemSXMode {
			o.code = map[uint8]opc{1: opLoads8, 2: opLoads16, 4: opLoads32}[o.size]
		}
	case asm.StClass:
		o.code = opStoreK
		unused := 64 - 8*o.size
		o.imm = i.Constant << unused >> unused
	case asm.StXClass:
		o.code = opStoreX
		if i.OpCode.Mode() == asm.AtomicMode {
			o.code, o.imm = opAtomic, int64(atomicOp(i)>>8)
		}
	}
	return o
}

func lowerALU(i *asm.Instruction, long bool) opc {
	op, x := i.OpCode.ALUOp(), i.OpCode&asm.OpCode(asm.RegSource) != 0
	switch op {
	case asm.Neg:
		if long {
			return opNeg64
		}
		return opNeg32
	case asm.Swap:
		if long || x {
			return map[int64]opc{16: opSwap16, 32: opSwap32, 64: opSwap64}[i.Constant]
		}
		return map[int64]opc{16: opLe16, 32: opLe32, 64: opNop}[i.Constant]
	case asm.MovSX8, asm.MovSX16, asm.MovSX32:
		if long {
			return map[asm.ALUOp]opc{asm.MovSX8: opMovs8, asm.MovSX16: opMovs16, asm.MovSX32: opMovs32}[op]
		}
		return map[asm.ALUOp]opc{asm.MovSX8: opMovs8w, asm.MovSX16: opMovs16w}[op]
	}
	return aluLowered[op] + form(long, x)
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

func lowerJump(o *op, pc int, i *asm.Instruction, fns *functions) {
	switch op := i.OpCode.JumpOp(); {
	case op == asm.Exit:
		o.code = opExit
		return
	case missingReason(i) != "":
		o.code = opMissing
		return
	case i.IsFunctionCall():
		o.code = opCallLocal
		o.off = int32(target(i, pc))
		o.cost = int32(fns.size(int(o.off)))
		return
	case op == asm.Call:
		if o.code = opCall; helperByID[Helper(i.Constant)] != nil {
			o.cost = helperByID[Helper(i.Constant)].cost
		}
		return
	case op == asm.Ja:
		o.code = opJa
	case op == mayGoto:
		o.code = opMayGoto
	default:
		long := i.OpCode.Class() == asm.JumpClass
		x := i.OpCode.Source() == asm.RegSource
		o.code = jumpLowered[op] + form(long, x)
		if !long && !x {
			o.imm = int64(uint32(i.Constant))
		}
	}
	t := target(i, pc)
	o.off = int32(t)
	if t <= pc {
		o.cost = int32(pc - t + 1)
	}
}
