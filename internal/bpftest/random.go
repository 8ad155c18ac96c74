package bpftest

import (
	"math"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Program makes a program out of any bytes: the same bytes make the same program.
// It uses the maps of Maps by number; nearly all pass the checker. Of the small
// ones most run without the checks that compiled programs otherwise make.
func Program(src []byte, small bool) []bpf.Insn {
	g := &gen{src: src}
	if small {
		return g.smallProgram(30)
	}
	return g.program(60)
}

// gen makes programs that pass the checker out of any bytes.
type gen struct {
	src   []byte
	out   []bpf.Insn
	calls []int // local calls whose target is still open
	tame  bool  // stays in bounds, as far as jumps let it
}

// Maps describes the maps that random programs use.
func Maps() []bpf.MapSpec {
	return []bpf.MapSpec{
		{Name: "array", Kind: bpf.Array, KeySize: 4, ValueSize: 24, MaxEntries: 3},
		{Name: "percpu", Kind: bpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 2},
		{Name: "hash", Kind: bpf.Hash, KeySize: 4, ValueSize: 13, MaxEntries: 4},
		{Name: "long", Kind: bpf.Hash, KeySize: 15, ValueSize: 80, MaxEntries: 40},
		{Name: "percpuhash", Kind: bpf.PerCPUHash, KeySize: 8, ValueSize: 8, MaxEntries: 3},
		{Name: "ring", Kind: bpf.RingBuf, MaxEntries: bpf.MinRingSize},
		{Name: "constants", Kind: bpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1, ReadOnly: true, Contents: []byte("read only")},
	}
}

func (g *gen) byte() byte {
	if len(g.src) == 0 {
		return 0
	}
	b := g.src[0]
	g.src = g.src[1:]
	return b
}

func (g *gen) n(n int) int { return int(g.byte()) % n }

var genImms = []int64{0, 1, -1, 2, 7, 8, 31, 32, 63, 64, 255, 256, -128, math.MaxInt32, math.MinInt32, 0x1234567, 512, -512}

func (g *gen) imm() int64 {
	if g.n(4) == 0 {
		return int64(int32(uint32(g.byte())<<24 | uint32(g.byte())<<8 | uint32(g.byte())))
	}
	return genImms[g.n(len(genImms))]
}

func (g *gen) reg() bpf.Reg { return bpf.Reg(g.n(10)) }

func (g *gen) add(i ...bpf.Insn) { g.out = append(g.out, i...) }

func movK(r bpf.Reg, v int64) bpf.Insn {
	return bpf.Insn{Op: bpf.ClassALU64 | bpf.OpMov, Dst: r, Imm: v}
}
func movX(d, s bpf.Reg) bpf.Insn {
	return bpf.Insn{Op: bpf.ClassALU64 | bpf.OpMov | bpf.SrcX, Dst: d, Src: s}
}
func addK(r bpf.Reg, v int64) bpf.Insn {
	return bpf.Insn{Op: bpf.ClassALU64 | bpf.OpAdd, Dst: r, Imm: v}
}
func callK(h bpf.Helper) bpf.Insn { return bpf.Insn{Op: bpf.OpCallK, Imm: int64(h)} }
func wide(r, kind bpf.Reg, v int64) []bpf.Insn {
	return []bpf.Insn{{Op: bpf.OpLoadImm64, Dst: r, Src: kind, Imm: v}, {}}
}

// operation is what an opcode does, without class and source (RFC 9669, section 3).
func operation(op bpf.Opcode) bpf.Opcode { return op & 0xf0 }

// isJump reports whether i is a jump, and neither a call nor an exit.
func isJump(i bpf.Insn) bool {
	op := operation(i.Op)
	return i.Class() == bpf.ClassJMP32 || i.Class() == bpf.ClassJMP && op != bpf.OpCall && op != bpf.OpExit
}

// target is the slot that the jump at slot pc goes to.
func target(i bpf.Insn, pc int) int { return pc + 1 + int(i.Off) }

// address is one of those that programs see: docs/programs.md has their fields.
func address(segment, element, offset int) uint64 {
	return uint64(segment)<<48 | uint64(element)<<24 | uint64(offset)
}

// program makes a program of about n steps.
func (g *gen) program(n int) []bpf.Insn {
	g.tame = g.n(8) > 0
	for r := bpf.R2; r <= bpf.R9; r++ {
		if g.n(2) == 0 {
			g.add(movK(r, g.imm()))
		}
	}
	g.add(movX(bpf.R6, bpf.R1))
	g.body(n, true)
	funcs := 0
	for len(g.calls) > 0 && funcs < 3 {
		at := g.calls[0]
		g.calls = g.calls[1:]
		g.out[at].Imm = int64(len(g.out) - at - 1)
		g.body(n/3, funcs < 2)
		funcs++
	}
	for _, at := range g.calls {
		g.out[at] = movK(bpf.R0, 5)
	}
	return g.out
}

// body makes one function.
func (g *gen) body(n int, calls bool) {
	start := len(g.out)
	for range n {
		if len(g.src) == 0 {
			break
		}
		g.step(start, calls)
	}
	g.add(bpf.Insn{Op: bpf.OpExitK})
	// Jumps to where there is nothing go to the exit.
	for pc := start; pc < len(g.out); pc++ {
		if isJump(g.out[pc]) {
			if t := target(g.out[pc], pc); t >= len(g.out) {
				g.out[pc].Off = int16(len(g.out) - 1 - pc - 1)
			}
			if t := target(g.out[pc], pc); g.out[t] == (bpf.Insn{}) {
				g.out[pc].Off++ // out of the middle of a 64-bit immediate
			}
		}
	}
}

var genALU = []bpf.Opcode{bpf.OpAdd, bpf.OpSub, bpf.OpMul, bpf.OpDiv, bpf.OpOr, bpf.OpAnd, bpf.OpLsh, bpf.OpRsh, bpf.OpMod, bpf.OpXor, bpf.OpMov, bpf.OpArsh}
var genJumps = []bpf.Opcode{bpf.OpJEQ, bpf.OpJGT, bpf.OpJGE, bpf.OpJSET, bpf.OpJNE, bpf.OpJSGT, bpf.OpJSGE, bpf.OpJLT, bpf.OpJLE, bpf.OpJSLT, bpf.OpJSLE}
var genAtomics = []int64{bpf.AtomicAdd, bpf.AtomicOr, bpf.AtomicAnd, bpf.AtomicXor, bpf.AtomicAdd | bpf.AtomicFetch, bpf.AtomicOr | bpf.AtomicFetch,
	bpf.AtomicAnd | bpf.AtomicFetch, bpf.AtomicXor | bpf.AtomicFetch, bpf.AtomicXchg, bpf.AtomicCmpXchg}
var genSizes = []bpf.Opcode{bpf.SizeB, bpf.SizeH, bpf.SizeW, bpf.SizeDW}

func (g *gen) step(start int, calls bool) {
	class := []bpf.Opcode{bpf.ClassALU, bpf.ClassALU64}[g.n(2)]
	switch g.n(16) {
	case 0, 1, 2:
		i := bpf.Insn{Op: class | genALU[g.n(len(genALU))], Dst: g.reg()}
		if g.n(2) == 0 {
			i.Op |= bpf.SrcX
			i.Src = g.reg()
		} else {
			i.Imm = g.imm()
		}
		if op := operation(i.Op); (op == bpf.OpDiv || op == bpf.OpMod) && g.n(2) == 0 {
			i.Off = 1
		} else if op == bpf.OpMov && i.Op&bpf.SrcX != 0 {
			i.Off = []int16{0, 8, 16, 0}[g.n(4)]
			if class == bpf.ClassALU64 && g.n(3) == 0 {
				i.Off = 32
			}
		}
		g.add(i)
	case 3:
		switch g.n(4) {
		case 0:
			g.add(bpf.Insn{Op: class | bpf.OpNeg, Dst: g.reg()})
		case 1:
			g.add(wide(g.reg(), bpf.ImmConst, g.imm()<<32|g.imm()&0xffffffff)...)
		default:
			i := bpf.Insn{Op: class | bpf.OpEnd, Dst: g.reg(), Imm: []int64{16, 32, 64}[g.n(3)]}
			if class == bpf.ClassALU && g.n(2) == 0 {
				i.Op |= bpf.SrcX
			}
			g.add(i)
		}
	case 4, 5:
		i := bpf.Insn{Op: []bpf.Opcode{bpf.ClassJMP, bpf.ClassJMP32}[g.n(2)] | genJumps[g.n(len(genJumps))], Dst: g.reg(), Off: int16(g.n(8))}
		if g.n(2) == 0 {
			i.Op |= bpf.SrcX
			i.Src = g.reg()
		} else {
			i.Imm = g.imm()
		}
		if g.n(4) == 0 && len(g.out)-start > 3 {
			i.Off = int16(-1 - g.n(min(len(g.out)-start, 100)))
			if t := len(g.out) + 1 + int(i.Off); t < len(g.out) && g.out[t] == (bpf.Insn{}) {
				i.Off = 0
			}
		}
		g.add(i)
	case 6, 7:
		g.stackAccess()
	case 8, 9:
		if g.tame {
			g.stackAccess()
		} else {
			g.access(g.reg(), int16(g.n(40))-8)
		}
	case 10:
		if !calls || len(g.calls) > 4 {
			return
		}
		g.calls = append(g.calls, len(g.out))
		g.add(bpf.Insn{Op: bpf.OpCallK, Src: bpf.CallLocal})
	case 11, 12:
		g.mapCall()
	case 13:
		g.ringCall()
	case 14:
		g.pointer()
	case 15:
		g.otherCall()
	}
}

// access loads, stores or operates at [r + off].
func (g *gen) access(r bpf.Reg, off int16) {
	size := genSizes[g.n(4)]
	switch g.n(6) {
	case 0, 1:
		g.add(bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEM | size, Dst: g.reg(), Src: r, Off: off})
	case 2:
		if size == bpf.SizeDW {
			size = bpf.SizeW
		}
		g.add(bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEMSX | size, Dst: g.reg(), Src: r, Off: off})
	case 3:
		g.add(bpf.Insn{Op: bpf.ClassST | bpf.ModeMEM | size, Dst: r, Off: off, Imm: g.imm()})
	case 4:
		g.add(bpf.Insn{Op: bpf.ClassSTX | bpf.ModeMEM | size, Dst: r, Off: off, Src: g.reg()})
	case 5:
		size, off = bpf.SizeDW, off&^7
		if g.n(2) == 0 {
			size = bpf.SizeW
		}
		g.add(bpf.Insn{Op: bpf.ClassSTX | bpf.ModeATOMIC | size, Dst: r, Off: off, Src: g.reg(), Imm: genAtomics[g.n(len(genAtomics))]})
	}
}

