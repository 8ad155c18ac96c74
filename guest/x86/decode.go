package x86

// Decode decodes the 64-bit instruction at the start of b; bytes after it are
// ignored, so the result for a longer b is the same.
//
// If vendors differ it follows AMD, as objdump does by default: a near branch with
// the operand size prefix and without REX.W has a 16-bit displacement (APM Vol. 3,
// JMP near; Intel ignores the prefix there, SDM Vol. 2, JMP). VendorDependent reports
// such instructions.
//
// Opcodes that VEX, EVEX, XOP, 0F 38 and 0F 3A leave undefined are decoded by
// the rule that fixes their length; the CPU raises #UD for them. Other
// undefined opcodes are ErrInvalid.
//
// Decode allocates nothing.
func Decode(b []byte) (Inst, error) {
	var d decoder
	err := d.decode(b)
	if err != nil {
		return Inst{}, err
	}
	return d.Inst, nil
}

// shortError is the error for fewer than need bytes: the caller's bytes ended, or the
// CPU's limit was reached.
func shortError(need int) error {
	if need > MaxLen {
		return ErrTooLong
	}
	return ErrTruncated
}

// decoder fills in an instruction from its bytes.
type decoder struct{ Inst }

func (d *decoder) decode(b []byte) error {
	if len(b) > MaxLen {
		b = b[:MaxLen]
	}
	n, rex := d.prefixes(b)
	if n >= len(b) {
		return shortError(n + 1)
	}
	if rex != 0 {
		d.Prefix |= PrefixREX
		d.setREX(rex)
	}
	op := b[n]
	var a attr
	var err error
	switch {
	case op == 0x0f:
		a, n, err = d.escape(b, n)
	case op == 0xc4, op == 0xc5, op == 0x62, op == 0xd5, op == 0x8f:
		a, n, err = d.decodeExtended(b, n)
	default:
		d.Opcode, d.opOff = op, uint8(n)
		a = map0[op]
		n++
	}
	if err != nil {
		return err
	}
	if a&invalid != 0 {
		return ErrInvalid
	}
	if a&modrm != 0 {
		if n >= len(b) {
			return shortError(n + 1)
		}
		d.ModRM, d.HasModRM = b[n], true
		n++
		if a&special != 0 {
			if a, err = d.specialAttr(a); err != nil {
				return err
			}
		}
		if n, err = d.address(b, n); err != nil {
			return err
		}
	}
	if a&immMask != 0 {
		if n, err = d.readImmediate(b, n, a&immMask); err != nil {
			return err
		}
	}
	d.Len = uint8(n)
	copy(d.raw[:], b[:n])
	return nil
}

// prefixes consumes legacy prefixes and REX and returns the offset of the
// opcode. A REX that is followed by another prefix is ignored (SDM Vol. 2,
// 2.2.1). Of F2 and F3 the last one counts as mandatory prefix, of FS and GS
// the last one as override; the four others are null prefixes (APM Vol. 3,
// 1.2.4).
func (d *decoder) prefixes(b []byte) (n int, rex uint8) {
	for ; n < len(b); n++ {
		p := prefixOf[b[n]]
		if p == 0 {
			return n, rex
		}
		if p == PrefixREX {
			rex = b[n]
			continue
		}
		rex = 0
		d.Prefix |= p
		switch p {
		case PrefixOpSize:
			if d.pp == 0 {
				d.pp = ppOpSize
			}
		case PrefixRep:
			d.pp = ppRep
		case PrefixRepNE:
			d.pp = ppRepNE
		case PrefixFS:
			d.Segment = SegFS
		case PrefixGS:
			d.Segment = SegGS
		}
	}
	return n, rex
}

// Mandatory prefixes, numbered as in VEX.pp.
const (
	ppNone   = 0
	ppOpSize = 1
	ppRep    = 2
	ppRepNE  = 3
)

var prefixOf = func() (t [256]Prefix) {
	for _, p := range []struct {
		b uint8
		p Prefix
	}{
		{0x66, PrefixOpSize}, {0x67, PrefixAddrSize}, {0xf0, PrefixLock}, {0xf2, PrefixRepNE}, {0xf3, PrefixRep},
		{0x2e, PrefixCS}, {0x36, PrefixSS}, {0x3e, PrefixDS}, {0x26, PrefixES}, {0x64, PrefixFS}, {0x65, PrefixGS},
	} {
		t[p.b] = p.p
	}
	for b := 0x40; b < 0x50; b++ {
		t[b] = PrefixREX
	}
	return t
}()

