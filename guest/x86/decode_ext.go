package x86

// decodeExtended decodes at n a byte that opens VEX (C4, C5), EVEX (62), XOP (8F) or
// REX2 (D5); 8F with a map below 8 is pop. After REX all of them raise #UD, after a
// mandatory prefix or LOCK all but REX2 (SDM Vol. 2, 2.3.2 to 2.3.5). That does not
// change the bytes after a REX before VEX, XOP or EVEX, so they get their length, as
// in objdump.
func (d *decoder) decodeExtended(b []byte, n int) (attr, int, error) {
	if n+1 >= len(b) {
		return 0, n, shortError(n + 2)
	}
	op, p0 := b[n], b[n+1]
	if op == 0x8f && p0&0x1f < 8 {
		d.Opcode, d.opOff = op, uint8(n)
		return sM, n + 1, nil
	}
	if op == 0xd5 {
		return d.rex2(b, n)
	}
	d.Prefix &^= PrefixREX | PrefixREXW
	if d.Prefix&(PrefixOpSize|PrefixRep|PrefixRepNE|PrefixLock) != 0 {
		return 0, n, ErrInvalid
	}
	switch op {
	case 0xc5:
		return d.vex2(b, n)
	case 0x62:
		return d.evex(b, n)
	}
	return d.vex3(b, n)
}

// vex2: C5, RvvvvLpp (SDM Vol. 2, figure 2-9).
func (d *decoder) vex2(b []byte, n int) (attr, int, error) {
	if n+2 >= len(b) {
		return 0, n, shortError(n + 3)
	}
	p := b[n+1]
	d.Enc, d.Map = VEX, Map0F
	d.reg, d.index, d.base = ^p>>4&8, 0, 0
	d.vexTail(p)
	d.Opcode, d.opOff = b[n+2], uint8(n+2)
	return vexMap0F(d.Opcode), n + 3, nil
}

// vexTail reads vvvv, L and pp, which the last payload byte of VEX and XOP holds in
// the same bits.
func (d *decoder) vexTail(p uint8) {
	d.vvvv = ^p >> 3 & 0xf
	d.vl = p >> 2 & 1
	d.pp = p & 3
}

// vex3: C4 or 8F, RXBmmmmm, WvvvvLpp.
func (d *decoder) vex3(b []byte, n int) (attr, int, error) {
	if n+3 >= len(b) {
		return 0, n, shortError(n + 4)
	}
	p0, p1 := b[n+1], b[n+2]
	d.Enc = VEX
	if b[n] == 0x8f {
		d.Enc = XOP
	}
	d.Map = Map(p0 & 0x1f)
	d.reg = ^p0 >> 4 & 8
	d.index = ^p0 >> 3 & 8
	d.base = ^p0 >> 2 & 8
	if p1&0x80 != 0 {
		d.Prefix |= PrefixREXW
	}
	d.vexTail(p1)
	d.Opcode, d.opOff = b[n+3], uint8(n+3)
	a, ok := vexAttr(d.Enc, d.Map, d.Opcode)
	if !ok {
		return 0, n, ErrInvalid
	}
	return a, n + 4, nil
}

// vexAttr returns the attributes of an opcode in the maps of VEX and XOP.
func vexAttr(e Encoding, m Map, op uint8) (attr, bool) {
	if e == XOP {
		switch m {
		case MapXOP8:
			return mB, true
		case MapXOP9:
			return mr, true
		case MapXOPA:
			return modrm | immD, true
		}
		return 0, false
	}
	switch m {
	case Map0F:
		return vexMap0F(op), true
	case Map0F38:
		return mr, true
	case Map0F3A:
		return mB, true
	case Map7: // urdmsr, uwrmsr, rdmsr, wrmsrns with the MSR's number
		return modrm | immD, true
	}
	return 0, false
}

// evex: 62, P0 P1 P2 (SDM Vol. 2, figure 2-10), with the meanings that APX gives to
// formerly fixed bits:
//
//	P0  R3' X3' B3' R4' B4 m m m    (' = complemented)
//	P1  W v' v' v' v' X4' p p
//	P2  z L' L b V4' a a a
func (d *decoder) evex(b []byte, n int) (attr, int, error) {
	if n+4 >= len(b) {
		return 0, n, shortError(n + 5)
	}
	p0, p1, p2 := b[n+1], b[n+2], b[n+3]
	d.Enc, d.Map = EVEX, Map(p0&7)
	d.reg = ^p0>>4&8 | ^p0&0x10
	d.index = ^p0>>3&8 | ^p1<<2&0x10
	d.base = ^p0>>2&8 | p0<<1&0x10
	if p1&0x80 != 0 {
		d.Prefix |= PrefixREXW
	}
	d.vvvv = ^p1>>3&0xf | ^p2<<1&0x10
	d.pp = p1 & 3
	d.vl = p2 >> 5 & 3
	d.evexB = p2&0x10 != 0
	d.Opcode, d.opOff = b[n+4], uint8(n+4)
	var a attr
	switch d.Map {
	case Map0F:
		a = vexMap0F(d.Opcode)
		if d.Opcode == 0x77 {
			return 0, n, ErrInvalid
		}
	case Map0F38, Map5, Map6:
		a = mr
	case Map0F3A:
		a = mB
	case Map4:
		a = evexMap4(d.Opcode)
		if d.pp == ppOpSize {
			d.Prefix |= PrefixOpSize // counts as operand size in this map
		}
	case Map7:
		a = modrm | immD
	default:
		return 0, n, ErrInvalid
	}
	return a, n + 5, nil
}

// rex2: D5, M0 R4 X4 B4 W R3 X3 B3, before an opcode of map 0 or 1 (Intel APX
// specification, 3.1.2). Opcodes 4x, 7x, Ax, Ex of map 0 and 3x, 8x of map 1 are
// undefined after it, except A1, which becomes jmpabs.
func (d *decoder) rex2(b []byte, n int) (attr, int, error) {
	if n+2 >= len(b) {
		return 0, n, shortError(n + 3)
	}
	if d.Prefix&PrefixREX != 0 {
		return 0, n, ErrInvalid
	}
	p, op := b[n+1], b[n+2]
	d.Enc = REX2
	d.Prefix |= PrefixREX
	if p&8 != 0 {
		d.Prefix |= PrefixREXW
	}
	d.reg = p<<1&8 | p>>2&0x10
	d.index = p<<2&8 | p>>1&0x10
	d.base = p<<3&8 | p&0x10
	d.Opcode, d.opOff = op, uint8(n+2)
	if p&0x80 != 0 {
		d.Map = Map0F
		if op>>4 == 3 || op>>4 == 8 {
			return 0, n, ErrInvalid
		}
		return map0F[op], n + 3, nil
	}
	switch op >> 4 {
	case 0x4, 0x7, 0xe:
		return 0, n, ErrInvalid
	case 0xa:
		if op == 0xa1 && p&8 == 0 && d.Prefix&(PrefixOpSize|PrefixAddrSize|PrefixLock|PrefixRep|PrefixRepNE) == 0 {
			return immQ, n + 3, nil
		}
		return 0, n, ErrInvalid
	}
	if op == 0x0f || op == 0x62 || op == 0xc4 || op == 0xc5 || op == 0xd5 {
		return 0, n, ErrInvalid
	}
	return map0[op], n + 3, nil
}
