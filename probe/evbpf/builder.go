package evbpf

import (
	"math"
	"slices"
	"strconv"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// label stands for a place in a program; its number is an index in builder.places.
type label int

// builder collects the instructions of a program.
type builder struct {
	insns  asm.Instructions
	places []int // of each label, as an index in insns; -1 = not placed yet
	jumps  []jump
	cost   int64 // what loops can take from the budget, beside once each
	bytes  int   // that a call of a helper is about, at most
}

// jump is an instruction that goes to a label.
type jump struct {
	at int
	to label
}

func (b *builder) newLabel() label {
	b.places = append(b.places, -1)
	return label(len(b.places) - 1)
}

func (b *builder) place(l label) { b.places[l] = len(b.insns) }

func (b *builder) emit(insns ...asm.Instruction) { b.insns = append(b.insns, insns...) }

// link names the places that are jumped to: several labels may be at one.
func (b *builder) link() {
	for _, j := range b.jumps {
		to := b.places[j.to]
		name := "L" + strconv.Itoa(to)
		b.insns[j.at] = b.insns[j.at].WithReference(name)
		if b.insns[to].Symbol() == "" {
			b.insns[to] = b.insns[to].WithSymbol(name)
		}
	}
}

// once returns what is taken from the budget at most when all runs once that was emitted
// from index start on.
func (b *builder) once(start int) int64 {
	n := int64(b.insns[start:].Size() / asm.InstructionSize)
	for _, i := range b.insns[start:] {
		if i.IsBuiltinCall() {
			n += bpf.CallCost(bpf.Helper(i.Constant), b.bytes, nil)
		}
	}
	return n
}

// repeats notes that what was emitted since start can run n times.
func (b *builder) repeats(start, n int) { b.cost += int64(n) * b.once(start) }

// used reports whether something jumps to l.
func (b *builder) used(l label) bool {
	return slices.ContainsFunc(b.jumps, func(j jump) bool { return j.to == l })
}

func (b *builder) jumpTo(i asm.Instruction, to label) {
	b.jumps = append(b.jumps, jump{len(b.insns), to})
	b.emit(i)
}

// goTo jumps, however far it is.
func (b *builder) goTo(to label) { b.jumpTo(asm.LongJump(""), to) }

// jif jumps when the comparison of a register with a constant holds. It changes R2
// where that has more than 32 bits.
func (b *builder) jif(op asm.JumpOp, r asm.Register, v uint64, to label) {
	if int64(v) == int64(int32(v)) {
		b.jumpTo(op.Imm(r, int32(v), ""), to)
		return
	}
	b.emit(load64(asm.R2, v))
	b.jumpTo(op.Reg(r, asm.R2, ""), to)
}

// require goes on when the comparison of a register with a constant holds, and to
// otherwise, however far that is, when it does not.
func (b *builder) require(op asm.JumpOp, r asm.Register, v uint64, otherwise label) {
	on := b.newLabel()
	b.jif(op, r, v, on)
	b.goTo(otherwise)
	b.place(on)
}

// load64 sets a register to any constant.
func load64(r asm.Register, v uint64) asm.Instruction {
	if int64(v) == int64(int32(v)) {
		return asm.Mov.Imm(r, int32(v))
	}
	return asm.LoadImm(r, int64(v), asm.DWord)
}

// add adds any constant. It changes R2 where that has more than 32 bits.
func (b *builder) add(r asm.Register, v int64) {
	switch {
	case v == 0:
	case math.MinInt32 <= v && v <= math.MaxInt32:
		b.emit(asm.Add.Imm(r, int32(v)))
	default:
		b.emit(load64(asm.R2, uint64(v)), asm.Add.Reg(r, asm.R2))
	}
}

// and masks with any constant. It may change R2.
func (b *builder) and(r asm.Register, v uint64) {
	switch {
	case v == math.MaxUint64:
	case v <= math.MaxInt32:
		b.emit(asm.And.Imm(r, int32(v)))
	default:
		b.emit(load64(asm.R2, v), asm.And.Reg(r, asm.R2))
	}
}

// addr sets a register to base plus off.
func (b *builder) addr(r, base asm.Register, off int) {
	b.emit(asm.Mov.Reg(r, base))
	b.add(r, int64(off))
}

func call(h bpf.Helper) asm.Instruction { return asm.BuiltinFunc(h).Call() }

// sizes has the size of an access of so many bytes.
var sizes = map[int]asm.Size{1: asm.Byte, 2: asm.Half, 4: asm.Word, 8: asm.DWord}

// ld loads n bytes, without sign.
func ld(n int, dst, base asm.Register, off int) asm.Instruction {
	return asm.LoadMem(dst, base, int16(off), sizes[n])
}

// st stores the low n bytes of a register.
func st(n int, base asm.Register, off int, src asm.Register) asm.Instruction {
	return asm.StoreMem(base, int16(off), src, sizes[n])
}

// stK stores a constant. asm.StoreImm refuses 8 bytes; RFC 9669, 5.1, does not.
func stK(n int, base asm.Register, off int, v int32) asm.Instruction {
	return asm.Instruction{OpCode: asm.StoreImmOp(sizes[n]), Dst: base, Offset: int16(off), Constant: int64(v)}
}

// zero stores n zeros.
func (b *builder) zero(base asm.Register, off, n int) {
	for n > 0 {
		k := chunk(n)
		b.emit(stK(k, base, off, 0))
		off, n = off+k, n-k
	}
}

// chunk is the largest access of at most n bytes.
func chunk(n int) int {
	for _, k := range []int{8, 4, 2} {
		if n >= k {
			return k
		}
	}
	return 1
}

// bytesAt returns the little-endian number that s begins with, of k bytes.
func bytesAt(s string, k int) uint64 {
	v := uint64(0)
	for i := range k {
		v |= uint64(s[i]) << (8 * i)
	}
	return v
}
