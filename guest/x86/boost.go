package x86

// bits256 is a set of opcodes.
type bits256 [4]uint64

func (s *bits256) has(op uint8) bool { return s[op>>6]>>(op&63)&1 != 0 }

// newBits256 makes a set of inclusive ranges, given as pairs.
func newBits256(pairs ...uint8) (s bits256) {
	for k := 0; k < len(pairs); k += 2 {
		for op := int(pairs[k]); op <= int(pairs[k+1]); op++ {
			s[op>>6] |= 1 << (op & 63)
		}
	}
	return s
}

// kernelBoost0F are the two-byte opcodes that Linux 6.12 boosts.
var kernelBoost0F = newBits256(
	0x02, 0x03, 0x06, 0x06, 0x08, 0x09, 0x1f, 0x1f, 0x20, 0x23, 0x31, 0x31, 0x40, 0x4f,
	0x60, 0x6b, 0x6e, 0x6f, 0x74, 0x77, 0x7e, 0x7f, 0x90, 0x9f, 0xa0, 0xa1, 0xa3, 0xa5, 0xa8, 0xa9,
	0xab, 0xad, 0xaf, 0xb7, 0xbb, 0xc1, 0xc8, 0xcf, 0xd1, 0xd3, 0xd5, 0xd5, 0xd8, 0xd9, 0xdb, 0xdd,
	0xdf, 0xdf, 0xe1, 0xe2, 0xe5, 0xe5, 0xe8, 0xe9, 0xeb, 0xed, 0xef, 0xef, 0xf1, 0xf3, 0xf5, 0xf5,
	0xf8, 0xfa, 0xfc, 0xfe,
)

// kernelNoBoost0 are the one-byte opcodes that it never boosts.
var kernelNoBoost0 = newBits256(
	0x62, 0x62, 0x70, 0x7f, 0x9a, 0x9a, 0xcc, 0xce, 0xd6, 0xd6, 0xd8, 0xdf,
	0xe0, 0xe3, 0xe8, 0xe9, 0xeb, 0xeb, 0xf0, 0xf4,
)

// KernelBoostable reports the result of can_boost of Linux 6.12 (arch/x86/kernel/
// kprobes/core.c) for the instruction's bytes: whether its copy may be followed by a
// jump back. Optimization eligibility asks the same of every instruction of a region.
// The kernel also rejects an address with an exception table entry, which the bytes
// do not show.
//
// The kernel keeps the opcode of a VEX or EVEX instruction in the same field as
// one-byte opcodes, and has no field for the 0F of REX2 map 1; so does this.
func (i *Inst) KernelBoostable() bool {
	if i.Enc == Legacy {
		switch i.Map {
		case Map0F:
			return kernelBoost0F.has(i.Opcode)
		case Map0F38, Map0F3A:
			return false
		}
	}
	if i.Prefix&(PrefixCS|PrefixAddrSize) != 0 {
		return false
	}
	if kernelNoBoost0.has(i.Opcode) {
		return false
	}
	switch i.Opcode {
	case 0xc0, 0xc1, 0xd0, 0xd1, 0xd2, 0xd3:
		return i.Reg() != 6
	case 0xf6, 0xf7:
		return i.Reg() != 1
	case 0xfe:
		return i.Reg() <= 1
	case 0xff:
		return i.Reg() <= 1 || i.Reg() == 4
	}
	return true
}
