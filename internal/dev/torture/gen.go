package torture

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Registers of generated code. All others except RSP have any value at any time.
const (
	regData    = x86.R14 // the task's data area
	regCount   = x86.R15 // of the innermost loop
	regRestore = x86.R13 // RSP, while the stack is another one
)

// free are the registers that random instructions change, by their numbers.
var free = []x86.Reg64{x86.RAX, x86.RCX, x86.RDX, x86.RBX, x86.RBP, x86.RSI, x86.RDI, x86.R8, x86.R9, x86.R10, x86.R11, x86.R12}

// leafRegs are the registers that leaf functions change.
var leafRegs = []x86.Reg64{x86.RAX, x86.RCX, x86.RDX, x86.RDI}

// Places in a task's data area.
const (
	wordResume = 0     // where the task continues after an exception
	dataFirst  = 0x100 // of the data for random instructions
	dataLast   = 0x2f00
)

// gen makes one program.
type gen struct {
	*rand.Rand
	a     *x86.Asm
	p     *Program
	refs  []ref
	funcs []*fn
	depth int // of loops
	// Restrictions of the current code.
	regs      []x86.Reg64 // that it may change
	aligned   bool        // no access of memory that is not aligned
	quiet     bool        // no access of memory, of the stack, no calls
	signal    bool
	changed   bool // it is rewritten before it runs
	odd       bool // see Inst.Odd
	rewritten bool // see Inst.Rewritten
	Features
	more *rand.Rand // for the program's classes; nil: no classes
}

// ref is a displacement of 32 bits that is filled in at the end: the distance of
// a label from base, or where base is negative from its own end.
type ref struct {
	at   int
	to   x86.Label
	base int
}

// fn is a function in the making.
type fn struct {
	label  x86.Label
	kind   kind
	name   string
	second x86.Label // kindTwice: where it returns once more
}

// kind is the kind of a function.
type kind uint8

const (
	kindLeaf  kind = iota // a few instructions on leafRegs, no stack
	kindPlain             // anything
	kindPops              // pops an argument off the stack
	kindTail              // leaves with a jump to a leaf
	kindMove              // moves the stack with all frames
	kindTwice             // returns twice, first on a copy of the stack
	kindKeep              // keeps its return address elsewhere than on the stack
)

// Features select the optional parts of programs.
type Features struct {
	Bits    bool // bit tests
	FIP     bool // the address of the last x87 instruction
	Classes Class
}

// Generate makes the program of a seed.
func Generate(seed uint64, can Features) *Program {
	g := &gen{Rand: rand.New(rand.NewPCG(seed, 0x67756573)), p: &Program{}, regs: free, Features: can}
	g.a = x86.NewAsm(textVA)
	p := g.p
	p.Tasks = 1 + g.IntN(4)
	p.Kernel = seed%3 == 2
	if !p.Kernel {
		p.Lazy = g.IntN(3)
	}
	p.SignalEvery = 1 + g.IntN(3)
	p.AltStack = g.IntN(2) == 0
	p.Data = make([]byte, dataLast)
	for i := dataFirst; i < len(p.Data); i += 8 {
		binary.LittleEndian.PutUint64(p.Data[i:], g.interestingNumber())
	}
	g.classes(seed)
	keeps := rand.New(rand.NewPCG(seed, 0x6b656570))
	for i := range 4 + g.IntN(6) {
		f := &fn{label: g.a.NewLabel(), kind: kind(g.IntN(4)), name: fmt.Sprintf("f%d", i)}
		if i < 2 {
			f.kind = kindLeaf
		} else if g.is(Moves) && g.more.IntN(2) == 0 {
			f.kind = kindMove + kind(g.more.IntN(2))
			f.second = g.a.NewLabel()
		}
		if i >= 2 && g.is(Moves) && keeps.IntN(4) == 0 {
			f.kind = kindKeep
		}
		g.funcs = append(g.funcs, f)
	}
	g.function("main", false, g.main)
	if g.IntN(4) > 0 {
		g.function("handler", false, g.handler)
		p.Handler = p.Funcs[len(p.Funcs)-1].Off
	}
	for i := len(g.funcs) - 1; i >= 0; i-- {
		f := g.funcs[i]
		g.function(f.name, true, func() {
			g.a.Place(f.label)
			g.body(i)
		})
	}
	text := g.a.Code()
	for _, r := range g.refs {
		base := r.base
		if base < 0 {
			base = r.at + 4
		}
		binary.LittleEndian.PutUint32(text[r.at:], uint32(g.a.Offset(r.to)-base))
	}
	p.Text = text
	return p
}

