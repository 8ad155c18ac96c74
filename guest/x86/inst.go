package x86

import "errors"

// MaxLen is the longest instruction that a CPU executes (SDM Vol. 2, 2.3.11);
// a longer one raises #GP.
const MaxLen = 15

// Errors of Decode.
var (
	// ErrTruncated: the bytes end before the instruction does. More bytes may make it
	// valid.
	ErrTruncated = errors.New("x86: truncated instruction")
	// ErrInvalid: no 64-bit instruction begins like this, whatever follows.
	ErrInvalid = errors.New("x86: invalid instruction")
	// ErrTooLong: the instruction would be longer than MaxLen bytes.
	ErrTooLong = errors.New("x86: instruction longer than 15 bytes")
)

// Encoding is the encoding scheme of an instruction.
type Encoding uint8

// The encodings. Legacy includes REX.
const (
	Legacy Encoding = iota
	VEX             // C4, C5 (SDM Vol. 2, 2.3.5)
	EVEX            // 62 (SDM Vol. 2, 2.7)
	XOP             // 8F with map 8 to 10 (APM Vol. 3, 1.2.7)
	REX2            // D5 (Intel APX specification, 3.1.2)
)

// Map is an opcode map. The numbers are the values of the mmmmm field of VEX, EVEX
// and XOP; legacy escapes use the same numbers.
type Map uint8

// The opcode maps.
const (
	Map0    Map = 0  // one-byte opcodes
	Map0F   Map = 1  // 0F xx
	Map0F38 Map = 2  // 0F 38 xx
	Map0F3A Map = 3  // 0F 3A xx
	Map4    Map = 4  // EVEX only: promoted legacy instructions of APX
	Map5    Map = 5  // EVEX only: FP16
	Map6    Map = 6  // EVEX only: FP16
	Map7    Map = 7  // VEX and EVEX: urdmsr, uwrmsr
	MapXOP8 Map = 8  // XOP only, with imm8
	MapXOP9 Map = 9  // XOP only
	MapXOPA Map = 10 // XOP only, with imm32
)

// Prefix is a set of prefix bytes.
type Prefix uint16

// The prefixes. PrefixREXW is also set by the W bit of VEX, EVEX, XOP and REX2;
// PrefixREX by any effective REX (one followed by a legacy prefix is not).
const (
	PrefixOpSize   Prefix = 1 << iota // 66
	PrefixAddrSize                    // 67
	PrefixLock                        // F0
	PrefixRepNE                       // F2
	PrefixRep                         // F3
	PrefixCS                          // 2E
	PrefixSS                          // 36
	PrefixDS                          // 3E
	PrefixES                          // 26
	PrefixFS                          // 64
	PrefixGS                          // 65
	PrefixREX                         // 40-4F
	PrefixREXW                        // W
)

// Segment is the effective segment base of memory operands in 64-bit mode: all but FS
// and GS are zero (SDM Vol. 1, 3.4.2.1).
type Segment uint8

// The segments.
const (
	SegNone Segment = iota // base 0
	SegFS
	SegGS
)

// Inst is one decoded instruction. It is a value: it refers to nothing, and copying
// it is cheap. The zero value is not an instruction. Methods do not change it, so it
// may be shared between threads.
type Inst struct {
	raw [MaxLen]byte

	Len      uint8 // bytes, 1 to MaxLen
	Enc      Encoding
	Map      Map
	Opcode   uint8   // the opcode byte itself, after prefixes and escapes
	ModRM    uint8   // valid if HasModRM
	SIB      uint8   // valid if HasSIB
	HasModRM bool    // a ModRM byte follows the opcode
	HasSIB   bool    // a SIB byte follows ModRM
	Segment  Segment // effective override

	// CPL is the privilege the instruction runs at: 0 or 3. Decode leaves 0, Analyze
	// copies it from its Options. Only Emulate uses it.
	CPL uint8

	Prefix Prefix

	reg, index, base uint8 // extension bits already shifted: 0, 8, 16, 24
	vvvv             uint8 // VEX.vvvv, complemented back
	vl               uint8 // vector length: 0 = 128, 1 = 256, 2 = 512
	pp               uint8 // mandatory prefix: 0, 1 = 66, 2 = F3, 3 = F2
	evexB            bool  // EVEX.b: broadcast, rounding or SAE

	emu emulation // the kind of emulation, once Analyze has determined it

	opOff, dispOff, dispLen, immOff, immLen uint8

	Disp int32 // displacement of the memory operand, sign-extended, not scaled
	Imm  int64 // immediate or branch displacement, sign-extended; 0 without one
}

