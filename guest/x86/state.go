package x86

// Bits of RFLAGS (SDM Vol. 1, 3.4.3).
const (
	FlagCF   = 1 << 0
	Flag1    = 1 << 1 // reads as one
	FlagPF   = 1 << 2
	FlagAF   = 1 << 4
	FlagZF   = 1 << 6
	FlagSF   = 1 << 7
	FlagTF   = 1 << 8
	FlagIF   = 1 << 9
	FlagDF   = 1 << 10
	FlagOF   = 1 << 11
	FlagIOPL = 3 << 12
	FlagNT   = 1 << 14
	FlagRF   = 1 << 16
	FlagVM   = 1 << 17
	FlagAC   = 1 << 18
	FlagVIF  = 1 << 19
	FlagVIP  = 1 << 20
	FlagID   = 1 << 21

	// FlagsStatus are the flags that arithmetic sets.
	FlagsStatus = FlagCF | FlagPF | FlagAF | FlagZF | FlagSF | FlagOF
)

// Exception vectors (SDM Vol. 3, table 7-1).
const (
	VectorDB = 1  // debug
	VectorBP = 3  // breakpoint
	VectorUD = 6  // invalid opcode
	VectorDF = 8  // double fault
	VectorSS = 12 // stack segment fault
	VectorGP = 13 // general protection
	VectorPF = 14 // page fault
)

// Reg returns a pointer to general register n in the CPU's numbering (RAX, RCX,
// RDX, RBX, RSP, RBP, RSI, RDI, R8 to R15), or nil for n above 15.
func (r *Regs) Reg(n Reg64) *uint64 {
	switch n {
	case RAX:
		return &r.RAX
	case RCX:
		return &r.RCX
	case RDX:
		return &r.RDX
	case RBX:
		return &r.RBX
	case RSP:
		return &r.RSP
	case RBP:
		return &r.RBP
	case RSI:
		return &r.RSI
	case RDI:
		return &r.RDI
	case R8:
		return &r.R8
	case R9:
		return &r.R9
	case R10:
		return &r.R10
	case R11:
		return &r.R11
	case R12:
		return &r.R12
	case R13:
		return &r.R13
	case R14:
		return &r.R14
	case R15:
		return &r.R15
	}
	return nil
}

// read returns operand-size bytes of register n; size 1 without REX takes AH,
// CH, DH, BH for 4 to 7 (SDM Vol. 2, 2.2.1.2).
func (x *emulator) read(n, size uint8) uint64 {
	if size == 1 && n >= 4 && n < 8 && x.Prefix&PrefixREX == 0 {
		return *x.r.Reg(Reg64(n - 4)) >> 8 & 0xff
	}
	return *x.r.Reg(Reg64(n)) & mask(size)
}

// write stores v: 32-bit results clear the upper half, narrower ones leave the rest
// unchanged (SDM Vol. 1, 3.4.1.1).
func (x *emulator) write(n, size uint8, v uint64) {
	if size == 1 && n >= 4 && n < 8 && x.Prefix&PrefixREX == 0 {
		p := x.r.Reg(Reg64(n - 4))
		*p = *p&^0xff00 | v&0xff<<8
		return
	}
	p := x.r.Reg(Reg64(n))
	switch size {
	case 8:
		*p = v
	case 4:
		*p = v & 0xffffffff
	case 2:
		*p = *p&^0xffff | v&0xffff
	default:
		*p = *p&^0xff | v&0xff
	}
}

// mask has the low size bytes set.
func mask(size uint8) uint64 { return ^uint64(0) >> (64 - 8*uint(size)) }

// canonical reports whether a is an address of 4-level paging: bits 63 to 47
// equal (SDM Vol. 1, 3.3.7.1).
func canonical(a uint64) bool { return uint64(int64(a)<<16>>16) == a }

// canonicalWide reports whether a is an address of 5-level paging: bits 63 to 56 equal.
func canonicalWide(a uint64) bool { return uint64(int64(a)<<7>>7) == a }

// cond evaluates condition code cc, 0 to 15 (SDM Vol. 1, appendix B).
func cond(cc uint8, f uint64) bool {
	var v bool
	switch cc >> 1 {
	case 0:
		v = f&FlagOF != 0
	case 1:
		v = f&FlagCF != 0
	case 2:
		v = f&FlagZF != 0
	case 3:
		v = f&(FlagCF|FlagZF) != 0
	case 4:
		v = f&FlagSF != 0
	case 5:
		v = f&FlagPF != 0
	case 6:
		v = f&FlagSF != 0 != (f&FlagOF != 0)
	default:
		v = f&FlagZF != 0 || f&FlagSF != 0 != (f&FlagOF != 0)
	}
	return v != (cc&1 != 0)
}
