package bpf

import (
	"fmt"
	"math"
	"math/bits"
	"testing"
)

// edge are operands at the borders of what the operations do.
var edge = []uint64{
	0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff,
	math.MaxInt32, 1 << 31, math.MaxUint32, 1 << 32, 0x123456789abcdef0,
	math.MaxInt64, 1 << 63, 1<<63 + 1, math.MaxUint64, math.MaxUint64 - 1, 0xffffffff80000000,
}

// specALU is what RFC 9669, table 4.1, says of an operation, written without a look
// at either back end. The 32-bit forms cut the operands and the result.
func specALU(op Opcode, signed, wide bool, a, b uint64) uint64 {
	if !wide {
		a, b = a&math.MaxUint32, b&math.MaxUint32
	}
	width := uint64(32)
	if wide {
		width = 64
	}
	sa, sb := int64(a), int64(b)
	if !wide {
		sa, sb = int64(int32(a)), int64(int32(b))
	}
	var r uint64
	switch op {
	case OpAdd:
		r = a + b
	case OpSub:
		r = a - b
	case OpMul:
		r = a * b
	case OpDiv:
		switch {
		case b == 0:
			r = 0
		case signed && sb == -1:
			r = -a
		case signed:
			r = uint64(sa / sb)
		default:
			r = a / b
		}
	case OpMod:
		switch {
		case b == 0:
			r = a
		case signed && sb == -1:
			r = 0
		case signed:
			r = uint64(sa % sb)
		default:
			r = a % b
		}
	case OpOr:
		r = a | b
	case OpAnd:
		r = a & b
	case OpXor:
		r = a ^ b
	case OpLsh:
		r = a << (b % width)
	case OpRsh:
		r = a >> (b % width)
	case OpArsh:
		r = uint64(sa >> (b % width))
	case OpMov:
		r = b
	}
	if !wide {
		r &= math.MaxUint32
	}
	return r
}

// evaluator runs "r0 = a; r2 = b; <insn>; exit" in every back end.
type evaluator struct {
	t    *testing.T
	runs map[string]RunFunc
}

func (e *evaluator) want(name string, a, b, want uint64, insns ...Insn) {
	e.t.Helper()
	prog := append(wideImmediate(R0, ImmConst, int64(a)), wideImmediate(R2, ImmConst, int64(b))...)
	prog = append(append(prog, insns...), Insn{Op: OpExitK})
	p, err := New(Spec{Insns: read(e.t, prog...)})
	if err != nil {
		e.t.Fatalf("%s: %v", name, err)
	}
	for backend, run := range e.runs {
		if got, err := run(p, nil); err != nil || got != want {
			e.t.Errorf("%s %s of %#x, %#x: %#x, %v, want %#x", backend, name, a, b, got, err, want)
		}
	}
}

func newEvaluator(t *testing.T) *evaluator { return &evaluator{t, backends(t)} }

// The operations of RFC 9669, sections 4 and 5.
var (
	arithmetic = []Opcode{OpAdd, OpSub, OpMul, OpDiv, OpOr, OpAnd, OpLsh, OpRsh, OpMod, OpXor, OpMov, OpArsh}
	jumps      = []Opcode{OpJEQ, OpJGT, OpJGE, OpJSET, OpJNE, OpJSGT, OpJSGE, OpJLT, OpJLE, OpJSLT, OpJSLE}
	atomics    = []int64{AtomicAdd, AtomicOr, AtomicAnd, AtomicXor, AtomicAdd | AtomicFetch, AtomicOr | AtomicFetch,
		AtomicAnd | AtomicFetch, AtomicXor | AtomicFetch, AtomicXchg, AtomicCmpXchg}
)

func TestArithmetic(t *testing.T) {
	for _, op := range arithmetic {
		for _, class := range []Opcode{ClassALU64, ClassALU} {
			for _, off := range []int16{0, 1} {
				if off == 1 && op != OpDiv && op != OpMod {
					continue
				}
				i := Insn{Op: class | op, Dst: R0, Off: off}
				t.Run(fmt.Sprint(read(t, i)[0]), func(t *testing.T) {
					e := newEvaluator(t)
					for _, a := range edge {
						for _, b := range edge {
							x := i
							x.Op, x.Src = x.Op|SrcX, R2
							e.want("register", a, b, specALU(op, off == 1, class == ClassALU64, a, b), x)
							if b != uint64(int64(int32(b))) {
								continue
							}
							k := i
							k.Imm = int64(b)
							e.want("immediate", a, b, specALU(op, off == 1, class == ClassALU64, a, b), k)
						}
					}
				})
			}
		}
	}
}

