package torture

import (
	"github.com/guestprobe/guestprobe/guest/x86"
)

// blocks makes n pieces of code for function i; -1 is main.
func (g *gen) blocks(n, i int) {
	for range n {
		g.block(i)
	}
}

// block makes a piece of code.
func (g *gen) block(i int) {
	if g.extra() {
		return
	}
	switch g.IntN(24) {
	case 0:
		g.skip(i)
	case 1:
		g.loop(i)
	case 2:
		g.loopInstruction()
	case 3:
		if g.depth == 0 && i+1 < len(g.funcs) {
			g.call(i + 1 + g.IntN(min(3, len(g.funcs)-i-1)))
		} else {
			g.call(g.leaf())
		}
	case 4:
		g.call(g.leaf())
	case 5:
		g.jumpTable(i)
	case 6:
		g.computedJump()
	case 7:
		g.jumpIntoCode()
	case 8:
		g.crossedCode()
	case 9:
		g.island()
	case 10:
		g.crookedStack()
	case 11:
		g.checkedCode()
	case 12:
		g.steppedCode()
	case 13:
		g.exception()
	case 14:
		g.edge()
	case 15:
		g.strings()
	case 16:
		g.redZone()
	case 17:
		g.frame()
	case 18:
		if g.depth == 0 && g.IntN(3) == 0 {
			g.service(serviceYield)
		}
	case 19:
		if g.IntN(2) == 0 {
			g.patch()
		}
	case 20:
		g.checkedCode()
	case 21:
		g.jumpIntoCode()
	default:
		for range 1 + g.IntN(6) {
			g.alu()
		}
	}
}

// leaf returns the number of some leaf.
func (g *gen) leaf() int { return g.IntN(2) }

// skip is a conditional jump over a block, short where it can be.
func (g *gen) skip(i int) {
	over := g.a.NewLabel()
	cond := x86.Cond(g.IntN(16))
	if g.IntN(2) == 0 {
		g.do(func(a *x86.Asm) { a.Jcc(cond, over) })
		g.block(i)
		g.a.Place(over)
		return
	}
	// jcc +n: the length of the code in between is known.
	b := g.nopsOrCode(1 + g.IntN(3))
	g.ins(0x70|byte(cond), byte(len(b)))
	g.ins(b...)
	g.a.Place(over)
}

// nopsOrCode returns one instruction of a few bytes.
func (g *gen) nopsOrCode(n int) []byte {
	return [][]byte{{0x90}, {0x31, 0xc0}, {0x48, 0xff, 0xc1}, {0xf5}}[n]
}

// loop is a counted loop around a block.
func (g *gen) loop(i int) {
	if g.depth == 2 {
		return
	}
	g.depth++
	g.do(func(a *x86.Asm) { a.Push(regCount) })
	n := 1 + g.IntN(4)
	g.do(func(a *x86.Asm) { a.Mov(4, regCount, x86.Imm(n)) })
	top := g.a.LabelHere()
	g.block(i)
	g.do(func(a *x86.Asm) { a.Dec(8, regCount) })
	g.do(func(a *x86.Asm) { a.Jcc(x86.CondNE, top) })
	g.do(func(a *x86.Asm) { a.Pop(regCount) })
	g.depth--
}

// loopInstruction is loop, loope or loopne around little, or jrcxz.
func (g *gen) loopInstruction() {
	n := 1 + g.IntN(5)
	g.do(func(a *x86.Asm) { a.Mov(4, x86.RCX, x86.Imm(n)) })
	if g.IntN(4) == 0 {
		g.ins(0xe3, 2) // jrcxz
		g.ins(0x31, 0xc9)
		return
	}
	at := g.a.Len()
	g.regs = []x86.Reg64{x86.RAX, x86.RDX, x86.R8, x86.R12}
	for range 1 + g.IntN(2) {
		g.register()
	}
	g.regs = free
	op := []byte{0xe0, 0xe1, 0xe2, 0xe2}[g.IntN(4)]
	g.odd = true
	g.ins(op, byte(at-g.a.Len()-2))
	g.odd = false
}