// setREX takes the bits of a REX prefix: 0100 WRXB.
func (d *decoder) setREX(rex uint8) {
	if rex&8 != 0 {
		d.Prefix |= PrefixREXW
	}
	d.reg = rex << 1 & 8
	d.index = rex << 2 & 8
	d.base = rex << 3 & 8
}

// escape decodes the bytes after 0F at n.
func (d *decoder) escape(b []byte, n int) (attr, int, error) {
	n++
	if n >= len(b) {
		return 0, n, shortError(n + 1)
	}
	op := b[n]
	switch op {
	case 0x38, 0x3a:
		n++
		if n >= len(b) {
			return 0, n, shortError(n + 1)
		}
		d.Map = Map0F38
		a := mr
		if op == 0x3a {
			d.Map, a = Map0F3A, mB
		}
		d.Opcode, d.opOff = b[n], uint8(n)
		return a, n + 1, nil
	}
	d.Map, d.Opcode, d.opOff = Map0F, op, uint8(n)
	return map0F[op], n + 1, nil
}

// specialAttr completes the attributes of opcodes whose immediate or validity
// depends on ModRM or prefixes.
func (d *decoder) specialAttr(a attr) (attr, error) {
	if d.Enc == EVEX {
		if d.Reg() <= 1 { // test, in map 4
			return a | testImm(d.Opcode), nil
		}
		return a, nil
	}
	if d.Map == Map0F {
		switch d.Opcode {
		case 0x78: // vmread, or extrq and insertq with two imm8 (APM Vol. 4)
			if d.pp == ppOpSize || d.pp == ppRepNE {
				return a | immW, nil
			}
		case 0xb8: // popcnt; without F3 an IA-64 jump
			if d.pp != ppRep {
				return a, ErrInvalid
			}
		}
		return a, nil
	}
	switch d.Opcode {
	case 0x8f: // pop; other values of reg are XOP and were handled
		if d.Reg() != 0 {
			return a, ErrInvalid
		}
	case 0xc6, 0xc7: // mov, and xabort, xbegin
		if d.Reg() != 0 && d.ModRM != 0xf8 {
			return a, ErrInvalid
		}
	case 0xf6, 0xf7:
		if d.Reg() <= 1 {
			return a | testImm(d.Opcode), nil
		}
	case 0xfe:
		if d.Reg() > 1 {
			return a, ErrInvalid
		}
	case 0xff:
		if d.Reg() == 7 || d.Mod() == 3 && (d.Reg() == 3 || d.Reg() == 5) {
			return a, ErrInvalid
		}
	}
	return a, nil
}

func testImm(op uint8) attr {
	if op == 0xf6 {
		return immB
	}
	return immZ
}

// address decodes SIB and displacement (SDM Vol. 2, tables 2-2 and 2-3).
func (d *decoder) address(b []byte, n int) (int, error) {
	mod, rm := d.Mod(), d.RM()
	if mod == 3 || d.regOnly() {
		return n, nil
	}
	base := rm
	if rm == 4 {
		if n >= len(b) {
			return n, shortError(n + 1)
		}
		d.SIB, d.HasSIB = b[n], true
		base = d.SIB & 7
		n++
	}
	size := 0
	switch {
	case mod == 1:
		size = 1
	case mod == 2, base == 5: // mod 0 with base 5: RIP-relative, or no base
		size = 4
	}
	if size == 0 {
		return n, nil
	}
	if n+size > len(b) {
		return n, shortError(n + size)
	}
	d.dispOff, d.dispLen = uint8(n), uint8(size)
	if size == 1 {
		d.Disp = int32(int8(b[n]))
	} else {
		d.Disp = int32(le32(b[n:]))
	}
	return n + size, nil
}

// readImmediate decodes an immediate of kind k at n.
func (d *decoder) readImmediate(b []byte, n int, k attr) (int, error) {
	size := 0
	switch k {
	case immB:
		size = 1
	case immW:
		size = 2
	case immWB:
		size = 3
	case immD:
		size = 4
	case immQ:
		size = 8
	case immZ:
		size = min(4, int(d.opSize()))
	case immV:
		size = int(d.opSize())
	case immO:
		size = 8
		if d.Prefix&PrefixAddrSize != 0 {
			size = 4
		}
	}
	if n+size > len(b) {
		return n, shortError(n + size)
	}
	d.immOff, d.immLen = uint8(n), uint8(size)
	var v uint64
	for k := size - 1; k >= 0; k-- {
		v = v<<8 | uint64(b[n+k])
	}
	shift := 64 - 8*size
	d.Imm = int64(v<<shift) >> shift
	return n + size, nil
}

func le32(b []byte) uint32 {
	_ = b[3]
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}
