package bpftest

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// useKnownIndex uses an index with a known property: it is masked, compared,
// shifted or counted. So an access with it is certainly in bounds, certainly out
// of bounds, or either by a byte.
func (g *gen) useKnownIndex() {
	p := pick(g, asm.R7, asm.R8, asm.R9)
	if g.n(4) == 0 {
		g.lookUp(p)
		return
	}
	g.index(g.pointSomewhere(p), p)
}

// pointSomewhere makes r point to some memory, and returns its size.
func (g *gen) pointSomewhere(r asm.Register) int {
	switch g.n(8) {
	case 0:
		g.add(asm.Mov.Reg(r, asm.R6))
		return bpf.RegsSize
	case 1, 2:
		g.add(asm.Mov.Reg(r, asm.R10), asm.Add.Imm(r, -64))
		return 64
	case 3:
		g.add(asm.LoadMapValue(r, constantsMap, 0))
		return 16
	case 4:
		g.add(asm.LoadMapValue(r, arrayMap, 8))
		return 16
	}
	g.add(asm.LoadMapValue(r, arrayMap, 0))
	return 24
}

// lookUp makes r point to an element of a map, whose number may be known, and
// uses it with an index.
func (g *gen) lookUp(r asm.Register) {
	m, size := arrayMap, 24
	switch g.n(4) {
	case 0:
		m, size = perCPUMap, 8
	case 1:
		m, size = hashMap, 13
	}
	if g.n(2) == 0 {
		g.add(store(asm.R10, -4, asm.Word, int32(g.n(4))))
	} else {
		g.add(asm.LoadMem(asm.R2, asm.R6, int16(8*g.n(20)), asm.Byte), asm.And.Imm(asm.R2, 3), asm.StoreMem(asm.R10, -4, asm.R2, asm.Word))
	}
	g.add(asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4), asm.LoadMapPtr(asm.R1, m), call(bpf.HelperMapLookup), asm.Mov.Reg(r, asm.R0))
	check := jumpIf(pick(g, asm.JEq, asm.JNE), true, pick(g, asm.R0, r))
	if check.OpCode.JumpOp() == asm.JNE {
		g.skip(check, 1)
		g.jumpTo(asm.Ja.Label(""), -1)
	} else {
		g.jumpTo(check, -1)
	}
	open := len(g.jumps) - 1
	g.index(size, r)
	g.jumps[open].to = len(g.out)
}

// index makes an index for the size bytes that r points to, and uses it.
func (g *gen) index(size int, r asm.Register) {
	i, p := pick(g, asm.R2, asm.R3, asm.R4), pick(g, asm.R5, asm.R1, r)
	width := pick(g, genSizes...)
	edge := size - width.Sizeof() + g.n(3) - 1 // the last that is in bounds, or one less or more
	switch g.n(8) {
	case 0, 1:
		g.load(i)
		g.add(asm.And.Imm(i, int32(pick(g, 1, 3, 7, 15, 31, edge))))
		g.use(width, r, i, p)
	case 2, 3: // compared
		g.load(i)
		out := g.jumpUnless(i, edge)
		g.use(width, r, i, p)
		g.jumps[out].to = len(g.out)
	case 4:
		g.load(i)
		g.add(asm.RSh.Imm(i, int32(pick(g, 60, 59, 61, 63))))
		if g.n(2) == 0 {
			g.add(asm.LSh.Imm(i, int32(g.n(3))))
		}
		g.use(width, r, i, p)
	case 5: // not at all
		g.load(i)
		if g.n(2) == 0 {
			g.add(asm.And.Imm(i, 0xff))
		}
		g.use(width, r, i, p)
	case 6:
		g.countedLoop(edge, width, r, i, p)
	case 7:
		g.pointerLoop(size, width, r, i)
	}
}

// load loads an unknown number into r.
func (g *gen) load(r asm.Register) {
	size := pick(g, asm.Byte, asm.Half, asm.Word, asm.DWord)
	if g.n(3) == 0 && size != asm.DWord {
		g.add(asm.LoadMemSX(r, asm.R6, int16(8*g.n(20)), size))
		return
	}
	g.add(asm.LoadMem(r, asm.R6, int16(8*g.n(20)), size))
	if g.n(6) == 0 {
		g.add(asm.Sub.Imm(r, 100))
	}
}