func TestUnary(t *testing.T) {
	e := newEvaluator(t)
	for _, a := range edge {
		lo := uint64(uint32(a))
		mov := func(class Opcode, off int16) Insn {
			return Insn{Op: class | OpMov | SrcX, Dst: R0, Src: R0, Off: off}
		}
		end := func(op Opcode, width int64) Insn { return Insn{Op: op | OpEnd, Dst: R0, Imm: width} }
		for _, tt := range []struct {
			insn Insn
			want uint64
		}{
			{Insn{Op: ClassALU64 | OpNeg}, -a},
			{Insn{Op: ClassALU | OpNeg}, uint64(uint32(-lo))},
			{mov(ClassALU64, 8), uint64(int8(a))},
			{mov(ClassALU64, 16), uint64(int16(a))},
			{mov(ClassALU64, 32), uint64(int32(a))},
			{mov(ClassALU, 8), uint64(uint32(int8(a)))},
			{mov(ClassALU, 16), uint64(uint32(int16(a)))},
			{end(ClassALU, 16), a & 0xffff},
			{end(ClassALU, 32), lo},
			{end(ClassALU, 64), a},
			{end(ClassALU|SrcX, 16), uint64(bits.ReverseBytes16(uint16(a)))},
			{end(ClassALU|SrcX, 32), uint64(bits.ReverseBytes32(uint32(a)))},
			{end(ClassALU|SrcX, 64), bits.ReverseBytes64(a)},
			{end(ClassALU64, 16), uint64(bits.ReverseBytes16(uint16(a)))},
			{end(ClassALU64, 32), uint64(bits.ReverseBytes32(uint32(a)))},
			{end(ClassALU64, 64), bits.ReverseBytes64(a)},
		} {
			e.want(fmt.Sprint(read(t, tt.insn)[0]), a, 0, tt.want, tt.insn)
		}
	}
}

func TestJumps(t *testing.T) {
	for _, op := range jumps {
		for _, class := range []Opcode{ClassJMP, ClassJMP32} {
			t.Run(fmt.Sprint(read(t, Insn{Op: class | op})[0]), func(t *testing.T) {
				e := newEvaluator(t)
				for _, a := range edge {
					for _, b := range edge {
						x, y := a, b
						sx, sy := int64(a), int64(b)
						if class == ClassJMP32 {
							x, y = uint64(uint32(a)), uint64(uint32(b))
							sx, sy = int64(int32(a)), int64(int32(b))
						}
						taken := map[Opcode]bool{
							OpJEQ: x == y, OpJNE: x != y, OpJGT: x > y, OpJGE: x >= y, OpJLT: x < y, OpJLE: x <= y, OpJSET: x&y != 0,
							OpJSGT: sx > sy, OpJSGE: sx >= sy, OpJSLT: sx < sy, OpJSLE: sx <= sy,
						}[op]
						want := uint64(0)
						if taken {
							want = 1
						}
						jump := Insn{Op: class | op | SrcX, Dst: R0, Src: R2, Off: 2}
						tail := []Insn{movK(R0, 0), {Op: OpGoto, Off: 1}, movK(R0, 1)}
						e.want("register", a, b, want, append([]Insn{jump}, tail...)...)
						if b == uint64(int64(int32(b))) {
							jump = Insn{Op: class | op, Dst: R0, Imm: int64(b), Off: 2}
							e.want("immediate", a, b, want, append([]Insn{jump}, tail...)...)
						}
					}
				}
			})
		}
	}
}

func TestAtomics(t *testing.T) {
	e := newEvaluator(t)
	for _, what := range atomics {
		for _, wide := range []bool{true, false} {
			for _, old := range edge {
				for _, src := range edge {
					checkAtomic(e, what, wide, old, src)
				}
			}
		}
	}
}

