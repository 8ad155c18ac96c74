package bpftest

import (
	"fmt"
	"math"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Program makes a program from any bytes: the same bytes make the same program.
// It uses the maps of Maps by number. Nearly all programs pass the checker. Most
// small ones run without the checks that compiled programs otherwise make.
func Program(src []byte, small bool) asm.Instructions {
	g := &gen{src: src}
	if small {
		g.smallProgram(30)
	} else {
		g.program(60)
	}
	return g.link()
}

// gen makes programs that pass the checker from any bytes.
type gen struct {
	src   []byte
	out   asm.Instructions
	jumps []jump
	calls []int // local calls whose target is still open
	tame  bool  // stays in bounds, as far as jumps let it
}

// jump says which instruction another one goes to.
type jump struct{ at, to int }

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

// Numbers of the maps.
const (
	arrayMap = iota
	perCPUMap
	hashMap
	longMap
	perCPUHashMap
	ringMap
	constantsMap
)

func (g *gen) byte() byte {
	if len(g.src) == 0 {
		return 0
	}
	b := g.src[0]
	g.src = g.src[1:]
	return b
}

func (g *gen) n(n int) int { return int(g.byte()) % n }

// pick is one of several things.
func pick[T any](g *gen, of ...T) T { return of[g.n(len(of))] }

var genImms = []int32{0, 1, -1, 2, 7, 8, 31, 32, 63, 64, 255, 256, -128, math.MaxInt32, math.MinInt32, 0x1234567, 512, -512}

func (g *gen) imm() int32 {
	if g.n(4) == 0 {
		return int32(uint32(g.byte())<<24 | uint32(g.byte())<<8 | uint32(g.byte()))
	}
	return pick(g, genImms...)
}

func (g *gen) reg() asm.Register { return asm.Register(g.n(10)) }

func (g *gen) add(i ...asm.Instruction) { g.out = append(g.out, i...) }

// jumpTo adds a jump to the instruction of that index, which may come later.
func (g *gen) jumpTo(i asm.Instruction, to int) {
	g.jumps = append(g.jumps, jump{len(g.out), to})
	g.add(i)
}

// skip adds a jump over the next n instructions.
func (g *gen) skip(i asm.Instruction, n int) { g.jumpTo(i, len(g.out)+1+n) }

// jumpIf is a conditional jump.
func jumpIf(op asm.JumpOp, long bool, dst asm.Register) asm.Instruction {
	class := asm.Jump32Class
	if long {
		class = asm.JumpClass
	}
	return asm.Instruction{OpCode: asm.OpCode(class).SetJumpOp(op), Dst: dst}
}

// addOperand adds the other operand of an operation or a jump: a register or a
// number.
func (g *gen) addOperand(i asm.Instruction) asm.Instruction {
	if g.n(2) == 0 {
		i.OpCode, i.Src = i.OpCode.SetSource(asm.RegSource), g.reg()
	} else {
		i.Constant = int64(g.imm())
	}
	return i
}

// alu is an operation on a register, with 64 bits or 32.
func alu(op asm.ALUOp, long bool, dst asm.Register) asm.Instruction {
	class := asm.ALUClass
	if long {
		class = asm.ALU64Class
	}
	return asm.Instruction{OpCode: asm.OpCode(class).SetALUOp(op), Dst: dst}
}

func call(h bpf.Helper) asm.Instruction { return asm.BuiltinFunc(h).Call() }

// null jumps over the next n instructions when a register is 0.
func (g *gen) null(r asm.Register, n int) { g.skip(jumpIf(asm.JEq, true, r), n) }

// store is a store of a number.
func store(r asm.Register, off int16, size asm.Size, v int32) asm.Instruction {
	return asm.Instruction{OpCode: asm.StoreImmOp(size), Dst: r, Offset: off, Constant: int64(v)}
}

// link sets the labels of jumps and calls.
func (g *gen) link() asm.Instructions {
	name := func(i int) string { return fmt.Sprint(i) }
	for _, j := range g.jumps {
		g.out[j.at] = g.out[j.at].WithReference(name(j.to))
		g.out[j.to] = g.out[j.to].WithSymbol(name(j.to))
	}
	return g.out
}

// address returns an address as programs see it: docs/programs.md describes the
// fields.
func address(segment, element, offset int) int64 {
	return int64(segment)<<48 | int64(element)<<24 | int64(offset)
}

// start fills some registers.
func (g *gen) start() {
	for r := asm.R2; r <= asm.R9; r++ {
		if g.n(2) == 0 {
			g.add(asm.Mov.Imm(r, g.imm()))
		}
	}
	g.add(asm.Mov.Reg(asm.R6, asm.R1))
}

// program makes a program of about n steps.
func (g *gen) program(n int) {
	g.tame = g.n(8) > 0
	g.start()
	g.body(n, true)
	funcs := 0
	for len(g.calls) > 0 && funcs < 3 {
		g.jumps = append(g.jumps, jump{g.calls[0], len(g.out)})
		g.calls = g.calls[1:]
		g.body(n/3, funcs < 2)
		funcs++
	}
	for _, at := range g.calls {
		g.out[at] = asm.Mov.Imm(asm.R0, 5).WithSymbol(g.out[at].Symbol())
	}
}

// body makes one function.
func (g *gen) body(n int, calls bool) {
	start, jumps := len(g.out), len(g.jumps)
	for range n {
		if len(g.src) == 0 {
			break
		}
		g.step(start, calls)
	}
	g.exit(jumps)
}

// exit ends a function. Its jumps are the ones from the given index on.
func (g *gen) exit(jumps int) {
	for i := range g.jumps[jumps:] { // jumps without a target go to the exit
		j := &g.jumps[jumps+i]
		j.to = min(j.to, len(g.out))
	}
	g.add(asm.Return())
}

var genALU = []asm.ALUOp{asm.Add, asm.Sub, asm.Mul, asm.Div, asm.Or, asm.And, asm.LSh, asm.RSh, asm.Mod, asm.Xor, asm.Mov, asm.ArSh, asm.SDiv, asm.SMod}
var genJumps = []asm.JumpOp{asm.JEq, asm.JGT, asm.JGE, asm.JSet, asm.JNE, asm.JSGT, asm.JSGE, asm.JLT, asm.JLE, asm.JSLT, asm.JSLE}
var genAtomics = []asm.AtomicOp{asm.AddAtomic, asm.OrAtomic, asm.AndAtomic, asm.XorAtomic, asm.FetchAdd, asm.FetchOr,
	asm.FetchAnd, asm.FetchXor, asm.Xchg, asm.CmpXchg}
var genSizes = []asm.Size{asm.Byte, asm.Half, asm.Word, asm.DWord}

func (g *gen) step(start int, calls bool) {
	switch g.n(19) {
	case 0, 1, 2:
		g.add(g.addOperand(alu(pick(g, genALU...), g.n(2) == 0, g.reg())))
	case 3:
		g.unaryALU()
	case 4, 5:
		j := g.addOperand(jumpIf(pick(g, genJumps...), g.n(2) == 0, g.reg()))
		if g.n(8) == 0 { // may_goto
			j = asm.Instruction{OpCode: asm.OpCode(asm.JumpClass) | 0xe0}
		}
		if g.n(4) == 0 && len(g.out)-start > 3 {
			g.jumpTo(j, len(g.out)-g.n(min(len(g.out)-start, 100)))
			return
		}
		g.skip(j, g.n(8))
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
		g.add(asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall})
	case 11, 12:
		g.mapCall()
	case 13:
		g.ringCall()
	case 14:
		g.pointer()
	case 15:
		g.randomCall()
	default:
		g.useKnownIndex()
	}
}

