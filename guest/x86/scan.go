package x86

// Scan returns the length of the instruction at the start of b, which is at addr, and
// for a direct near branch its target. It gives the same results as Decode and
// Target, in a fraction of the time, for scanning megabytes of code; bytes after the
// instruction are ignored if there are at least MaxLen.
func Scan(b []byte, addr uint64) (n int, target uint64, branch bool, err error) {
	if len(b) < MaxLen {
		return scanAny(b, addr)
	}
	p := (*[MaxLen]byte)(b)
	op, wide := p[0], false
	if op&0xf0 == 0x40 {
		wide, op, n = op&8 != 0, p[1], 1
		if op&0xf0 == 0x40 {
			return scanAny(b, addr)
		}
	}
	s := scanMap0[op]
	n++
	if s == scanEscape {
		s = scanMap0F[p[n&15]]
		n++
	}
	if s&scanSlow != 0 {
		return scanAny(b, addr)
	}
	if s&scanModRM != 0 {
		m := p[n]
		n++
		if s&scanSpecial != 0 {
			switch reg := m >> 3 & 7; op {
			case 0xf6, 0xf7: // test has an immediate
				if reg <= 1 {
					return scanAny(b, addr)
				}
			default: // 0xff
				if reg == 7 || m>>6 == 3 && (reg == 3 || reg == 5) {
					return scanAny(b, addr)
				}
			}
		}
		more := scanAddress[m]
		if more == scanSIB && p[n&15]&7 == 5 {
			n += 4
		}
		n += int(more & 7)
	}
	n += int(s & scanImm)
	if s&(scanBranch|scanWide) == 0 || n > MaxLen {
		if n > MaxLen {
			return scanAny(b, addr)
		}
		return n, 0, false, nil
	}
	if s&scanWide != 0 {
		if wide {
			n += 4
		}
		return n, 0, false, nil
	}
	if s&scanImm == 1 {
		return n, addr + uint64(n) + uint64(int64(int8(p[n-1]))), true, nil
	}
	return n, addr + uint64(n) + uint64(int64(int32(le32(p[n-4:])))), true, nil
}

// scanAny is Scan using the whole decoder.
func scanAny(b []byte, addr uint64) (n int, target uint64, branch bool, err error) {
	i, err := Decode(b)
	if err != nil {
		return 0, 0, false, err
	}
	target, branch = i.Target(addr)
	return int(i.Len), target, branch, nil
}

// Scan's data on an opcode without prefixes other than REX. It leaves the rest to
// Decode.
const (
	scanImm     = 0x07 // bytes of the immediate, with 32-bit operands
	scanModRM   = 0x08
	scanSpecial = 0x10 // ModRM says whether the opcode is valid, and what follows
	scanBranch  = 0x20 // the immediate leads to the target
	scanWide    = 0x40 // REX.W has four bytes more of the immediate
	scanSlow    = 0x80
	scanEscape  = 0x7f
)

// scanSIB marks entries of scanAddress for which only SIB determines the
// displacement.
const scanSIB = 0x11

// scanMap0 and scanMap0F have this data for both maps; scanAddress has the number of
// bytes after ModRM that are SIB and displacement (SDM Vol. 2, table 2-2).
var scanMap0, scanMap0F, scanAddress = func() (one, two, address [256]uint8) {
	for op := range 256 {
		one[op], two[op] = scanEntry(map0[op]), scanEntry(map0F[op])
		switch {
		case op >= 0x70 && op <= 0x7f, op == 0xeb, op&0xfc == 0xe0, op == 0xe8, op == 0xe9:
			one[op] |= scanBranch
		}
		switch {
		case op&0xf0 == 0x80:
			two[op] |= scanBranch
		case op&0xfc == 0x20, op == 0x38, op == 0x3a, map0F[op]&special != 0: // ModRM with only registers; more maps
			two[op] = scanSlow
		}
		switch mod, rm := op>>6, op&7; {
		case mod == 3:
		case rm == 4:
			address[op] = [3]uint8{scanSIB, 2, 5}[mod]
		case mod == 0 && rm == 5:
			address[op] = 4
		default:
			address[op] = [3]uint8{0, 1, 4}[mod]
		}
	}
	for _, op := range []uint8{0xf6, 0xf7, 0xff} {
		one[op] = scanModRM | scanSpecial
	}
	one[0x0f] = scanEscape
	return one, two, address
}()

// scanEntry makes an entry from an opcode's attributes.
func scanEntry(a attr) uint8 {
	if a&(invalid|special) != 0 { // also prefixes, VEX, EVEX and the like
		return scanSlow
	}
	var s uint8
	if a&modrm != 0 {
		s = scanModRM
	}
	switch a & immMask {
	case immNone:
	case immB:
		s |= 1
	case immZ:
		s |= 4
	case immV:
		s |= 4 | scanWide
	default:
		return scanSlow
	}
	return s
}
