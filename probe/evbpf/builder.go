package evbpf

import (
	"math"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// label stands for an instruction slot; its number is an index in builder.slots.
type label int

// builder collects the instructions of a program.
type builder struct {
	insns []bpf.Insn
	slots []int // of each label; -1 = not placed yet
	jumps []struct {
		at int
		to label
	}
	cost int64 // what loops can take from the budget, beside one slot each
}

func (b *builder) newLabel() label {
	b.slots = append(b.slots, -1)
	return label(len(b.slots) - 1)
}

func (b *builder) place(l label) { b.slots[l] = len(b.insns) }

func (b *builder) emit(i bpf.Insn) { b.insns = append(b.insns, i) }

// link resolves the jumps; false when one is too far.
func (b *builder) link() bool {
	for _, j := range b.jumps {
		off := b.slots[j.to] - j.at - 1
		i := &b.insns[j.at]
		if i.Op == bpf.OpGotoL {
			i.Imm = int64(off)
			continue
		}
		if off != int(int16(off)) {
			return false
		}
		i.Off = int16(off)
	}
	return len(b.insns) <= bpf.MaxSlots
}

func (b *builder) jumpTo(i bpf.Insn, to label) {
	b.jumps = append(b.jumps, struct {
		at int
		to label
	}{len(b.insns), to})
	b.emit(i)
}

func (b *builder) goTo(to label) { b.jumpTo(bpf.Insn{Op: bpf.OpGotoL}, to) }

// jif jumps when the comparison of a register with a constant holds.
func (b *builder) jif(op bpf.Opcode, r bpf.Reg, v uint64, to label) {
	if int64(v) == int64(int32(v)) {
		b.jumpTo(bpf.Insn{Op: bpf.ClassJMP | op, Dst: r, Imm: int64(v)}, to)
		return
	}
	b.load64(bpf.R2, v)
	b.jumpTo(bpf.Insn{Op: bpf.ClassJMP | op | bpf.SrcX, Dst: r, Src: bpf.R2}, to)
}

// aluK applies a constant.
func (b *builder) aluK(op bpf.Opcode, r bpf.Reg, v int32) {
	b.emit(bpf.Insn{Op: bpf.ClassALU64 | op, Dst: r, Imm: int64(v)})
}

// alu applies a register.
func (b *builder) alu(op bpf.Opcode, dst, src bpf.Reg) {
	b.emit(bpf.Insn{Op: bpf.ClassALU64 | op | bpf.SrcX, Dst: dst, Src: src})
}

func (b *builder) mov(dst, src bpf.Reg) { b.alu(bpf.OpMov, dst, src) }

// load64 sets a register to any constant.
func (b *builder) load64(r bpf.Reg, v uint64) {
	if int64(v) == int64(int32(v)) {
		b.aluK(bpf.OpMov, r, int32(v))
		return
	}
	b.emit(bpf.Insn{Op: bpf.OpLoadImm64, Dst: r, Imm: int64(v)})
	b.emit(bpf.Insn{})
}

// add adds any constant. It changes R2 where that has more than 32 bits.
func (b *builder) add(r bpf.Reg, v int64) {
	switch {
	case v == 0:
	case math.MinInt32 <= v && v <= math.MaxInt32:
		b.aluK(bpf.OpAdd, r, int32(v))
	default:
		b.load64(bpf.R2, uint64(v))
		b.alu(bpf.OpAdd, r, bpf.R2)
	}
}

// and masks with any constant. It may change R2.
func (b *builder) and(r bpf.Reg, v uint64) {
	switch {
	case v == math.MaxUint64:
	case v <= math.MaxInt32:
		b.aluK(bpf.OpAnd, r, int32(v))
	default:
		b.load64(bpf.R2, v)
		b.alu(bpf.OpAnd, r, bpf.R2)
	}
}

// mapRef loads the handle of a map.
func (b *builder) mapRef(r bpf.Reg, number int) {
	b.emit(bpf.Insn{Op: bpf.OpLoadImm64, Dst: r, Src: bpf.ImmMapFD, Imm: int64(number)})
	b.emit(bpf.Insn{})
}

// mapValue loads the address of an array's first value.
func (b *builder) mapValue(r bpf.Reg, number int) {
	b.emit(bpf.Insn{Op: bpf.OpLoadImm64, Dst: r, Src: bpf.ImmMapValue, Imm: int64(number)})
	b.emit(bpf.Insn{})
}

func (b *builder) call(h bpf.Helper) { b.emit(bpf.Insn{Op: bpf.OpCallK, Imm: int64(h)}) }

func (b *builder) exit(r0 int32) {
	b.aluK(bpf.OpMov, bpf.R0, r0)
	b.emit(bpf.Insn{Op: bpf.OpExitK})
}

// sizes has the size bits of an access of so many bytes.
var sizes = map[int]bpf.Opcode{1: bpf.SizeB, 2: bpf.SizeH, 4: bpf.SizeW, 8: bpf.SizeDW}

// ld loads n bytes, without sign.
func (b *builder) ld(n int, dst, base bpf.Reg, off int) {
	b.emit(bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEM | sizes[n], Dst: dst, Src: base, Off: int16(off)})
}

// st stores the low n bytes of a register.
func (b *builder) st(n int, base bpf.Reg, off int, src bpf.Reg) {
	b.emit(bpf.Insn{Op: bpf.ClassSTX | bpf.ModeMEM | sizes[n], Dst: base, Src: src, Off: int16(off)})
}

// stK stores a constant.
func (b *builder) stK(n int, base bpf.Reg, off int, v int32) {
	b.emit(bpf.Insn{Op: bpf.ClassST | bpf.ModeMEM | sizes[n], Dst: base, Off: int16(off), Imm: int64(v)})
}

// zero stores n zeros.
func (b *builder) zero(base bpf.Reg, off, n int) {
	for n > 0 {
		k := chunk(n)
		b.stK(k, base, off, 0)
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
