package probetest

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// exception is the exception that an instruction raises instead of completing.
type exception struct {
	vector uint8
	code   uint32
	cr2    guest.GVA
}

// Exception vectors (SDM Vol. 3, table 6-1).
const (
	vecDE = 0
	vecBP = 3
	vecUD = 6
	vecGP = 13
	vecPF = 14

	vecTimer = 32
)

// instr is one instruction in execution.
type instr struct {
	v    *vcpu
	in   x86.Inst
	rex  byte
	size int // operand size
	at   uint64
	next uint64
	fail *exception
}

// exec executes the instruction in at v's RIP, and sets RIP to the next
// instruction or to the branch's target. On an exception no register has
// changed.
func (v *vcpu) exec(in x86.Inst) *exception {
	x := &v.x
	*x = instr{v: v, in: in, at: v.regs.RIP, next: v.regs.RIP + uint64(in.Len), size: 4}
	for _, b := range in.AppendBytes(v.raw[:0]) {
		switch b {
		case 0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65:
			continue
		}
		if b>>4 == 4 {
			x.rex = b
		}
		break
	}
	if in.Has(x86.PrefixOpSize) {
		x.size = 2
	}
	if x.rex&8 != 0 {
		x.size = 8
	}
	if in.Has(x86.PrefixLock) {
		v.f.bus.Lock()
		defer v.f.bus.Unlock()
	}
	before := v.regs
	switch {
	case in.Enc != x86.Legacy:
		x.raiseUndefined()
	case in.Map == x86.Map0:
		x.map0()
	case in.Map == x86.Map0F:
		x.map0F()
	default:
		x.raiseUndefined()
	}
	if x.fail != nil {
		v.regs = before
		return x.fail
	}
	v.regs.RIP = x.next
	return nil
}

func (x *instr) raiseUndefined() { x.fail = &exception{vector: vecUD} }

// memory turns a failed access into #PF or #GP.
func (x *instr) memory(err error, write bool) {
	var p *guest.PageFaultError
	if x.fail != nil || !errors.As(err, &p) {
		return
	}
	if p.Reason == guest.FaultNonCanonical {
		x.fail = &exception{vector: vecGP}
		return
	}
	e := &exception{vector: vecPF, cr2: p.VA}
	if p.Reason == guest.FaultNotWritable || p.Reason == guest.FaultNotUser {
		e.code |= 1
	}
	if write {
		e.code |= 2
	}
	if x.v.cpl == 3 {
		e.code |= 4
	}
	x.fail = e
}

func (x *instr) mode() mode { return mode{user: x.v.cpl == 3} }

func (x *instr) load(addr uint64, size int) uint64 {
	v, err := x.v.f.mem.load(guest.GVA(addr), size, x.mode())
	if err != nil {
		x.memory(err, false)
	}
	return v
}

func (x *instr) store(addr uint64, size int, v uint64) {
	if err := x.v.f.mem.store(guest.GVA(addr), size, v, x.mode()); err != nil {
		x.memory(err, true)
	}
}

// reg and setReg access general register n with operand size semantics (SDM
// Vol. 1, 3.4.1.1).
func (x *instr) reg(n byte, size int) uint64 {
	if size == 1 && n >= 4 && n < 8 && x.rex == 0 {
		return *x.v.regs.Reg(x86.Reg64(n - 4)) >> 8 & 0xff
	}
	return *x.v.regs.Reg(x86.Reg64(n)) & maskOf(size)
}

func (x *instr) setReg(n byte, size int, v uint64) {
	if x.fail != nil {
		return
	}
	if size == 1 && n >= 4 && n < 8 && x.rex == 0 {
		p := x.v.regs.Reg(x86.Reg64(n - 4))
		*p = *p&^0xff00 | v&0xff<<8
		return
	}
	p := x.v.regs.Reg(x86.Reg64(n))
	switch size {
	case 8:
		*p = v
	case 4:
		*p = v & 0xffffffff
	default:
		*p = *p&^maskOf(size) | v&maskOf(size)
	}
}

// r is the register in ModRM.reg, b that in the low opcode bits or ModRM.rm.
func (x *instr) r() byte       { return x.in.Reg() | x.rex&4<<1 }
func (x *instr) b(n byte) byte { return n&7 | x.rex&1<<3 }
func (x *instr) isReg() bool   { return x.in.Mod() == 3 }
func (x *instr) flags() uint64 { return x.v.regs.RFLAGS }
func (x *instr) setFlags(f uint64) {
	if x.fail == nil {
		x.v.regs.RFLAGS = f | 2
	}
}