// unaryALU is an operation on one register.
func (g *gen) unaryALU() {
	size := pick(g, asm.Half, asm.Word, asm.DWord)
	switch g.n(6) {
	case 0:
		g.add(alu(asm.Neg, g.n(2) == 0, g.reg()))
	case 1:
		g.add(asm.LoadImm(g.reg(), int64(g.imm())<<32|int64(uint32(g.imm())), asm.DWord))
	case 2:
		g.add(asm.HostTo(pick(g, asm.LE, asm.BE), g.reg(), size))
	case 3:
		g.add(asm.BSwap(g.reg(), size))
	default:
		long, op := g.n(2) == 0, pick(g, asm.MovSX8, asm.MovSX16, asm.MovSX32)
		if op == asm.MovSX32 {
			long = true
		}
		i := alu(op, long, g.reg())
		i.OpCode, i.Src = i.OpCode.SetSource(asm.RegSource), g.reg()
		g.add(i)
	}
}

// access loads, stores or operates at [r + off].
func (g *gen) access(r asm.Register, off int16) { g.accessOf(pick(g, genSizes...), r, off) }

func (g *gen) accessOf(size asm.Size, r asm.Register, off int16) {
	switch g.n(6) {
	case 0, 1:
		g.add(asm.LoadMem(g.reg(), r, off, size))
	case 2:
		if size == asm.DWord {
			size = asm.Word
		}
		g.add(asm.LoadMemSX(g.reg(), r, off, size))
	case 3:
		g.add(store(r, off, size, g.imm()))
	case 4:
		g.add(asm.StoreMem(r, off, g.reg(), size))
	case 5:
		g.add(pick(g, genAtomics...).Mem(r, g.reg(), pick(g, asm.Word, asm.DWord), off&^7))
	}
}

func (g *gen) stackAccess() { g.access(asm.R10, int16(-8-g.n(56))) }

