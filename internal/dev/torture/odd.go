package torture

import (
	"github.com/guestprobe/guestprobe/guest/x86"
)

// crookedStack is code on a stack that is not aligned.
func (g *gen) crookedStack() {
	n := 1 + g.IntN(15)
	g.p.Uneven = g.p.Uneven || n%8 != 0
	g.do(func(a *x86.Asm) { a.Lea(8, x86.RSP, x86.At(x86.RSP, -n)) })
	if g.IntN(2) == 0 {
		g.call(g.leaf())
	} else {
		g.alu()
	}
	g.do(func(a *x86.Asm) { a.Lea(8, x86.RSP, x86.At(x86.RSP, n)) })
}

// setFlag sets or clears a flag by way of the stack.
func (g *gen) setFlag(flag uint32, on bool) {
	g.do((*x86.Asm).Pushfq)
	if on {
		g.do(func(a *x86.Asm) { a.Or(4, x86.At(x86.RSP, 0), x86.Imm(flag)) })
	} else {
		g.do(func(a *x86.Asm) { a.And(4, x86.At(x86.RSP, 0), x86.Imm(int32(^flag))) })
	}
	g.do((*x86.Asm).Popfq)
}

// checkedCode is code with alignment checks on, perhaps on a stack that would not
// pass them, which it then does not touch.
func (g *gen) checkedCode() {
	if g.p.Kernel {
		return
	}
	const flagAC = 1 << 18
	g.setFlag(flagAC, true)
	crooked := g.IntN(2) == 0
	g.aligned, g.quiet, g.odd = true, crooked, true
	if crooked {
		g.do(func(a *x86.Asm) { a.Sub(8, x86.RSP, x86.Imm(4)) })
	}
	for range 2 + g.IntN(6) {
		g.alu()
	}
	if crooked {
		g.do(func(a *x86.Asm) { a.Add(8, x86.RSP, x86.Imm(4)) })
	} else if g.IntN(2) == 0 {
		g.call(g.leaf())
	}
	g.aligned, g.quiet, g.odd = false, false, false
	g.setFlag(flagAC, false)
}

// steppedCode is code that steps itself.
func (g *gen) steppedCode() {
	const flagTF = 1 << 8
	g.p.Steps = true
	g.setFlag(flagTF, true)
	for range 1 + g.IntN(3) {
		g.register()
	}
	if g.IntN(3) == 0 {
		g.call(g.leaf())
	}
	g.setFlag(flagTF, false)
}

// nowhere is an address that is not mapped: the kernel has its RAM at 0.
const nowhere = 0x6000_2000

// exception is an instruction that raises one; the task continues after it.
func (g *gen) exception() {
	after := g.a.NewLabel()
	g.lea(x86.R8, after)
	g.do(func(a *x86.Asm) { a.Mov(8, x86.At(regData, wordResume), x86.R8) })
	n := g.IntN(9)
	if g.p.Kernel && n > 6 {
		n = 0 // kernel code has a stack that an interrupt would find room on, and may read all RAM
	}
	if n == 5 && (g.is(Rewrites) || g.p.Alias != nil && g.p.Alias.Boot) {
		n = 0 // its text can be written where it runs
	}
	switch n {
	case 0: // div by zero
		g.do(func(a *x86.Asm) { a.Xor(4, x86.RCX, x86.RCX) })
		g.ins(0xf7, 0xf1)
	case 1:
		g.rawBytes(0x0f, 0x0b, 0x90) // ud2, no service
	case 2:
		g.rawBytes(0xcc)
	case 3: // a page that is not there
		g.do(func(a *x86.Asm) { a.Mov(4, x86.RBX, x86.Imm(nowhere+g.IntN(4000))) })
		g.do(func(a *x86.Asm) { a.Mov(8, x86.RDX, x86.At(x86.RBX, 0)) })
	case 4: // an invalid address
		g.do(func(a *x86.Asm) { a.Mov(8, x86.RBX, x86.Imm(int64(-0x7fff_0000_0000_0000))) })
		g.do(func(a *x86.Asm) { a.Add(4, x86.At(x86.RBX, 8), x86.RDX) })
	case 5: // text is not written
		g.lea(x86.RBX, after)
		g.do(func(a *x86.Asm) { a.Mov(4, x86.At(x86.RBX, 0), x86.RDX) })
	case 6: // hlt, which only user code may not
		if g.p.Kernel {
			g.rawBytes(0xcc)
		} else {
			g.ins(0xf4)
		}
	case 7: // a call by way of memory that is the kernel's
		g.do(func(a *x86.Asm) { a.Mov(4, x86.RBX, x86.Imm(0x7000+8*g.IntN(64))) })
		g.odd = true
		g.do(func(a *x86.Asm) { a.CallAt(x86.At(x86.RBX, 0)) })
		g.odd = false
	default: // a push to unmapped memory
		g.do(func(a *x86.Asm) { a.Mov(8, regRestore, x86.RSP) })
		g.do(func(a *x86.Asm) { a.Mov(4, x86.RSP, x86.Imm(nowhere)) })
		g.do(func(a *x86.Asm) { a.Push(x86.RAX) })
		g.a.Place(after)
		g.do(func(a *x86.Asm) { a.Mov(8, x86.RSP, regRestore) })
		g.do(func(a *x86.Asm) { a.Mov(4, regRestore, x86.Imm(0)) })
		g.forget()
		return
	}
	g.a.Place(after)
	g.forget()
}