// function makes a symbol from f's code. Between it and the last one is nothing,
// padding, or data.
func (g *gen) function(name string, calls bool, f func()) {
	switch g.IntN(6) {
	case 0:
	case 1:
		g.rawBytes(g.bytes(1 + g.IntN(16))...)
	case 2:
		for g.a.Len()%16 != 0 {
			g.rawBytes(0xcc)
		}
	default:
		g.rawBytes(nops[(16-g.a.Len()%16)%16]...)
	}
	off := g.a.Len()
	f()
	g.p.Funcs = append(g.p.Funcs, Func{Name: name, Off: off, Size: g.a.Len() - off, Label: g.IntN(8) == 0, Calls: calls})
}

// nops are the ones that assemblers emit, by length (SDM Vol. 2, NOP).
var nops = [16][]byte{
	{}, {0x90}, {0x66, 0x90}, {0x0f, 0x1f, 0x00}, {0x0f, 0x1f, 0x40, 0}, {0x0f, 0x1f, 0x44, 0, 0}, {0x66, 0x0f, 0x1f, 0x44, 0, 0},
	{0x0f, 0x1f, 0x80, 0, 0, 0, 0}, {0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0}, {0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0},
	{0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0}, {0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0},
	{0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0}, {0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0},
	{0x66, 0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0}, {0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0},
}

// interestingNumber returns a number that finds mistakes.
func (g *gen) interestingNumber() uint64 {
	switch g.IntN(6) {
	case 0:
		return uint64(g.IntN(4)) - 1
	case 1:
		return 1 << g.IntN(64)
	case 2:
		return uint64(int64(int32(g.Uint32())))
	case 3:
		return 0xcccccccc_cccccccc
	default:
		return g.Uint64()
	}
}

func (g *gen) bytes(n int) []byte {
	b := make([]byte, n)
	kind := g.IntN(4)
	for i := range b {
		switch kind {
		case 0:
			b[i] = 0xcc
		case 1:
			b[i] = 0x90
		default:
			b[i] = byte(g.Uint32())
		}
	}
	return b
}

// rawBytes appends bytes that are not an instruction, or whose beginning is
// already recorded.
func (g *gen) rawBytes(b ...byte) { g.a.Append(b) }

// mark notes that an instruction begins here.
func (g *gen) mark() {
	g.p.Insts = append(g.p.Insts, Inst{Off: g.a.Len(), Signal: g.signal, Changed: g.changed, Odd: g.odd || g.changed, Rewritten: g.changed && g.rewritten})
}

// ins appends an instruction of bytes.
func (g *gen) ins(b ...byte) {
	g.mark()
	g.rawBytes(b...)
}

// do appends an instruction.
func (g *gen) do(f func(a *x86.Asm)) {
	g.mark()
	f(g.a)
}

// rip appends an instruction whose operand is a label relative to RIP: its bytes
// up to the displacement.
func (g *gen) rip(l x86.Label, b ...byte) {
	g.mark()
	g.rawBytes(b...)
	g.refs = append(g.refs, ref{g.a.Len(), l, -1})
	g.rawBytes(0, 0, 0, 0)
}

// lea loads the address of a label.
func (g *gen) lea(r x86.Reg64, l x86.Label) {
	g.rip(l, 0x48|byte(r>>3)<<2, 0x8d, 0x05|byte(r&7)<<3)
}

// reg returns a register that may be changed.
func (g *gen) reg() x86.Reg64 { return g.regs[g.IntN(len(g.regs))] }

// readableReg returns a register that may be read.
func (g *gen) readableReg() x86.Reg64 {
	if g.IntN(8) == 0 {
		return regData
	}
	return free[g.IntN(len(free))]
}