// pointer makes a register point into some memory, or near it.
func (g *gen) pointer() {
	r := g.reg()
	if g.tame {
		g.add(asm.Mov.Reg(r, asm.R10), asm.Add.Imm(r, int32(-16-8*g.n(10))))
		g.access(r, int16(g.n(8)))
		return
	}
	switch g.n(4) {
	case 0:
		g.add(asm.Mov.Reg(r, asm.R10), asm.Add.Imm(r, int32(-g.n(80))))
	case 1:
		g.add(asm.Mov.Reg(r, asm.R6), asm.Add.Imm(r, int32(g.n(80))))
	case 2:
		g.add(asm.LoadMapValue(r, pick(g, arrayMap, constantsMap), uint32(g.n(16))))
	case 3:
		g.add(asm.LoadImm(r, address(g.n(16), g.n(5), g.n(30)), asm.DWord))
	}
	g.access(r, int16(g.n(20))-2)
}

func (g *gen) mapCall() {
	m := pick(g, arrayMap, perCPUMap, hashMap, longMap, perCPUHashMap, hashMap, constantsMap)
	key := int32(g.n(6))
	g.add(store(asm.R10, -16, asm.DWord, key), store(asm.R10, -8, asm.DWord, 0),
		asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -16), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -96), asm.Mov.Imm(asm.R4, int32(g.n(4))),
		asm.LoadMapPtr(asm.R1, m))
	if !g.tame && g.n(12) == 0 {
		g.add(asm.Mov.Reg(asm.R2, g.reg())) // a key that may be anywhere
	}
	h := pick(g, bpf.HelperMapLookup, bpf.HelperMapUpdate, bpf.HelperMapUpdate, bpf.HelperMapDelete)
	if h == bpf.HelperMapLookup && (m == perCPUMap || m == perCPUHashMap || !g.tame) && g.n(3) == 0 {
		h = bpf.HelperLookupPerCPU
		g.add(asm.Mov.Imm(asm.R3, int32(g.n(4))))
	}
	g.add(call(h))
	if h == bpf.HelperMapLookup || h == bpf.HelperLookupPerCPU {
		g.null(asm.R0, 1)
		if g.tame {
			g.access(asm.R0, 0)
		} else {
			g.access(asm.R0, int16(g.n(26))-1)
		}
	}
}

func (g *gen) ringCall() {
	size := int32(g.n(64))
	if g.n(6) == 0 {
		size *= 64
	}
	switch g.n(4) {
	case 0:
		g.add(asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -64), asm.Mov.Imm(asm.R3, size), asm.Mov.Imm(asm.R4, int32(g.n(5))),
			asm.LoadMapPtr(asm.R1, ringMap), call(bpf.HelperRingOutput))
	case 1:
		g.add(asm.Mov.Reg(asm.R4, asm.R10), asm.Add.Imm(asm.R4, -64), asm.Mov.Imm(asm.R5, size),
			asm.LoadMapPtr(asm.R2, ringMap), call(bpf.HelperPerfEventOutput))
	case 2:
		g.add(asm.Mov.Imm(asm.R2, int32(g.n(6)-1)), asm.LoadMapPtr(asm.R1, ringMap), call(bpf.HelperRingQuery))
	case 3:
		g.add(asm.Mov.Imm(asm.R2, size), asm.Mov.Imm(asm.R3, 0), asm.LoadMapPtr(asm.R1, ringMap), call(bpf.HelperRingReserve), asm.Mov.Reg(asm.R7, asm.R0))
		if g.tame {
			g.null(asm.R0, 2)
			g.add(asm.Mov.Reg(asm.R1, asm.R0), call(bpf.HelperRingSubmit))
			return
		}
		g.null(asm.R0, 3)
		g.access(asm.R7, int16(g.n(20))-1)
		g.add(asm.Mov.Reg(asm.R1, asm.R7))
		if g.n(4) > 0 {
			g.add(call(pick(g, bpf.HelperRingSubmit, bpf.HelperRingDiscard)))
		}
	}
}

func (g *gen) randomCall() {
	switch g.n(4) {
	case 0:
		g.add(call(bpf.HelperGetCPU))
	case 1: // reads the program's own memory
		g.add(asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, int32(-40-g.n(100))), asm.Mov.Imm(asm.R2, int32(g.n(40))),
			asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, int32(-200-g.n(50))),
			call(pick(g, bpf.HelperReadKernel, bpf.HelperReadKernelStr, bpf.HelperProbeReadStr)))
	case 2:
		if g.tame {
			return
		}
		g.add(asm.Mov.Reg(asm.R1, g.reg()), asm.Mov.Imm(asm.R2, g.imm()),
			asm.LoadImm(asm.R3, address(1+g.n(12), g.n(3), g.n(40)), asm.DWord), call(bpf.HelperReadUser))
	case 3:
		g.add(asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, int32(g.n(8))), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, int32(-8-g.n(64))),
			call(bpf.HelperGetFuncArg))
	}
}
