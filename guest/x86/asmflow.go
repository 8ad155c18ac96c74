package x86

// Cond is a condition of jcc and setcc, numbered as the CPU does (SDM Vol. 2,
// B.1.4.7).
type Cond uint8

// The conditions: A and B are unsigned comparisons, G and L signed ones.
const (
	CondO Cond = iota
	CondNO
	CondB // also carry
	CondAE
	CondE // also zero
	CondNE
	CondBE
	CondA
	CondS // negative
	CondNS
	CondP
	CondNP
	CondL
	CondGE
	CondLE
	CondG
)

// Not returns the opposite condition.
func (c Cond) Not() Cond { return c ^ 1 }

// Jmp appends a jump to l.
func (a *Asm) Jmp(l Label) {
	a.emit(JmpOp)
	a.ref(l)
}

// Jcc appends a jump to l that is taken on a condition.
func (a *Asm) Jcc(c Cond, l Label) {
	a.emit(0x0f, 0x80|byte(c))
	a.ref(l)
}

// Call appends a call of l.
func (a *Asm) Call(l Label) {
	a.emit(callOp)
	a.ref(l)
}

// JmpAt appends a jump to the address in x, a register or memory.
func (a *Asm) JmpAt(x Arg) { a.modrm(4, 0xff, 4, x, false, false) }

// CallAt appends a call of the address in x, a register or memory.
func (a *Asm) CallAt(x Arg) { a.modrm(4, 0xff, 2, x, false, false) }

// Setcc appends r = 1 or 0, the low byte only, by a condition.
func (a *Asm) Setcc(c Cond, r Reg64) {
	a.noteWrite(r)
	a.modrm(4, 0x0f90|opcode(c), 0, r, false, true)
}

// Push appends the push of a register, of memory, or of a sign-extended immediate of
// 32 bits.
func (a *Asm) Push(x Arg) {
	switch x := x.(type) {
	case Reg64:
		a.shortReg(0x50, x)
	case Mem:
		a.modrm(4, 0xff, 6, x, false, false)
	case Imm:
		a.emit(0x68)
		a.imm32(x.imm(8))
	}
}

// Pop appends the pop of a register or to memory; an address with RSP uses RSP after
// the pop.
func (a *Asm) Pop(x Arg) {
	if r, ok := x.(Reg64); ok {
		a.shortReg(0x58, r)
		return
	}
	a.modrm(4, 0x8f, 0, x, false, false)
}

// Out appends out of AL to a port.
func (a *Asm) Out(port uint8) { a.emit(0xe6, port) }

// Instructions without operands.

// Ret appends ret.
func (a *Asm) Ret() { a.emit(0xc3) }

// Int3 appends int3.
func (a *Asm) Int3() { a.emit(Int3) }

// Iretq appends iretq.
func (a *Asm) Iretq() { a.emit(0x48, 0xcf) }

// Pushfq appends the push of RFLAGS.
func (a *Asm) Pushfq() { a.emit(0x9c) }

// Popfq appends the pop of RFLAGS.
func (a *Asm) Popfq() { a.emit(0x9d) }

// Lahf appends AH = SF, ZF, AF, PF and CF as in RFLAGS.
func (a *Asm) Lahf() { a.emit(0x9f) }

// Sahf appends the opposite of Lahf.
func (a *Asm) Sahf() { a.emit(0x9e) }

// Cli appends IF = 0.
func (a *Asm) Cli() { a.emit(0xfa) }

// Cld appends DF = 0.
func (a *Asm) Cld() { a.emit(0xfc) }

// Hlt appends hlt.
func (a *Asm) Hlt() { a.emit(0xf4) }

// Nop appends a nop of one byte.
func (a *Asm) Nop() { a.emit(0x90) }

// Syscall appends syscall.
func (a *Asm) Syscall() { a.emit(0x0f, 0x05) }

// Pause appends pause.
func (a *Asm) Pause() { a.emit(0xf3, 0x90) }

// Rdtsc appends EDX:EAX = the time stamp counter.
func (a *Asm) Rdtsc() { a.emit(0x0f, 0x31) }