// Bytes returns the instruction's bytes. The slice is a copy.
func (i Inst) Bytes() []byte { return append([]byte(nil), i.raw[:i.Len]...) }

// AppendBytes appends the instruction's bytes to b.
func (i *Inst) AppendBytes(b []byte) []byte { return append(b, i.raw[:i.Len]...) }

// Has reports whether all prefixes in p are present.
func (i *Inst) Has(p Prefix) bool { return i.Prefix&p == p }

// IsNop reports whether the instruction has no effect: nop in all its forms, ENDBR64,
// ENDBR32 (SDM Vol. 2, NOP, ENDBR64). The other hint instructions of 0F 18 to 0F 1E,
// which older processors execute as nop, do not count.
func (i *Inst) IsNop() bool {
	if i.Enc != Legacy || i.Prefix&PrefixLock != 0 {
		return false
	}
	switch {
	case i.Map == Map0 && i.Opcode == 0x90:
		return i.base == 0 && i.Prefix&PrefixRep == 0 // not xchg %eax,%r8d; not pause
	case i.Map == Map0F && i.Opcode == 0x1f:
		return true
	case i.Map == Map0F && i.Opcode == 0x1e:
		return i.Prefix&PrefixRep != 0 && i.ModRM&^1 == 0xfa
	}
	return false
}

// Mod, Reg and RM are the fields of ModRM, without the extension bits of REX. They
// are 0 if there is no ModRM.
func (i *Inst) Mod() uint8 { return i.ModRM >> 6 }

// Reg returns ModRM.reg, 0 to 7: a register or part of the opcode.
func (i *Inst) Reg() uint8 { return i.ModRM >> 3 & 7 }

// RM returns ModRM.rm, 0 to 7.
func (i *Inst) RM() uint8 { return i.ModRM & 7 }

// legacy reports whether it is an instruction of map m without VEX, EVEX or XOP. REX2
// instructions are legacy ones with more registers.
func (i *Inst) legacy(m Map) bool {
	return i.Map == m && (i.Enc == Legacy || i.Enc == REX2)
}

// opSize returns the operand size in bytes of an instruction whose default is
// 32 bits: 2, 4 or 8 (SDM Vol. 1, table 3-4).
func (i *Inst) opSize() uint8 {
	switch {
	case i.Prefix&PrefixREXW != 0:
		return 8
	case i.Prefix&PrefixOpSize != 0:
		return 2
	}
	return 4
}

// stackSize returns the operand size in bytes of an instruction whose default
// is 64 bits (push, pop, near branches): 2 or 8.
func (i *Inst) stackSize() uint8 {
	if i.Prefix&(PrefixREXW|PrefixOpSize) == PrefixOpSize {
		return 2
	}
	return 8
}

// RIPRelative reports whether the memory operand is addressed relative to the
// next instruction (ModRM mod 00, rm 101; SDM Vol. 2, 2.2.1.6).
func (i *Inst) RIPRelative() bool {
	return i.HasModRM && i.ModRM&0xc7 == 0x05 && !i.regOnly()
}

// RIPTarget returns the address of a RIP-relative operand if the instruction is at
// addr. With the address size prefix it is truncated to 32 bits.
func (i *Inst) RIPTarget(addr uint64) uint64 {
	t := addr + uint64(i.Len) + uint64(int64(i.Disp))
	if i.Prefix&PrefixAddrSize != 0 {
		t = uint64(uint32(t))
	}
	return t
}

// regOnly reports whether the CPU takes ModRM as naming a register whatever
// mod says: moves to and from control and debug registers (SDM Vol. 2, MOV).
func (i *Inst) regOnly() bool {
	return i.Map == Map0F && i.Opcode >= 0x20 && i.Opcode <= 0x23 && i.legacy(Map0F)
}
