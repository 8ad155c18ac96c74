package bpf

import "math"

// RandomProgram makes a program out of any bytes, for tests that compare the back
// ends: the same bytes make the same program. It uses the maps of RandomMaps by
// number; nearly all pass the checker. Of the small ones most run without the
// checks that compiled programs otherwise make.
func RandomProgram(src []byte, small bool) []Insn {
	g := &gen{src: src}
	if small {
		return g.smallProgram(30)
	}
	return g.program(60)
}

// RandomMaps describes the maps that random programs use.
func RandomMaps() []MapSpec { return genSpecs() }

// gen makes programs that pass the checker out of any bytes.
type gen struct {
	src   []byte
	out   []Insn
	calls []int // local calls whose target is still open
	tame  bool  // stays in bounds, as far as jumps let it
}

// genSpecs are the maps that generated programs use.
func genSpecs() []MapSpec {
	return []MapSpec{
		{Name: "array", Kind: Array, KeySize: 4, ValueSize: 24, MaxEntries: 3},
		{Name: "percpu", Kind: PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 2},
		{Name: "hash", Kind: Hash, KeySize: 4, ValueSize: 13, MaxEntries: 4},
		{Name: "long", Kind: Hash, KeySize: 15, ValueSize: 80, MaxEntries: 40},
		{Name: "percpuhash", Kind: PerCPUHash, KeySize: 8, ValueSize: 8, MaxEntries: 3},
		{Name: "ring", Kind: RingBuf, MaxEntries: MinRingSize},
		{Name: "constants", Kind: Array, KeySize: 4, ValueSize: 16, MaxEntries: 1, ReadOnly: true, Contents: []byte("read only")},
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

func (g *gen) reg() Reg { return Reg(g.n(10)) }

func (g *gen) add(i ...Insn) { g.out = append(g.out, i...) }

func movK(r Reg, v int64) Insn { return Insn{Op: ClassALU64 | OpMov, Dst: r, Imm: v} }
func movX(d, s Reg) Insn       { return Insn{Op: ClassALU64 | OpMov | SrcX, Dst: d, Src: s} }
func addK(r Reg, v int64) Insn { return Insn{Op: ClassALU64 | OpAdd, Dst: r, Imm: v} }
func callK(h Helper) Insn      { return Insn{Op: OpCallK, Imm: int64(h)} }
func wide(r, kind Reg, v int64) []Insn {
	return []Insn{{Op: OpLoadImm64, Dst: r, Src: kind, Imm: v}, {}}
}

// program makes a program of about n steps.
func (g *gen) program(n int) []Insn {
	g.tame = g.n(8) > 0
	for r := R2; r <= R9; r++ {
		if g.n(2) == 0 {
			g.add(movK(r, g.imm()))
		}
	}
	g.add(movX(R6, R1))
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
		g.out[at] = movK(R0, 5)
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
	g.add(Insn{Op: OpExitK})
	// Jumps to where there is nothing go to the exit.
	for pc := start; pc < len(g.out); pc++ {
		i := g.out[pc]
		if i.isJump() {
			if t := i.target(pc); t >= len(g.out) {
				g.out[pc].Off = int16(len(g.out) - 1 - pc - 1)
			}
			if t := g.out[pc].target(pc); g.out[t] == (Insn{}) {
				g.out[pc].Off++ // out of the middle of a 64-bit immediate
			}
		}
	}
}

var genALU = []Opcode{OpAdd, OpSub, OpMul, OpDiv, OpOr, OpAnd, OpLsh, OpRsh, OpMod, OpXor, OpMov, OpArsh}
var genJumps = []Opcode{OpJEQ, OpJGT, OpJGE, OpJSET, OpJNE, OpJSGT, OpJSGE, OpJLT, OpJLE, OpJSLT, OpJSLE}
var genAtomics = []int64{AtomicAdd, AtomicOr, AtomicAnd, AtomicXor, AtomicAdd | AtomicFetch, AtomicOr | AtomicFetch,
	AtomicAnd | AtomicFetch, AtomicXor | AtomicFetch, AtomicXchg, AtomicCmpXchg}
var genSizes = []Opcode{SizeB, SizeH, SizeW, SizeDW}

func (g *gen) step(start int, calls bool) {
	class := []Opcode{ClassALU, ClassALU64}[g.n(2)]
	switch g.n(16) {
	case 0, 1, 2:
		i := Insn{Op: class | genALU[g.n(len(genALU))], Dst: g.reg()}
		if g.n(2) == 0 {
			i.Op |= SrcX
			i.Src = g.reg()
		} else {
			i.Imm = g.imm()
		}
		if op := i.Op & opMask; (op == OpDiv || op == OpMod) && g.n(2) == 0 {
			i.Off = 1
		} else if op == OpMov && i.Op&SrcX != 0 {
			i.Off = []int16{0, 8, 16, 0}[g.n(4)]
			if class == ClassALU64 && g.n(3) == 0 {
				i.Off = 32
			}
		}
		g.add(i)
	case 3:
		switch g.n(4) {
		case 0:
			g.add(Insn{Op: class | OpNeg, Dst: g.reg()})
		case 1:
			g.add(wide(g.reg(), ImmConst, g.imm()<<32|g.imm()&0xffffffff)...)
		default:
			i := Insn{Op: class | OpEnd, Dst: g.reg(), Imm: []int64{16, 32, 64}[g.n(3)]}
			if class == ClassALU && g.n(2) == 0 {
				i.Op |= SrcX
			}
			g.add(i)
		}
	case 4, 5:
		i := Insn{Op: []Opcode{ClassJMP, ClassJMP32}[g.n(2)] | genJumps[g.n(len(genJumps))], Dst: g.reg(), Off: int16(g.n(8))}
		if g.n(2) == 0 {
			i.Op |= SrcX
			i.Src = g.reg()
		} else {
			i.Imm = g.imm()
		}
		if g.n(4) == 0 && len(g.out)-start > 3 {
			i.Off = int16(-1 - g.n(min(len(g.out)-start, 100)))
			if t := len(g.out) + 1 + int(i.Off); t < len(g.out) && g.out[t] == (Insn{}) {
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
		g.add(Insn{Op: OpCallK, Src: CallLocal})
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
func (g *gen) access(r Reg, off int16) {
	size := genSizes[g.n(4)]
	switch g.n(6) {
	case 0, 1:
		g.add(Insn{Op: ClassLDX | ModeMEM | size, Dst: g.reg(), Src: r, Off: off})
	case 2:
		if size == SizeDW {
			size = SizeW
		}
		g.add(Insn{Op: ClassLDX | ModeMEMSX | size, Dst: g.reg(), Src: r, Off: off})
	case 3:
		g.add(Insn{Op: ClassST | ModeMEM | size, Dst: r, Off: off, Imm: g.imm()})
	case 4:
		g.add(Insn{Op: ClassSTX | ModeMEM | size, Dst: r, Off: off, Src: g.reg()})
	case 5:
		size, off = SizeDW, off&^7
		if g.n(2) == 0 {
			size = SizeW
		}
		g.add(Insn{Op: ClassSTX | ModeATOMIC | size, Dst: r, Off: off, Src: g.reg(), Imm: genAtomics[g.n(len(genAtomics))]})
	}
}

func (g *gen) stackAccess() { g.access(R10, int16(-8-g.n(56))) }

// pointer makes a register point into some memory, or near it.
func (g *gen) pointer() {
	r := g.reg()
	if g.tame {
		g.add(movX(r, R10), addK(r, int64(-16-8*g.n(10))))
		g.access(r, int16(g.n(8)))
		return
	}
	switch g.n(4) {
	case 0:
		g.add(movX(r, R10), addK(r, int64(-g.n(80))))
	case 1:
		g.add(movX(r, R6), addK(r, int64(g.n(80))))
	case 2:
		g.add(wide(r, ImmMapValue, int64(g.n(16))<<32|int64([]int{0, 6}[g.n(2)]))...)
	case 3:
		g.add(wide(r, ImmConst, int64(segPointer(g.n(16), g.n(5), g.n(30))))...)
	}
	g.access(r, int16(g.n(20))-2)
}

func (g *gen) mapCall() {
	m := g.n(len(genSpecs()))
	if m == 5 {
		m = 2
	}
	key := int64(g.n(6))
	g.add(
		Insn{Op: ClassST | ModeMEM | SizeDW, Dst: R10, Off: -16, Imm: key},
		Insn{Op: ClassST | ModeMEM | SizeDW, Dst: R10, Off: -8, Imm: 0},
		movX(R2, R10), addK(R2, -16), movX(R3, R10), addK(R3, -96), movK(R4, int64(g.n(4))))
	g.add(wide(R1, ImmMapFD, int64(m))...)
	if !g.tame && g.n(12) == 0 {
		g.add(movX(R2, g.reg())) // a key that may be anywhere
	}
	h := []Helper{HelperMapLookup, HelperMapUpdate, HelperMapUpdate, HelperMapDelete}[g.n(4)]
	g.add(callK(h))
	if h == HelperMapLookup {
		g.add(Insn{Op: ClassJMP | OpJEQ, Dst: R0, Off: 1})
		if g.tame {
			g.access(R0, 0)
		} else {
			g.access(R0, int16(g.n(26))-1)
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
		g.add(movX(R2, R10), addK(R2, -64), movK(R3, size), movK(R4, int64(g.n(5))))
		g.add(wide(R1, ImmMapFD, 5)...)
		g.add(callK(HelperRingOutput))
	case 1:
		g.add(movX(R4, R10), addK(R4, -64), movK(R5, size))
		g.add(wide(R2, ImmMapFD, 5)...)
		g.add(callK(HelperPerfEventOutput))
	case 2:
		g.add(movK(R2, int64(g.n(6)-1)))
		g.add(wide(R1, ImmMapFD, 5)...)
		g.add(callK(HelperRingQuery))
	case 3:
		g.add(movK(R2, size), movK(R3, 0))
		g.add(wide(R1, ImmMapFD, 5)...)
		g.add(callK(HelperRingReserve), movX(R7, R0))
		if g.tame {
			g.add(Insn{Op: ClassJMP | OpJEQ, Dst: R0, Off: 2}, movX(R1, R0), callK(HelperRingSubmit))
			return
		}
		end := []Helper{HelperRingSubmit, HelperRingDiscard}[g.n(2)]
		g.add(Insn{Op: ClassJMP | OpJEQ, Dst: R0, Off: 3})
		g.access(R7, int16(g.n(20))-1)
		g.add(movX(R1, R7))
		if g.n(4) > 0 {
			g.add(callK(end))
		}
	}
}

func (g *gen) otherCall() {
	switch g.n(4) {
	case 0:
		g.add(callK(HelperGetCPU))
	case 1: // reads the program's own memory
		g.add(movX(R1, R10), addK(R1, int64(-40-g.n(100))), movK(R2, int64(g.n(40))), movX(R3, R10), addK(R3, -200-int64(g.n(50))))
		g.add(callK([]Helper{HelperReadKernel, HelperReadKernelStr, HelperProbeReadStr}[g.n(3)]))
	case 2:
		if g.tame {
			return
		}
		g.add(movX(R1, g.reg()), movK(R2, g.imm()))
		g.add(wide(R3, ImmConst, int64(segPointer(1+g.n(12), g.n(3), g.n(40))))...)
		g.add(callK(HelperReadUser))
	case 3:
		g.add(movX(R1, R6), movK(R2, int64(g.n(8))), movX(R3, R10), addK(R3, int64(-8-g.n(64))), callK(HelperGetFuncArg))
	}
}
