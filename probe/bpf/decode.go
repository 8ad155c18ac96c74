package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxSlots bounds the length of a program in instruction slots.
const MaxSlots = 1 << 16

// Errors of Decode.
var (
	ErrTruncated = errors.New("not a whole number of instructions")
	ErrTooLong   = fmt.Errorf("more than %d instruction slots", MaxSlots)
	ErrEmpty     = errors.New("no instructions")
)

// Decode splits a program, little endian, into instruction slots. It does not
// judge them: Check does. Errors are ErrEmpty, ErrTruncated (also when the
// second slot of a 64-bit immediate is missing or is not one) and ErrTooLong.
func Decode(b []byte) ([]Insn, error) {
	switch {
	case len(b) == 0:
		return nil, fmt.Errorf("decode program: %w", ErrEmpty)
	case len(b)%SlotSize != 0:
		return nil, fmt.Errorf("decode program of %d bytes: %w", len(b), ErrTruncated)
	case len(b)/SlotSize > MaxSlots:
		return nil, fmt.Errorf("decode program of %d bytes: %w", len(b), ErrTooLong)
	}
	prog := make([]Insn, len(b)/SlotSize)
	for pc := 0; pc < len(prog); pc++ {
		i := decodeSlot(b[pc*SlotSize:])
		if i.wide() {
			if pc+1 == len(prog) {
				return nil, fmt.Errorf("decode instruction %d: 64-bit immediate: %w", pc, ErrTruncated)
			}
			half := decodeSlot(b[(pc+1)*SlotSize:])
			if half.Op != opSecondHalf || half.Dst != 0 || half.Src != 0 || half.Off != 0 {
				return nil, fmt.Errorf("decode instruction %d: second half of a 64-bit immediate has reserved bits set: %w", pc, ErrTruncated)
			}
			i.Imm = int64(uint64(uint32(i.Imm)) | uint64(half.Imm)<<32)
			prog[pc] = i
			pc++ // and leave the zero Insn there
			continue
		}
		prog[pc] = i
	}
	return prog, nil
}

func decodeSlot(b []byte) Insn {
	return Insn{
		Op:  Opcode(b[0]),
		Dst: Reg(b[1] & 15),
		Src: Reg(b[1] >> 4),
		Off: int16(binary.LittleEndian.Uint16(b[2:])),
		Imm: int64(int32(binary.LittleEndian.Uint32(b[4:]))),
	}
}

// Encode is the inverse of Decode. Registers are cut to their 4 bits and
// immediates to their width.
func Encode(prog []Insn) []byte {
	b := make([]byte, 0, len(prog)*SlotSize)
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