// forget clears the resume word.
func (g *gen) forget() {
	g.do(func(a *x86.Asm) { a.Mov(8, x86.At(regData, wordResume), x86.Imm(0)) })
}

// edge calls a leaf on a stack that ends right below it: the page there is not
// mapped, and the leaf does not need it.
func (g *gen) edge() {
	if g.depth == 2 || g.p.Kernel {
		return
	}
	room := []int{8, 16, 24, 40, 64, 120, 136, 200, 320, 512}[g.IntN(10)]
	g.do(func(a *x86.Asm) { a.Mov(8, regRestore, x86.RSP) })
	g.do(func(a *x86.Asm) { a.Mov(8, x86.RDI, x86.RSP) })
	g.do(func(a *x86.Asm) { a.And(8, x86.RDI, x86.Imm(-stackSize)) })
	g.do(func(a *x86.Asm) { a.Add(8, x86.RDI, x86.Imm(4096)) })
	g.service(serviceUnmap)
	g.do(func(a *x86.Asm) { a.Lea(8, x86.RSP, x86.At(x86.RDI, 4096+room)) })
	g.call(g.leaf())
	g.do(func(a *x86.Asm) { a.Mov(8, x86.RSP, regRestore) })
	g.do(func(a *x86.Asm) { a.Mov(4, regRestore, x86.Imm(0)) })
}

// strings are repeated string instructions, downwards too.
func (g *gen) strings() {
	n := g.IntN(9)
	g.do(func(a *x86.Asm) { a.Lea(8, x86.RSI, x86.At(regData, dataFirst+512+8*g.IntN(64))) })
	g.do(func(a *x86.Asm) { a.Lea(8, x86.RDI, x86.At(regData, dataFirst+2048+8*g.IntN(64))) })
	g.do(func(a *x86.Asm) { a.Mov(4, x86.RCX, x86.Imm(n)) })
	down := g.IntN(3) == 0
	if down {
		g.ins(0xfd)
	}
	if g.IntN(2) == 0 {
		g.alu()
		g.do(func(a *x86.Asm) { a.Lea(8, x86.RSI, x86.At(regData, dataFirst+512+8*g.IntN(64))) })
		g.do(func(a *x86.Asm) { a.Lea(8, x86.RDI, x86.At(regData, dataFirst+2048+8*g.IntN(64))) })
		g.do(func(a *x86.Asm) { a.Mov(4, x86.RCX, x86.Imm(n)) })
	}
	prefix := []byte{0xf3, 0xf2}[g.IntN(2)]
	op := []byte{0xa4, 0xa5, 0xaa, 0xab, 0xa6, 0xae, 0xac}[g.IntN(7)]
	b := []byte{prefix, op}
	if g.IntN(2) == 0 && op != 0xa4 && op != 0xaa && op != 0xa6 && op != 0xae && op != 0xac {
		b = []byte{prefix, 0x48, op}
	}
	g.ins(b...)
	if down {
		if g.IntN(2) == 0 {
			g.register()
		}
		g.ins(0xfc)
	}
}

// redZone uses memory below RSP, as leaf functions may.
func (g *gen) redZone() {
	if g.p.Kernel {
		return
	}
	g.odd = true
	defer func() { g.odd = false }()
	for range 1 + g.IntN(3) {
		off := -8 * (1 + g.IntN(16))
		if g.IntN(2) == 0 {
			off = []int{-8, -128}[g.IntN(2)]
		}
		r := g.readableReg()
		g.do(func(a *x86.Asm) { a.Mov(8, x86.At(x86.RSP, off), r) })
		for range 1 + g.IntN(4) {
			g.register()
		}
		g.do(func(a *x86.Asm) { a.Add(8, g.reg(), x86.At(x86.RSP, off)) })
	}
}

// frame is enter and leave, or pushes and pops.
func (g *gen) frame() {
	if g.IntN(2) == 0 {
		g.ins(0xc8, byte(8*g.IntN(4)), 0, 0) // enter
		g.regs = leafRegs
		g.register()
		g.regs = free
		g.ins(0xc9) // leave
		return
	}
	r, to := g.readableReg(), g.reg()
	if g.IntN(3) == 0 {
		r, to = x86.RSP, x86.RSP
	}
	g.do(func(a *x86.Asm) { a.Push(r) })
	g.register()
	g.odd = to == x86.RSP
	g.do(func(a *x86.Asm) { a.Pop(to) })
	g.odd = false
}

// patch rewrites a following instruction.
func (g *gen) patch() {
	l := g.a.NewLabel()
	r := []x86.Reg64{x86.RAX, x86.RCX, x86.RDX, x86.RBX}[g.IntN(4)]
	v := g.Uint32()
	g.lea(x86.RDI, l)
	g.do(func(a *x86.Asm) { a.Mov(4, x86.RSI, x86.Imm(int32(v))) })
	g.do(func(a *x86.Asm) { a.Mov(4, x86.RDX, x86.Imm(4)) })
	g.service(servicePatch)
	for range g.IntN(3) {
		g.register()
	}
	g.changed = true
	g.ins(0xb8 | byte(r))
	g.changed = false
	g.a.Place(l)
	g.rawBytes(0, 0, 0, 0)
	for range g.IntN(3) {
		g.register()
	}
}