// checkAtomic puts old on the stack, operates on it with src in R2 and R0 = 7,
// and wants memory, source and R0 to be right, mixed together so that one
// result tells.
func checkAtomic(e *evaluator, what int64, wide bool, old, src uint64) {
	size, cut := SizeDW, uint64(math.MaxUint64)
	if !wide {
		size, cut = SizeW, math.MaxUint32
	}
	const r0 = 7
	mem, reg, res := old, src, uint64(r0)
	set := func(v uint64) { mem = old&^cut | v&cut }
	fetch := func() {
		if what&AtomicFetch != 0 {
			reg = old & cut
		}
	}
	switch what &^ AtomicFetch {
	case AtomicAdd:
		set(old + src)
		fetch()
	case AtomicOr:
		set(old | src)
		fetch()
	case AtomicAnd:
		set(old & src)
		fetch()
	case AtomicXor:
		set(old ^ src)
		fetch()
	case AtomicXchg &^ AtomicFetch:
		set(src)
		fetch()
	default:
		if old&cut == r0 {
			set(src)
		}
		res = old & cut
	}
	want := mem*3 + reg*5 + res*7
	e.want(fmt.Sprintf("atomic %#x wide %v", what, wide), old, src, want,
		Insn{Op: ClassSTX | ModeMEM | SizeDW, Dst: R10, Off: -8, Src: R0},
		movK(R0, r0),
		Insn{Op: ClassSTX | ModeATOMIC | size, Dst: R10, Off: -8, Src: R2, Imm: what},
		Insn{Op: ClassLDX | ModeMEM | SizeDW, Dst: R3, Src: R10, Off: -8},
		Insn{Op: ClassALU64 | OpMul, Dst: R3, Imm: 3},
		Insn{Op: ClassALU64 | OpMul, Dst: R2, Imm: 5},
		Insn{Op: ClassALU64 | OpMul, Dst: R0, Imm: 7},
		Insn{Op: ClassALU64 | OpAdd | SrcX, Dst: R0, Src: R3},
		Insn{Op: ClassALU64 | OpAdd | SrcX, Dst: R0, Src: R2})
}

// TestEveryRegister runs division and shifts, which need fixed registers of the
// CPU, with every pair of registers, and looks whether the others are kept.
func TestEveryRegister(t *testing.T) {
	runs := backends(t)
	for _, op := range []Opcode{OpDiv, OpMod, OpLsh, OpArsh, OpMul, OpSub} {
		for _, class := range []Opcode{ClassALU64, ClassALU} {
			for _, off := range []int16{0, 1} {
				if off == 1 && op != OpDiv && op != OpMod {
					continue
				}
				for dst := R0; dst <= R9; dst++ {
					for src := R0; src <= R9; src++ {
						checkRegisters(t, runs, Insn{Op: class | op | SrcX, Dst: dst, Src: src, Off: off})
					}
				}
			}
		}
	}
}

func checkRegisters(t *testing.T, runs map[string]RunFunc, i Insn) {
	t.Helper()
	var regs [10]uint64
	var prog []Insn
	for r := range regs {
		regs[r] = 1000 + 37*uint64(r)
		prog = append(prog, wideImmediate(Reg(r), ImmConst, int64(regs[r]))...)
	}
	prog = append(prog, i)
	regs[i.Dst] = specALU(i.Op&opMask, i.Off == 1, i.Class() == ClassALU64, regs[i.Dst], regs[i.Src])
	want := uint64(0)
	for r := range regs {
		want = want*31 + regs[r]
	}
	// r0 = r0*31^9 + r1*31^8 + ...
	for r := R1; r <= R9; r++ {
		prog = append(prog, Insn{Op: ClassALU64 | OpMul, Dst: R0, Imm: 31}, Insn{Op: ClassALU64 | OpAdd | SrcX, Dst: R0, Src: r})
	}
	p, err := New(Spec{Insns: read(t, append(prog, Insn{Op: OpExitK})...)})
	if err != nil {
		t.Fatal(err)
	}
	for name, run := range runs {
		if got, err := run(p, nil); err != nil || got != want {
			t.Errorf("%s: %v: registers mix to %#x, %v, want %#x", name, i, got, err, want)
		}
	}
}
