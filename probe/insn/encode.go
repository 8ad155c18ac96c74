package insn

// Sizes of what a probe writes into text.
const (
	Int3     = 0xcc // the breakpoint instruction, one byte
	JmpLen   = 5    // jmp rel32
	JmpOp    = 0xe9 // its opcode
	UD2Len   = 2
	jmp8Op   = 0xeb
	callOp   = 0xe8
	nopMax   = 9
	pushfOp  = 0x9c
	popfOp   = 0x9d
	movImmOp = 0xb8
)

// Reg64 is a general register, numbered as the CPU does.
type Reg64 uint8

// The general registers.
const (
	RAX Reg64 = iota
	RCX
	RDX
	RBX
	RSP
	RBP
	RSI
	RDI
	R8
	R9
	R10
	R11
	R12
	R13
	R14
	R15
)

// JmpReaches reports whether a jmp rel32 at from can go to to. RIP wraps
// modulo 2^64, so text at the bottom and at the top of the address space reach
// each other.
func JmpReaches(from, to uint64) bool { return fits32(to - (from + JmpLen)) }

// Jmp32 returns the 5 bytes of a jmp rel32 at from to to; false when it is out
// of reach.
func Jmp32(from, to uint64) (b [JmpLen]byte, ok bool) {
	if !JmpReaches(from, to) {
		return b, false
	}
	b[0] = JmpOp
	put32(b[1:], uint32(to-(from+JmpLen)))
	return b, true
}

// AppendJmp appends a jmp rel32 that will stand at from, or returns b
// unchanged and false.
func AppendJmp(b []byte, from, to uint64) ([]byte, bool) {
	j, ok := Jmp32(from, to)
	if !ok {
		return b, false
	}
	return append(b, j[:]...), true
}

// AppendCall appends a call rel32 that will stand at from, or returns b
// unchanged and false.
func AppendCall(b []byte, from, to uint64) ([]byte, bool) {
	j, ok := Jmp32(from, to)
	if !ok {
		return b, false
	}
	j[0] = callOp
	return append(b, j[:]...), true
}

// AppendJmpAbs appends a jump to any address: jmp *0(%rip) and the address
// behind it, 14 bytes. It changes no register.
func AppendJmpAbs(b []byte, to uint64) []byte {
	b = append(b, 0xff, 0x25, 0, 0, 0, 0)
	return append64(b, to)
}

// AppendInt3 appends an int3.
func AppendInt3(b []byte) []byte { return append(b, Int3) }

// AppendUD2 appends a ud2, which faults wherever it is executed.
func AppendUD2(b []byte) []byte { return append(b, 0x0f, 0x0b) }

// AppendPush appends push r.
func AppendPush(b []byte, r Reg64) []byte { return appendShortReg(b, 0x50, r) }

// AppendPop appends pop r.
func AppendPop(b []byte, r Reg64) []byte { return appendShortReg(b, 0x58, r) }

// AppendPushImm appends push of an immediate, which the CPU extends from 32
// to 64 bits with its sign.
func AppendPushImm(b []byte, v int32) []byte { return append32(append(b, 0x68), uint32(v)) }

// AppendPushf and AppendPopf append pushfq and popfq.
func AppendPushf(b []byte) []byte { return append(b, pushfOp) }

// AppendPopf appends popfq.
func AppendPopf(b []byte) []byte { return append(b, popfOp) }

// AppendMovImm appends the shortest mov that loads v into all 64 bits of r:
// 5 or 6 bytes when v fits in 32 bits without sign, 7 when it does with it,
// else 10. It changes no flags.
func AppendMovImm(b []byte, r Reg64, v uint64) []byte {
	switch {
	case v == uint64(uint32(v)):
		return append32(appendShortReg(b, movImmOp, r), uint32(v))
	case fits32(v):
		return append32(append(b, rexW(0, r), 0xc7, 0xc0|byte(r&7)), uint32(v))
	}
	return append64(append(b, rexW(0, r), movImmOp|byte(r&7)), v)
}

// AppendMovReg appends mov src to dst, 64 bits.
func AppendMovReg(b []byte, dst, src Reg64) []byte {
	return append(b, rexW(src, dst), 0x89, 0xc0|byte(src&7)<<3|byte(dst&7))
}

// AppendLea appends lea disp(base), dst, 64 bits. It changes no flags.
func AppendLea(b []byte, dst, base Reg64, disp int32) []byte {
	b = append(b, rexW(dst, base), 0x8d, 0x80|byte(dst&7)<<3|byte(base&7))
	if base&7 == RSP {
		b = append(b, 0x24)
	}
	return append32(b, uint32(disp))
}

// AppendLoad and AppendStore append a 64-bit mov from and to disp(base).
func AppendLoad(b []byte, dst, base Reg64, disp int32) []byte {
	return appendMem(b, 0x8b, dst, base, disp)
}

// AppendStore appends mov src to disp(base), 64 bits.
func AppendStore(b []byte, base Reg64, disp int32, src Reg64) []byte {
	return appendMem(b, 0x89, src, base, disp)
}

func appendMem(b []byte, op byte, r, base Reg64, disp int32) []byte {
	b = append(b, rexW(r, base), op, 0x80|byte(r&7)<<3|byte(base&7))
	if base&7 == RSP {
		b = append(b, 0x24)
	}
	return append32(b, uint32(disp))
}

// rexW returns the REX prefix with W for ModRM.reg and ModRM.rm.
func rexW(reg, rm Reg64) byte { return 0x48 | byte(reg>>3)<<2 | byte(rm>>3) }

// appendShortReg appends an opcode that has the register in its low bits.
func appendShortReg(b []byte, op byte, r Reg64) []byte {
	if r >= R8 {
		b = append(b, 0x41)
	}
	return append(b, op|byte(r&7))
}

func append32(b []byte, v uint32) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}

func append64(b []byte, v uint64) []byte {
	return append32(append32(b, uint32(v)), uint32(v>>32))
}

// nops are the multi-byte nops that both vendors recommend (SDM Vol. 2, NOP,
// table 4-12; APM Vol. 3, NOP).
var nops = [nopMax + 1]string{
	1: "\x90",
	2: "\x66\x90",
	3: "\x0f\x1f\x00",
	4: "\x0f\x1f\x40\x00",
	5: "\x0f\x1f\x44\x00\x00",
	6: "\x66\x0f\x1f\x44\x00\x00",
	7: "\x0f\x1f\x80\x00\x00\x00\x00",
	8: "\x0f\x1f\x84\x00\x00\x00\x00\x00",
	9: "\x66\x0f\x1f\x84\x00\x00\x00\x00\x00",
}

// AppendNop appends n bytes of nops, in as few instructions as possible.
func AppendNop(b []byte, n int) []byte {
	for n > 0 {
		k := min(n, nopMax)
		b = append(b, nops[k]...)
		n -= k
	}
	return b
}