func (g *gen) stackAccess() { g.access(bpf.R10, int16(-8-g.n(56))) }

// pointer makes a register point into some memory, or near it.
func (g *gen) pointer() {
	r := g.reg()
	if g.tame {
		g.add(movX(r, bpf.R10), addK(r, int64(-16-8*g.n(10))))
		g.access(r, int16(g.n(8)))
		return
	}
	switch g.n(4) {
	case 0:
		g.add(movX(r, bpf.R10), addK(r, int64(-g.n(80))))
	case 1:
		g.add(movX(r, bpf.R6), addK(r, int64(g.n(80))))
	case 2:
		g.add(wide(r, bpf.ImmMapValue, int64(g.n(16))<<32|int64([]int{0, 6}[g.n(2)]))...)
	case 3:
		g.add(wide(r, bpf.ImmConst, int64(address(g.n(16), g.n(5), g.n(30))))...)
	}
	g.access(r, int16(g.n(20))-2)
}

func (g *gen) mapCall() {
	m := g.n(len(Maps()))
	if m == 5 {
		m = 2
	}
	key := int64(g.n(6))
	g.add(
		bpf.Insn{Op: bpf.ClassST | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R10, Off: -16, Imm: key},
		bpf.Insn{Op: bpf.ClassST | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R10, Off: -8, Imm: 0},
		movX(bpf.R2, bpf.R10), addK(bpf.R2, -16), movX(bpf.R3, bpf.R10), addK(bpf.R3, -96), movK(bpf.R4, int64(g.n(4))))
	g.add(wide(bpf.R1, bpf.ImmMapFD, int64(m))...)
	if !g.tame && g.n(12) == 0 {
		g.add(movX(bpf.R2, g.reg())) // a key that may be anywhere
	}
	h := []bpf.Helper{bpf.HelperMapLookup, bpf.HelperMapUpdate, bpf.HelperMapUpdate, bpf.HelperMapDelete}[g.n(4)]
	g.add(callK(h))
	if h == bpf.HelperMapLookup {
		g.add(bpf.Insn{Op: bpf.ClassJMP | bpf.OpJEQ, Dst: bpf.R0, Off: 1})
		if g.tame {
			g.access(bpf.R0, 0)
		} else {
			g.access(bpf.R0, int16(g.n(26))-1)
		}
	}
}