// service asks the kernel for something.
func (g *gen) service(n byte) {
	g.rawBytes(0x0f, 0x0b, n) // no probe can be on a trap
}

// main is where tasks begin: registers are set, functions called, and the end
// asked for.
func (g *gen) main() {
	g.p.Entry = g.a.Len()
	g.do(func(a *x86.Asm) { a.Mov(8, regData, x86.RDI) })
	for _, r := range free {
		if r != x86.RDI {
			v := g.interestingNumber()
			g.do(func(a *x86.Asm) { a.Mov(8, r, x86.Imm(v)) })
		}
	}
	g.do(func(a *x86.Asm) { a.Mov(4, regCount, x86.Imm(0)) })
	g.do(func(a *x86.Asm) { a.Mov(4, regRestore, x86.Imm(0)) })
	if g.p.Alias != nil && g.p.Alias.Late {
		g.service(serviceAlias)
	}
	for range 2 + g.IntN(4) {
		g.blocks(1+g.IntN(3), -1)
		g.call(g.IntN(len(g.funcs)))
	}
	g.service(serviceEnd)
}

// handler is the signal handler. The kernel restores all registers afterwards.
func (g *gen) handler() {
	g.signal = true
	g.regs, g.quiet = leafRegs, true
	for range 1 + g.IntN(6) {
		g.alu()
	}
	g.quiet = false
	g.do(func(a *x86.Asm) { a.Push(x86.RAX) })
	g.do(func(a *x86.Asm) { a.Pop(x86.RCX) })
	g.regs, g.signal = free, false
	g.service(serviceReturn)
}

// body makes function i.
func (g *gen) body(i int) {
	f := g.funcs[i]
	switch f.kind {
	case kindLeaf:
		g.regs, g.quiet = leafRegs, true
		for range 1 + g.IntN(5) {
			g.alu()
		}
		g.regs, g.quiet = free, false
		if g.IntN(8) == 0 {
			g.ins(0xf3) // rep ret
			g.rawBytes(0xc3)
		} else {
			g.do((*x86.Asm).Ret)
		}
	case kindMove:
		g.move()
		g.blocks(1+g.IntN(3), i)
		g.do((*x86.Asm).Ret)
	case kindTwice:
		g.bodyTwice(f)
	case kindKeep:
		g.bodyKeep()
	case kindPops:
		g.blocks(1+g.IntN(3), i)
		g.ins(0xc2, 8, 0) // ret $8
	case kindTail:
		g.blocks(1+g.IntN(2), i)
		leaf := g.funcs[g.IntN(2)].label
		if g.IntN(2) == 0 {
			g.do(func(a *x86.Asm) { a.Jmp(leaf) })
		} else {
			g.lea(x86.RAX, leaf)
			g.do(func(a *x86.Asm) { a.JmpAt(x86.RAX) })
		}
	default:
		saved := g.IntN(3)
		for k := range saved {
			g.do(func(a *x86.Asm) { a.Push(free[3+k]) })
		}
		g.blocks(1+g.IntN(4), i)
		for k := saved - 1; k >= 0; k-- {
			g.do(func(a *x86.Asm) { a.Pop(free[3+k]) })
		}
		g.do((*x86.Asm).Ret)
	}
}

// call calls function i.
func (g *gen) call(i int) {
	f := g.funcs[i]
	if f.kind == kindPops {
		g.do(func(a *x86.Asm) { a.Push(g.readableReg()) })
	}
	switch g.IntN(4) {
	case 0:
		r := g.reg()
		g.lea(r, f.label)
		g.do(func(a *x86.Asm) { a.CallAt(r) })
	case 1:
		r := g.reg()
		g.lea(r, f.label)
		g.do(func(a *x86.Asm) { a.Mov(8, x86.At(regData, 8), r) })
		g.do(func(a *x86.Asm) { a.CallAt(x86.At(regData, 8)) })
		// Other tasks have other addresses there only if their text were another one.
		g.do(func(a *x86.Asm) { a.Mov(8, x86.At(regData, 8), x86.Imm(0)) })
	default:
		g.do(func(a *x86.Asm) { a.Call(f.label) })
	}
	if f.kind == kindTwice {
		g.returnAgain(f)
	}
}
