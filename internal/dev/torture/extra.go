package torture

import (
	"math/rand/v2"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// classes chooses the classes of a program with a random source of its own: a
// program without classes is the same whatever classes exist.
func (g *gen) classes(seed uint64) {
	more := rand.New(rand.NewPCG(seed, 0x636c6173))
	for c := Aliases; c != 0 && c <= Places; c <<= 1 {
		if g.Classes&c != 0 && more.IntN(3) == 0 {
			g.p.Classes |= c
		}
	}
	if g.p.Kernel {
		g.p.Classes &^= Rewrites | Places // it writes text by services, and KVM emulates no x87 instruction
	}
	if g.p.Classes&Rewrites != 0 {
		g.p.Classes &^= Aliases // a native run has two copies of the text, which are written by services
	}
	if g.p.Classes == 0 {
		return
	}
	g.more = more
	if g.p.Classes&Aliases != 0 {
		g.alias()
	}
	g.p.Bytes = g.p.Classes&Moves != 0 && g.more.IntN(2) == 0
}

// is reports whether the program has a class.
func (g *gen) is(c Class) bool { return g.p.Classes&c != 0 }

// extra makes a piece of code of one of the program's classes. It returns false
// when the piece should be one of the basic ones.
func (g *gen) extra() bool {
	if g.more == nil || g.more.IntN(5) != 0 {
		return false
	}
	var can []func()
	if g.is(Aliases) {
		can = append(can, g.aliasCall, g.aliasJump)
	}
	if g.is(Moves) {
		can = append(can, g.movedStack, g.movedStack)
	}
	if g.is(Rewrites) {
		can = append(can, g.rewrite, g.rewrite)
	}
	if g.is(Tracers) {
		can = append(can, g.breakpoint, g.pokedInsn, g.rereadText, g.rereadText)
	}
	if g.is(Places) {
		can = append(can, g.syscall)
		if g.FIP {
			can = append(can, g.readX87Addr)
		}
	}
	can[g.more.IntN(len(can))]()
	return true
}

// Alias is a second mapping of the text, at an address whose bits differ.
type Alias struct {
	Bits  uint64 // that differ
	Boot  bool   // the boot loader has mapped it already
	Large bool   // by a page of 2 MiB
	Late  bool   // mapped by a service, not at boot
}

// va is where the text begins there.
func (a *Alias) va() uint64 { return textVA ^ a.Bits }

// alias chooses the program's second mapping. Kernel code has that of the loader,
// which maps RAM at its own address.
func (g *gen) alias() {
	a := &Alias{Bits: 1 << (33 + g.more.IntN(4)), Large: g.more.IntN(2) == 0, Late: g.more.IntN(2) == 0}
	if g.p.Kernel && g.more.IntN(2) == 0 {
		a = &Alias{Bits: textVA ^ textPA, Boot: true}
	}
	g.p.Alias = a
}

// switchMapping changes the address in r to the other mapping. It changes R11.
func (g *gen) switchMapping(r x86.Reg64) {
	g.do(func(a *x86.Asm) { a.Mov(8, x86.R11, x86.Imm(int64(g.p.Alias.Bits))) })
	g.do(func(a *x86.Asm) { a.Xor(8, r, x86.R11) })
}

// aliasCall calls a leaf at its other address.
func (g *gen) aliasCall() {
	r := []x86.Reg64{x86.RAX, x86.RBX, x86.RSI, x86.R9}[g.IntN(4)]
	g.lea(r, g.funcs[g.leaf()].label)
	g.switchMapping(r)
	g.do(func(a *x86.Asm) { a.CallAt(r) })
}

// aliasJump continues at the other address of the following code.
func (g *gen) aliasJump() {
	next := g.a.NewLabel()
	g.lea(x86.RAX, next)
	g.switchMapping(x86.RAX)
	g.do(func(a *x86.Asm) { a.JmpAt(x86.RAX) })
	g.rawBytes(g.bytes(g.IntN(3))...)
	g.a.Place(next)
	for range 1 + g.IntN(4) {
		g.alu()
	}
}

// otherStack is the distance of a task's two stacks, a bit of their addresses.
const otherStack = 2 * stackSize

// copyStack copies the contents of the stack to the other one. It changes RCX,
// RSI, RDI and the flags.
func (g *gen) copyStack() {
	g.do(func(a *x86.Asm) { a.Mov(8, x86.RSI, x86.RSP) })
	g.do(func(a *x86.Asm) { a.Mov(8, x86.RDI, x86.RSP) })
	g.do(func(a *x86.Asm) { a.Xor(8, x86.RDI, x86.Imm(otherStack)) })
	g.countStack()
	size := 1
	if !g.p.Bytes {
		size = 8
		g.do(func(a *x86.Asm) { a.Shr(4, x86.RCX, x86.Imm(3)) }) // the rest at the end is not used
	}
	if g.more.IntN(2) == 0 {
		if size == 1 {
			g.ins(0xf3, 0xa4) // rep movsb
		} else {
			g.ins(0xf3, 0x48, 0xa5) // rep movsq
		}
		return
	}
	top := g.a.LabelHere()
	g.do(func(a *x86.Asm) { a.Mov(size, x86.RAX, x86.At(x86.RSI, 0)) })
	g.do(func(a *x86.Asm) { a.Mov(size, x86.At(x86.RDI, 0), x86.RAX) })
	g.do(func(a *x86.Asm) { a.Add(8, x86.RSI, x86.Imm(size)) })
	g.do(func(a *x86.Asm) { a.Add(8, x86.RDI, x86.Imm(size)) })
	g.do(func(a *x86.Asm) { a.Dec(4, x86.RCX) })
	g.do(func(a *x86.Asm) { a.Jcc(x86.CondNE, top) })
}

// countStack sets RCX to the number of bytes on the stack.
func (g *gen) countStack() {
	g.do(func(a *x86.Asm) { a.Mov(4, x86.RCX, x86.RSP) })
	g.do(func(a *x86.Asm) { a.Or(4, x86.RCX, x86.Imm(stackSize-1)) })
	g.do(func(a *x86.Asm) { a.Sub(4, x86.RCX, x86.RSP) })
	g.do(func(a *x86.Asm) { a.Inc(4, x86.RCX) })
}

// wordTwin is where a function leaves the stack on which it will return once more.
const wordTwin = 16

// move moves the stack, with all frames on it, as runtimes do whose stacks grow: the
// old one is overwritten.
func (g *gen) move() {
	g.copyStack()
	g.do(func(a *x86.Asm) { a.Xor(8, x86.RSP, x86.Imm(otherStack)) })
	if g.more.IntN(3) == 0 {
		return
	}
	g.do(func(a *x86.Asm) { a.Mov(8, x86.RDI, x86.RSP) })
	g.do(func(a *x86.Asm) { a.Xor(8, x86.RDI, x86.Imm(otherStack)) })
	g.countStack()
	g.do(func(a *x86.Asm) { a.Mov(4, x86.RAX, x86.Imm(0xdb)) })
	g.ins(0xf3, 0xaa) // rep stosb
}

// movedStack is code on a stack that has moved under its callers.
func (g *gen) movedStack() {
	g.move()
	for range g.IntN(3) {
		g.alu()
	}
	if g.IntN(2) == 0 {
		g.call(g.leaf())
	}
}

// bodyTwice is that of a function that returns on a copy of the stack first, and then on the
// stack that it was called on.
func (g *gen) bodyTwice(f *fn) {
	g.do(func(a *x86.Asm) { a.Mov(8, x86.At(regData, wordTwin), x86.RSP) })
	g.copyStack()
	g.do(func(a *x86.Asm) { a.Xor(8, x86.RSP, x86.Imm(otherStack)) })
	for range g.IntN(3) {
		g.alu()
	}
	g.do((*x86.Asm).Ret)
	g.a.Place(f.second)
	for range g.IntN(3) {
		g.alu()
	}
	g.do((*x86.Asm).Ret)
}

// returnAgain comes after the call of such a function: it makes the second
// return, once.
func (g *gen) returnAgain(f *fn) {
	done := g.a.NewLabel()
	g.do(func(a *x86.Asm) { a.Cmp(8, x86.At(regData, wordTwin), x86.Imm(0)) })
	g.do(func(a *x86.Asm) { a.Jcc(x86.CondE, done) })
	for range g.IntN(3) {
		g.alu()
	}
	g.do(func(a *x86.Asm) { a.Mov(8, x86.RSP, x86.At(regData, wordTwin)) })
	g.do(func(a *x86.Asm) { a.Mov(8, x86.At(regData, wordTwin), x86.Imm(0)) })
	g.do(func(a *x86.Asm) { a.Jmp(f.second) })
	g.a.Place(done)
}

// wordKept is where a function keeps its return address, at an odd address.
const wordKept = 0x43

// bodyKeep is the body of a function that keeps its return address elsewhere
// while it runs, as setjmp, generators and copies of stacks do: in a general
// register, at an odd address, in an MMX register. The last works only with one
// task: the kernel switches tasks without their x87 state.
func (g *gen) bodyKeep() {
	run := func(alu bool) {
		g.regs, g.quiet = leafRegs, true
		for n := g.more.IntN(12); alu && n > 0; n-- {
			g.alu()
		}
		g.regs, g.quiet = free, false
		g.do(func(a *x86.Asm) { a.Mov(4, x86.RCX, x86.Imm(1+g.more.IntN(60))) }) // time in which the guest may be saved
		top := g.a.LabelHere()
		g.do(func(a *x86.Asm) { a.Dec(4, x86.RCX) })
		g.do(func(a *x86.Asm) { a.Jcc(x86.CondNE, top) })
	}
	spoil := func() { g.do(func(a *x86.Asm) { a.Mov(8, x86.At(x86.RSP, 0), x86.Imm(-1)) }) }
	zero := func(r x86.Reg64) { g.do(func(a *x86.Asm) { a.Mov(4, r, x86.Imm(0)) }) } // no other code sees the old value
	switch n := g.more.IntN(4); {
	case n < 2:
		r := free[3+g.more.IntN(len(free)-3)]
		g.do(func(a *x86.Asm) { a.Pop(r) })
		run(false)
		g.do(func(a *x86.Asm) { a.Push(r) })
		zero(r)
	case n == 2 || g.p.Kernel || !g.FIP:
		g.do(func(a *x86.Asm) { a.Mov(8, x86.RAX, x86.At(x86.RSP, 0)) })
		g.do(func(a *x86.Asm) { a.Mov(8, x86.At(regData, wordKept), x86.RAX) })
		zero(x86.RAX)
		spoil()
		run(true)
		g.do(func(a *x86.Asm) { a.Mov(8, x86.RAX, x86.At(regData, wordKept)) })
		g.do(func(a *x86.Asm) { a.Mov(8, x86.At(x86.RSP, 0), x86.RAX) })
		zero(x86.RAX)
		g.do(func(a *x86.Asm) { a.Mov(8, x86.At(regData, wordKept), x86.Imm(0)) })
	default:
		skip := g.a.NewLabel()
		g.do(func(a *x86.Asm) { a.Mov(8, x86.RAX, regData) })
		g.do(func(a *x86.Asm) { a.And(4, x86.RAX, x86.Imm((maxTasks-1)*dataSize)) })
		g.do(func(a *x86.Asm) { a.Jcc(x86.CondNE, skip) })
		g.ins(0x0f, 0x6f, 0x1c, 0x24) // movq (%rsp),%mm3
		spoil()
		run(true)
		g.ins(0x0f, 0x7f, 0x1c, 0x24) // movq %mm3,(%rsp)
		g.ins(0x0f, 0xef, 0xdb)       // pxor %mm3,%mm3
		g.ins(0x0f, 0x77)             // emms
		g.a.Place(skip)
	}
	g.do((*x86.Asm).Ret)
}

// syscall leaves its address in RCX and flags in R11; the kernel goes back at once.
func (g *gen) syscall() {
	g.odd = true
	g.ins(0x0f, 0x05)
	g.odd = false
	for range g.IntN(3) {
		g.register()
	}
}

// readX87Addr reads the address of the last x87 instruction. Only one task does it: the kernel
// switches tasks without their x87 state.
func (g *gen) readX87Addr() {
	skip := g.a.NewLabel()
	g.do(func(a *x86.Asm) { a.Mov(8, x86.RAX, regData) })
	g.do(func(a *x86.Asm) { a.And(4, x86.RAX, x86.Imm((maxTasks-1)*dataSize)) })
	g.do(func(a *x86.Asm) { a.Jcc(x86.CondNE, skip) })
	g.odd = true
	g.ins(0xdb, 0xe3) // fninit
	for range 1 + g.IntN(3) {
		switch g.IntN(4) {
		case 0:
			g.ins(0xd9, 0xe8) // fld1
		case 1:
			g.ins(0xd9, 0xee) // fldz
		case 2:
			g.ins(0x41, 0xdd, 0x86, 0, byte(1+g.IntN(12)), 0, 0) // fldl (%r14)
		default:
			g.ins(0xd9, 0xeb) // fldpi
		}
	}
	for range g.IntN(3) {
		g.register()
	}
	g.do(func(a *x86.Asm) { a.Lea(8, x86.RSP, x86.At(x86.RSP, -64)) })
	g.ins(0xd9, 0x34, 0x24) // fnstenv (%rsp)
	r := g.reg()
	g.do(func(a *x86.Asm) { a.Mov(4, r, x86.At(x86.RSP, 12)) })
	g.do(func(a *x86.Asm) { a.Lea(8, x86.RSP, x86.At(x86.RSP, 64)) })
	g.odd = false
	g.a.Place(skip)
}

// rewrite is an instruction that rewrites the next one, without a word to anybody.
func (g *gen) rewrite() {
	l := g.a.NewLabel()
	g.rewritten = true
	defer func() { g.rewritten = false }()
	switch g.IntN(5) {
	case 0: // movw $imm, 1f(%rip); 1: two bytes that become other two
		b := [][]byte{{0x90, 0x90}, {0x31, 0xc0}, {0x89, 0xc8}, {0x66, 0x90}}[g.IntN(4)]
		g.ins(0x66, 0xc7, 0x05, 0, 0, 0, 0, b[0], b[1])
		g.insChanged(0xff, 0xc0) // inc %eax
	case 1: // movl %esi, 1(%rdi): an immediate
		g.lea(x86.RDI, l)
		v := g.Uint32()
		g.do(func(a *x86.Asm) { a.Mov(4, x86.RSI, x86.Imm(int32(v))) })
		g.do(func(a *x86.Asm) { a.Mov(4, x86.At(x86.RDI, 1), x86.RSI) })
		g.a.Place(l)
		g.insChanged(0xb9, 0, 0, 0, 0) // mov $0, %ecx
	case 2: // rep stosb over instructions of one byte
		g.lea(x86.RDI, l)
		n := 1 + g.IntN(8)
		g.do(func(a *x86.Asm) { a.Mov(4, x86.RCX, x86.Imm(n)) })
		op := []byte{0x90, 0xf8, 0x99}[g.IntN(3)]
		g.do(func(a *x86.Asm) { a.Mov(4, x86.RAX, x86.Imm(int(op))) })
		g.ins(0xf3, 0xaa)
		g.a.Place(l)
		for range n {
			g.insChanged(0xf9)
		}
	case 3: // movb: another register
		g.ins(0xc6, 0x05, 1, 0, 0, 0, 0xc0|byte(g.IntN(4))) // movb $imm, 1f+1(%rip)
		g.insChanged(0xff, 0xc3)                            // inc %ebx
	default: // movq %rsi, (%rdi): an instruction and the code after it
		g.lea(x86.RDI, l)
		g.do(func(a *x86.Asm) { a.Mov(8, x86.RSI, x86.Imm(int64(-0x6f3e00b73c00b770))) })
		g.do(func(a *x86.Asm) { a.Mov(8, x86.At(x86.RDI, 0), x86.RSI) })
		g.a.Place(l)
		g.insChanged(0xf5)
		g.insChanged(0x48, 0x83, 0xc0, 1)
		g.insChanged(0x48, 0xff, 0xc2)
	}
}

// insChanged appends an instruction that is rewritten before it runs.
func (g *gen) insChanged(b ...byte) {
	g.changed = true
	g.ins(b...)
	g.changed = false
}

// tracer asks the guest's tracer for something, at l.
func (g *gen) tracer(service byte, l x86.Label) {
	g.lea(x86.RDI, l)
	g.service(service)
}

// breakpoint is an instruction with an int3 of the guest's own tracer.
func (g *gen) breakpoint() {
	l := g.a.NewLabel()
	g.tracer(serviceBreak, l)
	for range g.IntN(4) {
		g.alu()
	}
	g.a.Place(l)
	g.changed = true
	for at := g.a.Len(); g.a.Len() == at; {
		g.alu()
	}
	g.changed = false
	for range g.IntN(3) {
		g.alu()
	}
	g.tracer(serviceUnbreak, l)
}

// pokedInsn is an instruction that the guest's tracer replaces by others that do the same,
// while other tasks may run it. All end with the same one.
func (g *gen) pokedInsn() {
	l := g.a.NewLabel()
	b := [][]byte{{0x0f, 0x1f, 0x44, 0, 0}, {0xe9, 0, 0, 0, 0}, {0x3e, 0x8d, 0x74, 0x26, 0}}
	for range 1 + g.IntN(3) {
		var code uint64
		for i, c := range b[g.IntN(2)] {
			code |= uint64(c) << (8 * i)
		}
		g.do(func(a *x86.Asm) { a.Mov(8, x86.RSI, x86.Imm(int64(code))) })
		g.do(func(a *x86.Asm) { a.Mov(4, x86.RDX, x86.Imm(5)) })
		g.tracer(servicePoke, l)
	}
	for range g.IntN(3) {
		g.alu()
	}
	g.a.Place(l)
	g.insChanged(b[0]...)
	for range g.IntN(3) {
		g.alu()
	}
}

// rereadText is text that the guest's tracer reads, and writes back afterwards.
func (g *gen) rereadText() {
	l := g.a.NewLabel()
	g.do(func(a *x86.Asm) { a.Mov(4, x86.RSI, x86.Imm(1+g.IntN(24))) })
	g.tracer(serviceKeep, l)
	for range g.IntN(3) {
		g.alu()
	}
	g.a.Place(l)
	g.odd = true
	start := g.a.Len()
	for g.a.Len() < start+24 {
		g.alu()
	}
	g.odd = false
	g.tracer(serviceBack, l)
}
