package torture

import (
	"github.com/guestprobe/guestprobe/guest/x86"
)

// alu is an instruction that computes something, on registers or memory.
func (g *gen) alu() {
	if g.quiet || g.IntN(3) > 0 {
		g.register()
		return
	}
	g.memory()
}

// operation is an opcode with a ModRM byte and two operands, reg and rm.
type operation struct {
	op    []byte
	write byte // which of them changes: 'r' reg, 'm' rm, 'b' both, 0 neither
}

// bit reports whether o is bt or bts, which leave OF, SF, AF and PF undefined (SDM
// volume 2, BT).
func (o operation) bit() bool { return len(o.op) == 2 && (o.op[1] == 0xa3 || o.op[1] == 0xab) }

var binary2 = []operation{
	{[]byte{0x01}, 'm'}, {[]byte{0x03}, 'r'}, {[]byte{0x09}, 'm'}, {[]byte{0x0b}, 'r'}, {[]byte{0x11}, 'm'}, {[]byte{0x13}, 'r'},
	{[]byte{0x19}, 'm'}, {[]byte{0x1b}, 'r'}, {[]byte{0x21}, 'm'}, {[]byte{0x23}, 'r'}, {[]byte{0x29}, 'm'}, {[]byte{0x2b}, 'r'},
	{[]byte{0x31}, 'm'}, {[]byte{0x33}, 'r'}, {[]byte{0x39}, 0}, {[]byte{0x3b}, 0}, {[]byte{0x85}, 0}, {[]byte{0x87}, 'b'},
	{[]byte{0x89}, 'm'}, {[]byte{0x8b}, 'r'}, {[]byte{0x63}, 'r'}, {[]byte{0x0f, 0xaf}, 'r'}, {[]byte{0x0f, 0xb6}, 'r'}, {[]byte{0x0f, 0xb7}, 'r'},
	{[]byte{0x0f, 0xbe}, 'r'}, {[]byte{0x0f, 0xbf}, 'r'}, {[]byte{0x0f, 0xa3}, 0}, {[]byte{0x0f, 0xab}, 'm'}, {[]byte{0x0f, 0xc1}, 'b'}, {[]byte{0x0f, 0xb1}, 'b'},
}

// register is an instruction on registers.
func (g *gen) register() {
	switch g.IntN(12) {
	case 0: // an immediate
		r := g.reg()
		b := []byte{g.rex(0, r), 0x83, 0xc0 | byte(g.IntN(8))<<3 | byte(r&7), byte(g.Uint32())}
		if g.IntN(2) == 0 {
			b[1] = 0x81
			b = append(b, byte(g.Uint32()), byte(g.Uint32()), byte(g.Uint32()))
		}
		g.ins(b...)
	case 1: // a shift
		r, op, n := g.reg(), []byte{0, 1, 4, 5, 7}[g.IntN(5)], byte(g.IntN(33))
		if g.p.Kernel && op < 2 {
			// The OF of a rotate by more than one is undefined. KVM's emulator always
			// rotates by CL. Intel's processors then set an OF that they leave alone for an
			// immediate count.
			n &= 1
		}
		g.ins(g.rex(0, r), 0xc1, 0xc0|op<<3|byte(r&7), n)
	case 2: // one operand
		r := g.reg()
		op := []struct{ b, n byte }{{0xff, 0}, {0xff, 1}, {0xf7, 2}, {0xf7, 3}}[g.IntN(4)]
		g.ins(g.rex(0, r), op.b, 0xc0|op.n<<3|byte(r&7))
	case 3: // a number
		r, v := g.reg(), g.interestingNumber()
		g.do(func(a *x86.Asm) { a.Mov(8, r, x86.Imm(v)) })
	case 4: // cmovcc
		r, m := g.reg(), g.readableReg()
		g.ins(g.rex(r, m), 0x0f, 0x40|byte(g.IntN(16)), 0xc0|byte(r&7)<<3|byte(m&7))
	case 5: // setcc
		r := g.reg()
		g.ins(0x40|byte(r>>3), 0x0f, 0x90|byte(g.IntN(16)), 0xc0|byte(r&7))
	case 6: // lea
		r := g.reg()
		base, index := g.readableReg(), g.readableReg()
		g.do(func(a *x86.Asm) { a.Lea(8, r, x86.AtIndex(base, index, 1<<g.IntN(4), g.IntN(300)-100)) })
	case 7:
		g.ins([]byte{0xf5, 0xf8, 0xf9, 0x98, 0x90, 0x9e}[g.IntN(6)]) // cmc, clc, stc, cwde, nop, sahf
	case 8: // imul by a constant
		r, m := g.reg(), g.readableReg()
		g.ins(g.rex(r, m), 0x6b, 0xc0|byte(r&7)<<3|byte(m&7), byte(g.Uint32()))
	default:
		o := binary2[g.IntN(len(binary2))]
		if o.bit() && !g.Bits {
			return
		}
		reg, rm := g.readableReg(), g.readableReg()
		if o.write == 'r' || o.write == 'b' {
			reg = g.reg()
		}
		if o.write == 'm' || o.write == 'b' {
			rm = g.reg()
		}
		if len(o.op) == 2 && o.op[1] == 0xb1 && len(g.regs) == 0 {
			return
		}
		var b []byte
		if g.IntN(6) == 0 {
			b = append(b, 0x66)
		}
		rex := g.rex(reg, rm)
		if g.p.Kernel && len(o.op) == 2 && o.op[1] == 0xb1 {
			// Of 32 bits, KVM's emulator clears the upper half of a destination that was
			// not equal; the processor does not.
			rex |= 8
		}
		b = append(append(b, rex), o.op...)
		g.ins(append(b, 0xc0|byte(reg&7)<<3|byte(rm&7))...)
	}
}

// rex returns a REX prefix, of 64 bits or less.
func (g *gen) rex(reg, rm x86.Reg64) byte {
	return 0x40 | byte(g.IntN(2))<<3 | byte(reg>>3)<<2 | byte(rm>>3)
}

// memory is an instruction with a memory operand in the data area.
func (g *gen) memory() {
	disp := dataFirst + g.IntN(0xc00)
	if g.aligned {
		disp &^= 7
	}
	o := binary2[g.IntN(len(binary2))]
	if o.bit() {
		return // the bit's number would move the address
	}
	reg := g.readableReg()
	if o.write == 'r' || o.write == 'b' {
		reg = g.reg()
	}
	var b []byte
	if g.IntN(4) == 0 && !g.aligned && (o.write == 'm' || o.write == 'b') && o.op[0] != 0x89 {
		disp &^= 7
		b = append(b, 0xf0) // lock
	}
	b = append(append(b, g.rex(reg, regData)), o.op...)
	b = append(b, 0x80|byte(reg&7)<<3|byte(regData&7), byte(disp), byte(disp>>8), 0, 0)
	g.ins(b...)
}
