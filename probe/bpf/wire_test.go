package bpf

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// This is the encoding of instructions once more, by RFC 9669, section 3, alone: tests
// write bytes, which package asm must read as that says.

// Opcode is the first byte of an instruction: class, and either operation and
// source or mode and size (RFC 9669, section 3).
type Opcode uint8

// Instruction classes, bits 0 to 2 of the opcode.
const (
	ClassLD    Opcode = 0
	ClassLDX   Opcode = 1
	ClassST    Opcode = 2
	ClassSTX   Opcode = 3
	ClassALU   Opcode = 4
	ClassJMP   Opcode = 5
	ClassJMP32 Opcode = 6
	ClassALU64 Opcode = 7

	classMask Opcode = 7
)

// SrcX is bit 3 of the opcode: the source operand of arithmetic and jumps is the source
// register, not the immediate.
const SrcX Opcode = 8

// Arithmetic operations, bits 4 to 7 of the opcode (RFC 9669, section 4.1).
const (
	OpAdd  Opcode = 0x00
	OpSub  Opcode = 0x10
	OpMul  Opcode = 0x20
	OpDiv  Opcode = 0x30 // offset 1: signed
	OpOr   Opcode = 0x40
	OpAnd  Opcode = 0x50
	OpLsh  Opcode = 0x60
	OpRsh  Opcode = 0x70
	OpNeg  Opcode = 0x80
	OpMod  Opcode = 0x90 // offset 1: signed
	OpXor  Opcode = 0xa0
	OpMov  Opcode = 0xb0 // offset 8, 16, 32: with sign
	OpArsh Opcode = 0xc0
	OpEnd  Opcode = 0xd0

	opMask Opcode = 0xf0
)

// Jumps, bits 4 to 7 of the opcode (RFC 9669, section 4.3).
const (
	OpJA   Opcode = 0x00
	OpJEQ  Opcode = 0x10
	OpJGT  Opcode = 0x20
	OpJGE  Opcode = 0x30
	OpJSET Opcode = 0x40
	OpJNE  Opcode = 0x50
	OpJSGT Opcode = 0x60
	OpJSGE Opcode = 0x70
	OpCall Opcode = 0x80
	OpExit Opcode = 0x90
	OpJLT  Opcode = 0xa0
	OpJLE  Opcode = 0xb0
	OpJSLT Opcode = 0xc0
	OpJSLE Opcode = 0xd0
)

// Sizes of loads and stores, bits 3 and 4 of the opcode.
const (
	SizeW  Opcode = 0x00
	SizeH  Opcode = 0x08
	SizeB  Opcode = 0x10
	SizeDW Opcode = 0x18
)

// Modes of loads and stores, bits 5 to 7 of the opcode.
const (
	ModeIMM    Opcode = 0x00
	ModeABS    Opcode = 0x20 // packet access: refused
	ModeIND    Opcode = 0x40 // packet access: refused
	ModeMEM    Opcode = 0x60
	ModeMEMSX  Opcode = 0x80
	ModeATOMIC Opcode = 0xc0

	modeMask Opcode = 0xe0
)

// Atomic operations, the immediate of an atomic store (RFC 9669, section 5.3).
const (
	AtomicAdd     = 0x00
	AtomicOr      = 0x40
	AtomicAnd     = 0x50
	AtomicXor     = 0xa0
	AtomicFetch   = 0x01 // flag: the old value goes to the source register
	AtomicXchg    = 0xe0 | AtomicFetch
	AtomicCmpXchg = 0xf0 | AtomicFetch
)

// Kinds of 64-bit immediate, the source field of OpLoadImm64 (RFC 9669,
// section 5.4).
const (
	ImmConst     Reg = 0
	ImmMapFD     Reg = 1 // map, by its number in the program's list
	ImmMapValue  Reg = 2 // address in the first value of a map; the offset is in the upper half
	ImmVarAddr   Reg = 3 // platform variable: refused
	ImmCodeAddr  Reg = 4 // address of a function: refused
	ImmMapIdx    Reg = 5 // as ImmMapFD
	ImmMapValIdx Reg = 6 // as ImmMapValue
)

// Kinds of call, the source field of OpCall (RFC 9669, section 4.3.1).
const (
	CallLocal Reg = 1 // function of the same program
	CallBTF   Reg = 2 // helper function by BTF ID: refused
)

// Opcodes with a single form.
const (
	OpLoadImm64 = ClassLD | ModeIMM | SizeDW // takes two slots
	OpGoto      = ClassJMP | OpJA            // 16-bit offset
	OpGotoL     = ClassJMP32 | OpJA          // 32-bit offset, in the immediate
	OpCallK     = ClassJMP | OpCall
	OpExitK     = ClassJMP | OpExit
)

// wireOf returns the bytes of a program. Registers are cut to their 4 bits and
// immediates to their width.
func wireOf(prog []Insn) []byte {
	b := make([]byte, 0, len(prog)*asm.InstructionSize)
	for pc := 0; pc < len(prog); pc++ {
		i := prog[pc]
		b = append(b, byte(i.Op), byte(i.Src)<<4|byte(i.Dst)&15)
		b = binary.LittleEndian.AppendUint16(b, uint16(i.Off))
		b = binary.LittleEndian.AppendUint32(b, uint32(i.Imm))
		if i.wide() && pc+1 < len(prog) {
			b = binary.LittleEndian.AppendUint64(b, uint64(i.Imm)&^0xffffffff)
			pc++
		}
	}
	return b
}

// Insn is one instruction slot. The second slot of a 64-bit immediate is the
// zero Insn; its bits are in the upper half of the first one's Imm.
type Insn struct {
	Op  Opcode
	Dst Reg // 4 bits in the encoding
	Src Reg // 4 bits in the encoding
	Off int16
	Imm int64 // 32 bits with sign, or all 64 of OpLoadImm64
}

// Class returns the instruction class.
func (i Insn) Class() Opcode { return i.Op & classMask }

// wide reports whether the instruction takes two slots.
func (i Insn) wide() bool { return i.Op == OpLoadImm64 }

// read is what package asm reads of a program.
func read(t testing.TB, prog ...Insn) asm.Instructions {
	t.Helper()
	p, err := Decode(wireOf(prog))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