// addr returns the address of the memory operand.
func (x *instr) addr() uint64 {
	a, ok := x.in.Addr(x.at, &x.v.regs)
	if !ok || x.in.Segment == x86.SegFS || x.in.Segment == x86.SegGS && x.v.cpl != 0 {
		x.raiseUndefined()
	}
	if x.in.Segment == x86.SegGS && !(x.in.Map == x86.Map0 && x.in.Opcode == 0x8d) { // lea adds no base
		a += uint64(x.v.f.gs(x.v.id))
	}
	return a
}

func (x *instr) rm(size int) uint64 {
	if x.isReg() {
		return x.reg(x.b(x.in.RM()), size)
	}
	return x.load(x.addr(), size)
}

func (x *instr) setRM(size int, v uint64) {
	if x.isReg() {
		x.setReg(x.b(x.in.RM()), size, v)
		return
	}
	x.store(x.addr(), size, v)
}

func (x *instr) push(size int, v uint64) {
	sp := x.v.regs.RSP - uint64(size)
	x.store(sp, size, v)
	if x.fail == nil {
		x.v.regs.RSP = sp
	}
}

func (x *instr) pop(size int) uint64 {
	v := x.load(x.v.regs.RSP, size)
	if x.fail == nil {
		x.v.regs.RSP += uint64(size)
	}
	return v
}

// stackSize is the operand size of push and pop: 8 by default.
func (x *instr) stackSize() int {
	if x.size == 2 {
		return 2
	}
	return 8
}

// jump sets where to continue; a non-canonical target is rejected.
func (x *instr) jump(to uint64) {
	if !guest.GVA(to).Canonical() {
		x.fail = &exception{vector: vecGP}
		return
	}
	x.next = to
}

// map0F executes the two-byte opcodes.
func (x *instr) map0F() {
	op := x.in.Opcode
	switch {
	case op == 0x01 && x.in.ModRM == 0xcb && x.v.cpl == 0: // stac
		x.setFlags(x.flags() | x86.FlagAC)
	case op == 0x1e, op == 0x1f:
	case op == 0x20 && x.in.Reg() == 2: // mov cr2, r64
		x.setReg(x.b(x.in.RM()), 8, uint64(x.v.cr2))
	case op>>4 == 4:
		v := x.rm(x.size)
		if condition(op&15, x.flags()) {
			x.setReg(x.r(), x.size, v)
		} else {
			x.setReg(x.r(), x.size, x.reg(x.r(), x.size)) // a 32-bit cmov clears the upper half even if it does not move
		}
	case op>>4 == 8:
		if condition(op&15, x.flags()) {
			x.jump(x.next + uint64(x.in.Imm))
		}
	case op>>4 == 9:
		v := uint64(0)
		if condition(op&15, x.flags()) {
			v = 1
		}
		x.setRM(1, v)
	case op == 0xaf:
		x.imul(x.reg(x.r(), x.size), x.rm(x.size))
	case op == 0xb6, op == 0xb7:
		x.setReg(x.r(), x.size, x.rm(int(op&1)+1))
	case op == 0xbe, op == 0xbf:
		n := int(op&1) + 1
		x.setReg(x.r(), x.size, uint64(extend(x.rm(n), n)))
	case op == 0xb1: // cmpxchg
		a := x.rm(x.size)
		_, f := sub(x.reg(0, x.size), a, 0, x.size)
		if x.reg(0, x.size) == a {
			x.setRM(x.size, x.reg(x.r(), x.size))
		} else {
			x.setReg(0, x.size, a)
		}
		x.setFlags(x.flags()&^arith | f)
	case op == 0xc1:
		a, b := x.rm(x.size), x.reg(x.r(), x.size)
		v, f := add(a, b, 0, x.size)
		x.setRM(x.size, v)
		x.setReg(x.r(), x.size, a)
		x.setFlags(x.flags()&^arith | f)
	case op >= 0xc8 && op <= 0xcf:
		v := x.reg(x.b(op), x.size)
		w := uint64(0)
		for range x.size {
			w, v = w<<8|v&0xff, v>>8
		}
		x.setReg(x.b(op), x.size, w)
	default:
		x.raiseUndefined()
	}
}

func (x *instr) imul(a, b uint64) {
	s := x.size
	full := extend(a, s) * extend(b, s)
	v := uint64(full) & maskOf(s)
	f := x.flags() &^ (cf | of)
	over := extend(v, s) != full
	if s == 8 {
		over = overflows(extend(a, s), extend(b, s))
	}
	if over {
		f |= cf | of
	}
	x.setReg(x.r(), s, v)
	x.setFlags(f)
}

// overflows reports whether a*b leaves 64 bits.
func overflows(a, b int64) bool {
	if a == 0 || b == 0 {
		return false
	}
	p := a * b
	return p/b != a || a == -1 && b == -1<<63 || b == -1 && a == -1<<63
}
