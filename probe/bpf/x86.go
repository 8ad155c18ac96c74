package bpf

import (
	"encoding/binary"
	"math/bits"

	"github.com/guestprobe/guestprobe/probe/insn"
)

type reg64 = insn.Reg64

// noReg stands for "no index register".
const noReg reg64 = 0xff

// x86asm assembles x86-64 code that is the same wherever it is put. Encodings are
// those of SDM Vol. 2; all jumps have 32-bit displacements.
type x86asm struct {
	b      []byte
	labels []int // offset of each label, -1 until it is placed
	fixes  []fix
	used   uint16 // registers that were written
}

// fix is a 32-bit displacement that waits for its label.
type fix struct {
	at    int // where it is; it counts from its end
	label label
}

type label int

func (a *x86asm) newLabel() label {
	a.labels = append(a.labels, -1)
	return label(len(a.labels) - 1)
}

func (a *x86asm) place(l label) { a.labels[l] = len(a.b) }

// link fills in all displacements.
func (a *x86asm) link() {
	for _, f := range a.fixes {
		to := a.labels[f.label]
		if to < 0 {
			panic("BUG: label was never placed")
		}
		binary.LittleEndian.PutUint32(a.b[f.at:], uint32(to-(f.at+4)))
	}
}

func (a *x86asm) emit(b ...byte)      { a.b = append(a.b, b...) }
func (a *x86asm) imm32(v int32)       { a.b = binary.LittleEndian.AppendUint32(a.b, uint32(v)) }
func (a *x86asm) writes(r reg64)      { a.used |= 1 << r }
func (a *x86asm) jump32(l label)      { a.fixes = append(a.fixes, fix{len(a.b), l}); a.imm32(0) }
func (a *x86asm) jmp(l label)         { a.emit(0xe9); a.jump32(l) }
func (a *x86asm) callTo(l label)      { a.emit(0xe8); a.jump32(l) }
func (a *x86asm) jcc(c cond, l label) { a.emit(0x0f, 0x80|byte(c)); a.jump32(l) }
func (a *x86asm) ret()                { a.emit(0xc3) }

// cond is a condition, the low bits of Jcc.
type cond byte

const (
	condB  cond = 0x2 // below, unsigned; carry
	condAE cond = 0x3
	condE  cond = 0x4
	condNE cond = 0x5
	condBE cond = 0x6
	condA  cond = 0x7
	condS  cond = 0x8 // negative
	condL  cond = 0xc // less, signed
	condGE cond = 0xd
	condLE cond = 0xe
	condG  cond = 0xf
)

func (c cond) not() cond { return c ^ 1 }

// operand is memory at base + index*scale + disp.
type operand struct {
	base, index reg64
	scale       byte // 1 or 8
	disp        int32
}

func at(base reg64, disp int32) operand { return operand{base, noReg, 1, disp} }

func (o operand) plus(d int32) operand { o.disp += d; return o }

// op appends [prefix] [REX] opcode ModRM for a register and a memory operand.
// w selects 64 bits. bytereg forces the REX that makes SPL to DIL of 4 to 7.
func (a *x86asm) memOp(w bool, opcode []byte, r reg64, o operand, bytereg bool) {
	rex := byte(0x40) | (byte(r)>>3)<<2 | byte(o.base)>>3
	if w {
		rex |= 8
	}
	if o.index != noReg {
		rex |= (byte(o.index) >> 3) << 1
	}
	if rex != 0x40 || bytereg && r >= 4 {
		a.emit(rex)
	}
	a.emit(opcode...)
	short := o.disp >= -128 && o.disp < 128
	mod := byte(0x80)
	if short {
		mod = 0x40
	}
	if o.index != noReg || o.base&7 == insn.RSP {
		index := byte(4) // none
		if o.index != noReg {
			index = byte(o.index) & 7
		}
		a.emit(mod|byte(r&7)<<3|4, byte(bits.TrailingZeros8(o.scale))<<6|index<<3|byte(o.base&7))
	} else {
		a.emit(mod | byte(r&7)<<3 | byte(o.base&7))
	}
	if short {
		a.emit(byte(o.disp))
	} else {
		a.imm32(o.disp)
	}
}

// regOp appends [REX] opcode ModRM for two registers.
func (a *x86asm) regOp(w bool, opcode []byte, r, rm reg64, bytereg bool) {
	rex := byte(0x40) | (byte(r)>>3)<<2 | byte(rm)>>3
	if w {
		rex |= 8
	}
	if rex != 0x40 || bytereg && (r >= 4 || rm >= 4) {
		a.emit(rex)
	}
	a.emit(opcode...)
	a.emit(0xc0 | byte(r&7)<<3 | byte(rm&7))
}

// Two-operand arithmetic, numbered as in the opcode map.
type alu2 byte

const (
	aluAdd alu2 = 0
	aluOr  alu2 = 1
	aluAdc alu2 = 2
	aluAnd alu2 = 4
	aluSub alu2 = 5
	aluXor alu2 = 6
	aluCmp alu2 = 7
)

// rr appends an operation on two registers.
func (a *x86asm) rr(w bool, op alu2, dst, src reg64) {
	a.writes(dst)
	a.regOp(w, []byte{byte(op)<<3 | 1}, src, dst, false)
}

// ri appends an operation on a register and an immediate.
func (a *x86asm) ri(w bool, op alu2, dst reg64, v int32) {
	a.writes(dst)
	if v >= -128 && v < 128 {
		a.regOp(w, []byte{0x83}, reg64(op), dst, false)
		a.emit(byte(v))
		return
	}
	a.regOp(w, []byte{0x81}, reg64(op), dst, false)
	a.imm32(v)
}

