package bpfgen

import (
	"math"
	"slices"
	"strconv"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Label stands for a place in a program; its number is an index in Builder.places.
type Label int

// Builder collects the instructions of a program.
type Builder struct {
	Insns  asm.Instructions
	places []int // of each label, as an index in Insns; -1 = not placed yet
	jumps  []jump
	Cost   int64 // what loops can take from the budget, beside once each
	Bytes  int   // that a call of a helper is about, at most
}

// jump is an instruction that goes to a label.
type jump struct {
	at int
	to Label
}

// NewLabel makes a label that has no place yet.
func (b *Builder) NewLabel() Label {
	b.places = append(b.places, -1)
	return Label(len(b.places) - 1)
}

// Place puts a label where the next instruction will be.
func (b *Builder) Place(l Label) { b.places[l] = len(b.Insns) }

// Emit appends instructions.
func (b *Builder) Emit(insns ...asm.Instruction) { b.Insns = append(b.Insns, insns...) }

// Link names the places that are jumped to: several labels may be at one.
func (b *Builder) Link() {
	for _, j := range b.jumps {
		to := b.places[j.to]
		name := "L" + strconv.Itoa(to)
		b.Insns[j.at] = b.Insns[j.at].WithReference(name)
		if b.Insns[to].Symbol() == "" {
			b.Insns[to] = b.Insns[to].WithSymbol(name)
		}
	}
}

// CountOnce returns the largest cost, in steps of the budget, of running the instructions from
// index start on once.
func (b *Builder) CountOnce(start int) int64 {
	n := int64(b.Insns[start:].Size() / asm.InstructionSize)
	for _, i := range b.Insns[start:] {
		if i.IsBuiltinCall() {
			n += bpf.CallCost(bpf.Helper(i.Constant), b.Bytes, nil)
		}
	}
	return n
}

// NoteRepeats notes that the instructions from index start on can run n times.
func (b *Builder) NoteRepeats(start, n int) { b.Cost += int64(n) * b.CountOnce(start) }

// Used reports whether something jumps to l.
func (b *Builder) Used(l Label) bool {
	return slices.ContainsFunc(b.jumps, func(j jump) bool { return j.to == l })
}

// JumpTo appends an instruction that jumps to a label.
func (b *Builder) JumpTo(i asm.Instruction, to Label) {
	b.jumps = append(b.jumps, jump{len(b.Insns), to})
	b.Emit(i)
}

// GoTo jumps, however far it is.
func (b *Builder) GoTo(to Label) { b.JumpTo(asm.LongJump(""), to) }

// If jumps when the comparison of a register with a constant holds. It changes R2
// where that has more than 32 bits.
func (b *Builder) If(op asm.JumpOp, r asm.Register, v uint64, to Label) {
	if int64(v) == int64(int32(v)) {
		b.JumpTo(op.Imm(r, int32(v), ""), to)
		return
	}
	b.Emit(Const(asm.R2, v))
	b.JumpTo(op.Reg(r, asm.R2, ""), to)
}

// Require continues if the comparison of a register with a constant holds, and jumps to
// otherwise, at any distance, if it does not.
func (b *Builder) Require(op asm.JumpOp, r asm.Register, v uint64, otherwise Label) {
	on := b.NewLabel()
	b.If(op, r, v, on)
	b.GoTo(otherwise)
	b.Place(on)
}

// Const sets a register to any constant.
func Const(r asm.Register, v uint64) asm.Instruction {
	if int64(v) == int64(int32(v)) {
		return asm.Mov.Imm(r, int32(v))
	}
	return asm.LoadImm(r, int64(v), asm.DWord)
}

// Add adds any constant. It changes R2 where that has more than 32 bits.
func (b *Builder) Add(r asm.Register, v int64) {
	switch {
	case v == 0:
	case math.MinInt32 <= v && v <= math.MaxInt32:
		b.Emit(asm.Add.Imm(r, int32(v)))
	default:
		b.Emit(Const(asm.R2, uint64(v)), asm.Add.Reg(r, asm.R2))
	}
}

// And masks with any constant. It may change R2.
func (b *Builder) And(r asm.Register, v uint64) {
	switch {
	case v == math.MaxUint64:
	case v <= math.MaxInt32:
		b.Emit(asm.And.Imm(r, int32(v)))
	default:
		b.Emit(Const(asm.R2, v), asm.And.Reg(r, asm.R2))
	}
}

// Addr sets a register to base plus off.
func (b *Builder) Addr(r, base asm.Register, off int) {
	b.Emit(asm.Mov.Reg(r, base))
	b.Add(r, int64(off))
}

// Call calls a helper.
func Call(h bpf.Helper) asm.Instruction { return asm.BuiltinFunc(h).Call() }

// sizes has the size of an access, by its bytes.
var sizes = map[int]asm.Size{1: asm.Byte, 2: asm.Half, 4: asm.Word, 8: asm.DWord}

// Load loads n bytes, without sign.
func Load(n int, dst, base asm.Register, off int) asm.Instruction {
	return asm.LoadMem(dst, base, int16(off), sizes[n])
}

// Store stores the low n bytes of a register.
func Store(n int, base asm.Register, off int, src asm.Register) asm.Instruction {
	return asm.StoreMem(base, int16(off), src, sizes[n])
}

// StoreConst stores a constant. asm.StoreImm refuses 8 bytes; RFC 9669, 5.1, does not.
func StoreConst(n int, base asm.Register, off int, v int32) asm.Instruction {
	return asm.Instruction{OpCode: asm.StoreImmOp(sizes[n]), Dst: base, Offset: int16(off), Constant: int64(v)}
}

// Zero stores n zeros.
func (b *Builder) Zero(base asm.Register, off, n int) {
	for n > 0 {
		k := Chunk(n)
		b.Emit(StoreConst(k, base, off, 0))
		off, n = off+k, n-k
	}
}

// Chunk is the largest access of at most n bytes.
func Chunk(n int) int {
	for _, k := range []int{8, 4, 2} {
		if n >= k {
			return k
		}
	}
	return 1
}

// BytesAt returns the little-endian number that s begins with, of k bytes.
func BytesAt(s string, k int) uint64 {
	v := uint64(0)
	for i := range k {
		v |= uint64(s[i]) << (8 * i)
	}
	return v
}