// jumpUnless jumps away unless r is at most most, or with sign less, and returns the
// number of the jump.
func (g *gen) jumpUnless(r asm.Register, most int) int {
	long := g.n(3) > 0
	switch g.n(5) {
	case 0:
		g.jumpTo(withConst(jumpIf(asm.JGT, long, r), most), -1)
	case 1:
		g.jumpTo(withConst(jumpIf(asm.JGE, long, r), most+1), -1)
	case 2:
		g.jumpTo(withConst(jumpIf(asm.JSGT, long, r), most), -1)
		if g.n(4) > 0 { // below, too
			g.skip(withConst(jumpIf(asm.JSGE, long, r), 0), 1)
			g.add(asm.Mov.Imm(r, 0))
		}
	case 3:
		g.skip(withConst(jumpIf(asm.JLE, long, r), most), 1)
		g.jumpTo(asm.Ja.Label(""), -1)
	case 4:
		bound := pick(g, asm.R0, asm.R1)
		g.add(asm.Mov.Imm(bound, int32(most)))
		j := jumpIf(asm.JLT, long, bound)
		j.OpCode, j.Src = j.OpCode.SetSource(asm.RegSource), r
		g.jumpTo(j, -1)
	}
	for i := len(g.jumps) - 1; ; i-- {
		if g.jumps[i].to < 0 {
			return i
		}
	}
}

func withConst(i asm.Instruction, v int) asm.Instruction {
	i.Constant = int64(v)
	return i
}

// use accesses memory i bytes after r, through register p, in one of the forms
// in which such an access is written.
func (g *gen) use(width asm.Size, r, i, p asm.Register) {
	off := int16(0)
	if g.n(4) == 0 {
		off = int16(g.n(5) - 2)
	}
	switch g.n(3) {
	case 0:
		if p != r {
			g.add(asm.Mov.Reg(p, r))
		}
		g.add(asm.Add.Reg(p, i))
	case 1:
		g.add(asm.Add.Reg(i, r))
		p = i
	case 2:
		g.add(asm.Mov.Reg(p, r), asm.Add.Imm(p, 8), asm.Add.Reg(p, i))
		off -= 8
	}
	g.accessOf(width, p, off)
	if g.n(3) == 0 {
		g.accessOf(width, p, off)
	}
}

// countedLoop counts i up or down, to edge or to the value of a register, and
// accesses memory i bytes after r each time.
func (g *gen) countedLoop(edge int, width asm.Size, r, i, p asm.Register) {
	step := int32(pick(g, 1, 1, 2, 4, 8))
	down := g.n(4) == 0
	first, last := int32(0), int32(edge)
	if down {
		first, last = last, 0
	}
	limit := pick(g, asm.R9, asm.R8)
	byReg := g.n(3) == 0 && limit != r
	if byReg {
		g.load(limit)
		if g.n(2) == 0 {
			g.add(asm.And.Imm(limit, 31))
		}
	}
	g.add(asm.Mov.Imm(i, first))
	head := len(g.out)
	if p == i || p == r {
		p = asm.R0
	}
	g.add(asm.Mov.Reg(p, r), asm.Add.Reg(p, i))
	switch g.n(3) {
	case 0:
		g.add(asm.LoadMem(asm.R0, p, 0, width))
	case 1:
		g.add(asm.StoreMem(p, 0, i, width))
	case 2:
		g.add(asm.LoadMem(asm.R0, p, 0, width), asm.Add.Imm(asm.R0, 3), asm.StoreMem(p, 0, asm.R0, width))
	}
	if g.n(4) == 0 {
		g.add(g.addOperand(alu(pick(g, genALU...), true, asm.R0)))
	}
	op := pick(g, asm.JLT, asm.JLE, asm.JNE, asm.JSLT, asm.JSLE)
	if down {
		step, op = -step, pick(g, asm.JGT, asm.JGE, asm.JNE, asm.JSGT, asm.JSGE)
	}
	g.add(asm.Add.Imm(i, step))
	back := withConst(jumpIf(op, g.n(4) > 0, i), int(last))
	if byReg {
		back.Constant = 0
		back.OpCode, back.Src = back.OpCode.SetSource(asm.RegSource), limit
	}
	g.jumpTo(back, head)
}

// pointerLoop moves a pointer on from r, to the end of the size bytes there or to a
// byte with a certain value.
func (g *gen) pointerLoop(size int, width asm.Size, r, end asm.Register) {
	step := int32(pick(g, 1, 2, 4, 8, width.Sizeof(), width.Sizeof()))
	toEnd := g.n(2) == 0
	if toEnd {
		g.add(asm.Mov.Reg(end, r), asm.Add.Imm(end, int32(size+pick(g, 0, 0, 0, 1, -1, int(step)))))
	}
	head := len(g.out)
	g.accessOf(width, r, 0)
	g.add(asm.Add.Imm(r, step))
	j := withConst(jumpIf(asm.JNE, true, asm.R0), 0)
	if toEnd {
		j = jumpIf(pick(g, asm.JNE, asm.JLT, asm.JSLT), true, r)
		j.OpCode, j.Src = j.OpCode.SetSource(asm.RegSource), end
	} else {
		g.add(asm.LoadMem(asm.R0, r, int16(-step), asm.Byte))
	}
	g.jumpTo(j, head)
}