// rm appends an operation on a register and memory.
func (a *x86asm) rm(w bool, op alu2, dst reg64, src operand) {
	a.writes(dst)
	a.memOp(w, []byte{byte(op)<<3 | 3}, dst, src, false)
}

// mi appends an operation on memory and an immediate.
func (a *x86asm) mi(w bool, op alu2, dst operand, v int32) {
	if v >= -128 && v < 128 {
		a.memOp(w, []byte{0x83}, reg64(op), dst, false)
		a.emit(byte(v))
		return
	}
	a.memOp(w, []byte{0x81}, reg64(op), dst, false)
	a.imm32(v)
}

func (a *x86asm) mov(w bool, dst, src reg64) {
	a.writes(dst)
	a.regOp(w, []byte{0x89}, src, dst, false)
}

func (a *x86asm) movImm(dst reg64, v uint64) {
	a.writes(dst)
	if v == 0 {
		a.rr(false, aluXor, dst, dst)
		return
	}
	a.b = insn.AppendMovImm(a.b, dst, v)
}

func (a *x86asm) lea(w bool, dst reg64, o operand) {
	a.writes(dst)
	a.memOp(w, []byte{0x8d}, dst, o, false)
}

// load appends a load of size bytes, extended with zeros.
func (a *x86asm) load(size int, dst reg64, o operand) {
	a.writes(dst)
	switch size {
	case 1:
		a.memOp(false, []byte{0x0f, 0xb6}, dst, o, false)
	case 2:
		a.memOp(false, []byte{0x0f, 0xb7}, dst, o, false)
	default:
		a.memOp(size == 8, []byte{0x8b}, dst, o, false)
	}
}

// loadSigned appends a load of size bytes, extended to 64 bits with the sign.
func (a *x86asm) loadSigned(size int, dst reg64, o operand) {
	a.writes(dst)
	switch size {
	case 1:
		a.memOp(true, []byte{0x0f, 0xbe}, dst, o, false)
	case 2:
		a.memOp(true, []byte{0x0f, 0xbf}, dst, o, false)
	default:
		a.memOp(true, []byte{0x63}, dst, o, false)
	}
}

// store appends a store of the low size bytes of src.
func (a *x86asm) store(size int, o operand, src reg64) {
	switch size {
	case 1:
		a.memOp(false, []byte{0x88}, src, o, true)
	case 2:
		a.emit(0x66)
		a.memOp(false, []byte{0x89}, src, o, false)
	default:
		a.memOp(size == 8, []byte{0x89}, src, o, false)
	}
}

// storeImm appends a store of an immediate, extended with its sign to 64 bits.
func (a *x86asm) storeImm(size int, o operand, v int32) {
	switch size {
	case 1:
		a.memOp(false, []byte{0xc6}, 0, o, false)
		a.emit(byte(v))
	case 2:
		a.emit(0x66)
		a.memOp(false, []byte{0xc7}, 0, o, false)
		a.emit(byte(v), byte(v>>8))
	default:
		a.memOp(size == 8, []byte{0xc7}, 0, o, false)
		a.imm32(v)
	}
}

func (a *x86asm) test(w bool, x, y reg64) { a.regOp(w, []byte{0x85}, y, x, false) }

func (a *x86asm) testImm(w bool, x reg64, v int32) {
	a.regOp(w, []byte{0xf7}, 0, x, false)
	a.imm32(v)
}

// Group 2 and 3 operations by their ModRM.reg.
const (
	shiftLeft  = 4
	shiftRight = 5
	shiftSar   = 7

	unaryNot  = 2
	unaryNeg  = 3
	unaryMul  = 4
	unaryDiv  = 6
	unaryIdiv = 7
)

func (a *x86asm) shiftImm(w bool, kind reg64, dst reg64, n byte) {
	a.writes(dst)
	a.regOp(w, []byte{0xc1}, kind, dst, false)
	a.emit(n)
}

func (a *x86asm) shiftCL(w bool, kind reg64, dst reg64) {
	a.writes(dst)
	a.regOp(w, []byte{0xd3}, kind, dst, false)
}

func (a *x86asm) unary(w bool, kind reg64, dst reg64) {
	a.writes(dst)
	a.regOp(w, []byte{0xf7}, kind, dst, false)
}

func (a *x86asm) imul(w bool, dst, src reg64) {
	a.writes(dst)
	a.regOp(w, []byte{0x0f, 0xaf}, dst, src, false)
}

func (a *x86asm) imulMem(dst reg64, o operand) {
	a.writes(dst)
	a.memOp(true, []byte{0x0f, 0xaf}, dst, o, false)
}

func (a *x86asm) imulImm(w bool, dst, src reg64, v int32) {
	a.writes(dst)
	a.regOp(w, []byte{0x69}, dst, src, false)
	a.imm32(v)
}

func (a *x86asm) push(r reg64) { a.b = insn.AppendPush(a.b, r) }
func (a *x86asm) pop(r reg64)  { a.b = insn.AppendPop(a.b, r) }

// locked appends a locked operation with a register operand. opcode is one of
// the lock* constants.
func (a *x86asm) locked(w bool, opcode []byte, o operand, r reg64) {
	a.emit(0xf0)
	a.memOp(w, opcode, r, o, false)
}

var (
	lockXadd    = []byte{0x0f, 0xc1}
	lockCmpxchg = []byte{0x0f, 0xb1}
)

// lockAddImm appends lock add $v, o with 64 bits.
func (a *x86asm) lockAddImm(o operand, v int32) {
	a.emit(0xf0)
	a.mi(true, aluAdd, o, v)
}