// jumpTable is a switch with its table after the jump, in text.
func (g *gen) jumpTable(i int) {
	n := 2 << g.IntN(2)
	idx, base := x86.RAX, x86.RCX
	table, end := g.a.NewLabel(), g.a.NewLabel()
	g.do(func(a *x86.Asm) { a.And(4, idx, x86.Imm(n-1)) })
	if g.IntN(2) == 0 {
		g.do(func(a *x86.Asm) { a.Cmp(4, idx, x86.Imm(n-1)) })
		g.do(func(a *x86.Asm) { a.Jcc(x86.CondA, end) })
	}
	g.lea(base, table)
	g.ins(0x48, 0x63, 0x04, 0x81) // movslq (%rcx,%rax,4), %rax
	g.do(func(a *x86.Asm) { a.Add(8, idx, base) })
	g.do(func(a *x86.Asm) { a.JmpAt(idx) })
	g.a.Place(table)
	start := g.a.Len()
	var cases []x86.Label
	for range n {
		l := g.a.NewLabel()
		cases = append(cases, l)
		g.refs = append(g.refs, ref{g.a.Len(), l, start})
		g.rawBytes(0, 0, 0, 0)
	}
	for _, l := range cases {
		g.a.Place(l)
		g.alu()
		if g.depth < 2 && g.IntN(4) == 0 {
			g.call(g.leaf())
		}
		g.do(func(a *x86.Asm) { a.Jmp(end) })
	}
	g.a.Place(end)
}

// computedJump is a jump to one of several places of equal size.
func (g *gen) computedJump() {
	const size, n = 16, 4
	end, first := g.a.NewLabel(), g.a.NewLabel()
	idx, base := x86.RDX, x86.RSI
	g.do(func(a *x86.Asm) { a.And(4, idx, x86.Imm(n-1)) })
	g.do(func(a *x86.Asm) { a.Shl(4, idx, x86.Imm(4)) })
	g.lea(base, first)
	g.do(func(a *x86.Asm) { a.Add(8, base, idx) })
	g.do(func(a *x86.Asm) { a.JmpAt(base) })
	g.a.Place(first)
	for range n {
		at := g.a.Len()
		g.register()
		g.do(func(a *x86.Asm) { a.Jmp(end) })
		fill := byte(0xcc)
		if g.IntN(2) == 0 {
			fill = byte(g.Uint32())
		}
		for g.a.Len() < at+size {
			g.rawBytes(fill)
		}
	}
	g.a.Place(end)
}

// jumpIntoCode is a computed jump to an instruction or into it.
func (g *gen) jumpIntoCode() {
	l := g.a.NewLabel()
	idx, base := x86.RDI, x86.RAX
	if g.IntN(2) == 0 {
		cond := x86.Cond(g.IntN(16)) // so that it is known to be code
		g.do(func(a *x86.Asm) { a.Jcc(cond, l) })
	}
	g.do(func(a *x86.Asm) { a.And(4, idx, x86.Imm(1)) })
	g.lea(base, l)
	g.do(func(a *x86.Asm) { a.Add(8, base, idx) })
	g.do(func(a *x86.Asm) { a.JmpAt(base) })
	g.rawBytes(0x90, 0x90, 0x90)
	g.a.Place(l)
	g.odd = true
	g.ins(0xb8, 0x01, 0xff, 0xff, 0xc7) // mov $0xc7ffff01, %eax; from +1 on: add %edi, %edi; inc %edi
	g.odd = false
	g.ins(0xeb, 0x01)
	g.rawBytes(0x90)
}

// crossedCode is code that overlaps: a known jump leads into an instruction.
func (g *gen) crossedCode() {
	g.ins(0x70|byte(g.IntN(16)), 1)
	g.odd = true
	g.ins(0xb8, 0xff, 0xc0, 0xeb, 0x00) // mov $0x00ebc0ff, %eax; from +1 on: inc %eax; jmp +0
	g.odd = false
}

// island is data that is jumped over, and read.
func (g *gen) island() {
	over, data := g.a.NewLabel(), g.a.NewLabel()
	b := g.bytes(8)
	g.odd = true
	if g.IntN(2) == 0 {
		g.ins(0xeb, byte(len(b)))
	} else {
		g.do(func(a *x86.Asm) { a.Jmp(over) })
	}
	g.odd = false
	g.a.Place(data)
	g.rawBytes(b...)
	g.a.Place(over)
	r := g.reg()
	switch g.IntN(3) {
	case 0: // mov data(%rip), r
		g.rip(data, 0x48|byte(r>>3)<<2, 0x8b, 0x05|byte(r&7)<<3)
	case 1: // movzbl data(%rip), r
		g.rip(data, 0x40|byte(r>>3)<<2, 0x0f, 0xb6, 0x05|byte(r&7)<<3)
	default:
		g.lea(x86.R11, data)
		g.do(func(a *x86.Asm) { a.Add(4, r, x86.At(x86.R11, g.IntN(5))) })
	}
}
