package x86

// Bytes that a probe writes into text, or looks for there.
const (
	Int3    = 0xcc // the breakpoint instruction, one byte
	JmpLen  = 5    // jmp rel32
	JmpOp   = 0xe9 // its opcode
	jmp8Op  = 0xeb
	callOp  = 0xe8
	PushRBP = 0x55 // push %rbp, the beginning of a function with a frame pointer
)

// Endbr64 is the beginning of a function that indirect branches may reach (SDM Vol.
// 2, ENDBR64).
const Endbr64 = "\xf3\x0f\x1e\xfa"

// HasEndbr64 reports whether code begins with an endbr64, or with one of the nops by
// which Linux replaces an unneeded endbr64, and which it uses for nothing else
// (gen_endbr_poison, until and since 6.15).
func HasEndbr64(code []byte) bool {
	for _, mark := range []string{Endbr64, "\x66\x0f\x1f\x00", "\x0f\x1f\x40\xd6"} {
		if len(code) >= len(mark) && string(code[:len(mark)]) == mark {
			return true
		}
	}
	return false
}

// jmpReaches reports whether a jmp rel32 at from can reach to. RIP wraps modulo 2^64,
// so text at the bottom and at the top of the address space reach each other.
func jmpReaches(from, to uint64) bool { return fits32(to - (from + JmpLen)) }

// Jmp32 returns the 5 bytes of a jmp rel32 at from to to; false if it is out of
// reach.
func Jmp32(from, to uint64) (b [JmpLen]byte, ok bool) {
	if !jmpReaches(from, to) {
		return b, false
	}
	b[0] = JmpOp
	put32(b[1:], uint32(to-(from+JmpLen)))
	return b, true
}

// AppendJmp appends a jmp rel32 for address from, or returns b unchanged and false.
func AppendJmp(b []byte, from, to uint64) ([]byte, bool) {
	j, ok := Jmp32(from, to)
	if !ok {
		return b, false
	}
	return append(b, j[:]...), true
}

func append32(b []byte, v uint32) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}

func append64(b []byte, v uint64) []byte {
	return append32(append32(b, uint32(v)), uint32(v>>32))
}
