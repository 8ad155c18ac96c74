package x86

// attr describes the bytes after an opcode.
type attr uint8

// The low bits are the kind of immediate.
const (
	immNone attr = iota
	immB         // 8 bits
	immW         // 16 bits
	immZ         // 16 bits with operand size 16, else 32
	immV         // 16, 32 or 64 bits: the operand size
	immWB        // 16 and 8 bits (enter)
	immO         // an address: 64 bits, 32 with the address size prefix
	immD         // 32 bits
	immQ         // 64 bits (jmpabs)
	immMask attr = 0x0f

	modrm   attr = 0x10 // ModRM follows
	special attr = 0x20 // the decoder needs special code
	invalid attr = 0x80 // undefined, or not in 64-bit mode
)

const (
	no = attr(0)
	xx = invalid
	mr = modrm
	mB = modrm | immB
	mZ = modrm | immZ
	iB = immB
	iW = immW
	iZ = immZ
	iV = immV
	iO = immO
	sp = special
	sM = special | modrm
)

// map0 is the one-byte opcode map in 64-bit mode (SDM Vol. 2, table A-2). Prefixes,
// escapes and REX are removed before the lookup and are marked invalid here.
var map0 = [256]attr{
	/*      0   1   2   3   4   5   6   7   8   9   a   b   c   d   e   f */
	/*0*/ mr, mr, mr, mr, iB, iZ, xx, xx, mr, mr, mr, mr, iB, iZ, xx, xx,
	/*1*/ mr, mr, mr, mr, iB, iZ, xx, xx, mr, mr, mr, mr, iB, iZ, xx, xx,
	/*2*/ mr, mr, mr, mr, iB, iZ, xx, xx, mr, mr, mr, mr, iB, iZ, xx, xx,
	/*3*/ mr, mr, mr, mr, iB, iZ, xx, xx, mr, mr, mr, mr, iB, iZ, xx, xx,
	/*4*/ xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx, xx,
	/*5*/ no, no, no, no, no, no, no, no, no, no, no, no, no, no, no, no,
	/*6*/ xx, xx, xx, mr, xx, xx, xx, xx, iZ, mZ, iB, mB, no, no, no, no,
	/*7*/ iB, iB, iB, iB, iB, iB, iB, iB, iB, iB, iB, iB, iB, iB, iB, iB,
	/*8*/ mB, mZ, xx, mB, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, sM,
	/*9*/ no, no, no, no, no, no, no, no, no, no, xx, no, no, no, no, no,
	/*a*/ iO, iO, iO, iO, no, no, no, no, iB, iZ, no, no, no, no, no, no,
	/*b*/ iB, iB, iB, iB, iB, iB, iB, iB, iV, iV, iV, iV, iV, iV, iV, iV,
	/*c*/ mB, mB, iW, no, xx, xx, sM | immB, sM | immZ, immWB, no, iW, no, no, iB, xx, no,
	/*d*/ mr, mr, mr, mr, xx, xx, xx, no, mr, mr, mr, mr, mr, mr, mr, mr,
	/*e*/ iB, iB, iB, iB, iB, iB, iB, iB, iZ, iZ, xx, iB, no, no, no, no,
	/*f*/ xx, no, xx, xx, no, no, sM, sM, no, no, no, no, no, no, sM, sM,
}

// map0F is the 0F map (SDM Vol. 2, table A-3; APM Vol. 3, table A-3 for
// femms, 3DNow! and the SSE4a forms of 78 and 79).
var map0F = [256]attr{
	/*      0   1   2   3   4   5   6   7   8   9   a   b   c   d   e   f */
	/*0*/ mr, mr, mr, mr, xx, no, no, no, no, no, xx, no, xx, mr, no, mB,
	/*1*/ mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr,
	/*2*/ mr, mr, mr, mr, xx, xx, xx, xx, mr, mr, mr, mr, mr, mr, mr, mr,
	/*3*/ no, no, no, no, no, no, xx, no, xx, xx, xx, xx, xx, xx, xx, xx,
	/*4*/ mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr,
	/*5*/ mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr,
	/*6*/ mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr,
	/*7*/ mB, mB, mB, mB, mr, mr, mr, no, sM, mr, xx, xx, mr, mr, mr, mr,
	/*8*/ iZ, iZ, iZ, iZ, iZ, iZ, iZ, iZ, iZ, iZ, iZ, iZ, iZ, iZ, iZ, iZ,
	/*9*/ mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr,
	/*a*/ no, no, no, mr, mB, mr, mr, mr, no, no, no, mr, mB, mr, mr, mr,
	/*b*/ mr, mr, mr, mr, mr, mr, mr, mr, sM, mr, mB, mr, mr, mr, mr, mr,
	/*c*/ mr, mr, mB, mr, mB, mB, mB, mr, no, no, no, no, no, no, no, no,
	/*d*/ mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr,
	/*e*/ mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr,
	/*f*/ mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr, mr,
}

// vexMap0F says which opcodes of VEX and EVEX map 1 have an imm8; all but
// vzeroupper (77) have ModRM (SDM Vol. 2, table A-3).
func vexMap0F(op uint8) attr {
	switch op {
	case 0x70, 0x71, 0x72, 0x73, 0xc2, 0xc4, 0xc5, 0xc6:
		return mB
	case 0x77:
		return no
	}
	return mr
}

// evexMap4 is EVEX map 4: legacy instructions with a new destination and suppressed
// flags (Intel APX specification, 3.1.4). Immediates are as in the promoted
// instruction.
func evexMap4(op uint8) attr {
	switch op {
	case 0x6b, 0x80, 0x83, 0xc0, 0xc1, 0x24, 0x2c:
		return mB
	case 0x69, 0x81:
		return mZ
	case 0xf6, 0xf7:
		return sM
	}
	return mr
}