func (g *gen) ringCall() {
	size := int64(g.n(64))
	if g.n(6) == 0 {
		size *= 64
	}
	switch g.n(4) {
	case 0:
		g.add(movX(bpf.R2, bpf.R10), addK(bpf.R2, -64), movK(bpf.R3, size), movK(bpf.R4, int64(g.n(5))))
		g.add(wide(bpf.R1, bpf.ImmMapFD, 5)...)
		g.add(callK(bpf.HelperRingOutput))
	case 1:
		g.add(movX(bpf.R4, bpf.R10), addK(bpf.R4, -64), movK(bpf.R5, size))
		g.add(wide(bpf.R2, bpf.ImmMapFD, 5)...)
		g.add(callK(bpf.HelperPerfEventOutput))
	case 2:
		g.add(movK(bpf.R2, int64(g.n(6)-1)))
		g.add(wide(bpf.R1, bpf.ImmMapFD, 5)...)
		g.add(callK(bpf.HelperRingQuery))
	case 3:
		g.add(movK(bpf.R2, size), movK(bpf.R3, 0))
		g.add(wide(bpf.R1, bpf.ImmMapFD, 5)...)
		g.add(callK(bpf.HelperRingReserve), movX(bpf.R7, bpf.R0))
		if g.tame {
			g.add(bpf.Insn{Op: bpf.ClassJMP | bpf.OpJEQ, Dst: bpf.R0, Off: 2}, movX(bpf.R1, bpf.R0), callK(bpf.HelperRingSubmit))
			return
		}
		end := []bpf.Helper{bpf.HelperRingSubmit, bpf.HelperRingDiscard}[g.n(2)]
		g.add(bpf.Insn{Op: bpf.ClassJMP | bpf.OpJEQ, Dst: bpf.R0, Off: 3})
		g.access(bpf.R7, int16(g.n(20))-1)
		g.add(movX(bpf.R1, bpf.R7))
		if g.n(4) > 0 {
			g.add(callK(end))
		}
	}
}

func (g *gen) otherCall() {
	switch g.n(4) {
	case 0:
		g.add(callK(bpf.HelperGetCPU))
	case 1: // reads the program's own memory
		g.add(movX(bpf.R1, bpf.R10), addK(bpf.R1, int64(-40-g.n(100))), movK(bpf.R2, int64(g.n(40))), movX(bpf.R3, bpf.R10), addK(bpf.R3, -200-int64(g.n(50))))
		g.add(callK([]bpf.Helper{bpf.HelperReadKernel, bpf.HelperReadKernelStr, bpf.HelperProbeReadStr}[g.n(3)]))
	case 2:
		if g.tame {
			return
		}
		g.add(movX(bpf.R1, g.reg()), movK(bpf.R2, g.imm()))
		g.add(wide(bpf.R3, bpf.ImmConst, int64(address(1+g.n(12), g.n(3), g.n(40))))...)
		g.add(callK(bpf.HelperReadUser))
	case 3:
		g.add(movX(bpf.R1, bpf.R6), movK(bpf.R2, int64(g.n(8))), movX(bpf.R3, bpf.R10), addK(bpf.R3, int64(-8-g.n(64))), callK(bpf.HelperGetFuncArg))
	}
}
