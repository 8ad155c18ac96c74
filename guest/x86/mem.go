package x86

// Access is the access of an instruction to memory.
type Access uint8

// The accesses. They are bits: Read|Write is read-modify-write.
const (
	AccessNone Access = 0
	Read       Access = 1
	Write      Access = 2
)

// NoReg means no register in Mem.
const NoReg Reg64 = 0xff

// Mem describes the explicit memory operand of an instruction: that of ModRM, or the
// absolute address of A0 to A3. Implied operands (stack, string) are in Implied.
type Mem struct {
	Base  Reg64 // NoReg without one; up to 31 with APX
	Index Reg64 // NoReg without one; number of the vector register if Vector
	Scale uint8 // 1, 2, 4, 8
	// Vector: the index is a vector register (gather, scatter), so there is
	// one operand per element, each of Size bytes.
	Vector  bool
	RIP     bool    // relative to the next instruction
	Segment Segment // whose base is added
	Access  Access
	Size    uint16 // bytes; 0 if it depends on more than the instruction
	Disp    int64  // with the scale of EVEX applied
}

// memSize is a size class in the low 5 bits and Access above.
type memSize uint8

const (
	sizeBits            = 5
	accessKnown         = 1 << 7 // an entry is present
	memGroup    memSize = 0x1f   // look in memGroups
)

// sizeLetters are the size classes of memTable; the index is the class.
const sizeLetters = ".bwdqtoyzvsmpgcnflxhkeiu?"

// anyPP in memTable matches every mandatory prefix.
const anyPP = 0xff

// memSizes is memTable unfolded: by encoding, map and mandatory prefix, then opcode.
// memGroups has the entries that depend on ModRM.reg.
var memSizes, memGroups = unfold()

type (
	memMaps  [XOP + 1][MapXOPA + 1][4]*[256]memSize
	groupKey struct {
		enc         Encoding
		m           Map
		pp, op, reg uint8
	}
)

// unfold parses memTable.
func unfold() (*memMaps, map[groupKey]memSize) {
	sizes, groups := new(memMaps), make(map[groupKey]memSize)
	for _, t := range memTable {
		for pp := range uint8(4) {
			if t.pp != anyPP && t.pp != pp {
				continue
			}
			ops := sizes[t.enc][t.m][pp]
			if ops == nil {
				ops = new([256]memSize)
				sizes[t.enc][t.m][pp] = ops
			}
			for s := t.list; s != ""; {
				var e memEntry
				e, s = parseEntry(s)
				for op := int(e.op); op <= int(e.opEnd); op++ {
					if !e.group {
						ops[op] = e.size
						continue
					}
					ops[op] = memGroup | accessKnown
					for reg := e.reg; reg <= e.regEnd; reg++ {
						groups[groupKey{t.enc, t.m, pp, uint8(op), reg}] = e.size
					}
				}
			}
		}
	}
	return sizes, groups
}

// memEntry is one item of a list in memTable.
type memEntry struct {
	op, opEnd, reg, regEnd uint8
	group                  bool
	size                   memSize
}

// parseEntry parses the first item of s and returns the rest.
func parseEntry(s string) (e memEntry, rest string) {
	e.op, s = hexByte(s), s[2:]
	e.opEnd = e.op
	if s[0] == '-' {
		e.opEnd, s = hexByte(s[1:]), s[3:]
	}
	if s[0] == '/' {
		e.group, e.reg, s = true, s[1]-'0', s[2:]
		e.regEnd = e.reg
		if s[0] == '-' {
			e.regEnd, s = s[1]-'0', s[2:]
		}
	}
	class := -1
	for k := range len(sizeLetters) {
		if sizeLetters[k] == s[0] {
			class = k
		}
	}
	if class < 0 {
		panic("BUG: x86: memTable at " + s)
	}
	e.size, s = accessKnown|memSize(class)|memSize(Read)<<sizeBits, s[1:]
	if s != "" && s[0] != ' ' {
		a := map[byte]Access{'=': Write, '+': Read | Write, '!': AccessNone}[s[0]]
		e.size, s = accessKnown|memSize(class)|memSize(a)<<sizeBits, s[1:]
	}
	if s != "" {
		s = s[1:]
	}
	return e, s
}

func hexByte(s string) uint8 {
	digit := func(c byte) uint8 {
		if c <= '9' {
			return c - '0'
		}
		return c - 'a' + 10
	}
	return digit(s[0])<<4 | digit(s[1])
}

// memSize returns the entry of the instruction, 0 without one.
func (i *Inst) memSize() memSize {
	enc := i.Enc
	if enc == REX2 {
		enc = Legacy
	}
	t := memSizes[enc][i.Map][i.pp]
	if t == nil {
		return 0
	}
	if s := t[i.Opcode]; s != memGroup|accessKnown {
		return s
	}
	return memGroups[groupKey{enc, i.Map, i.pp, i.Opcode, i.Reg()}]
}

// bytes returns the size of class c for the instruction, 0 for an open one.
func (i *Inst) bytes(c byte) uint16 {
	w := i.Prefix&PrefixREXW != 0
	pick := func(with, without uint16) uint16 {
		if w {
			return with
		}
		return without
	}
	short := i.Prefix&PrefixOpSize != 0
	vl := uint16(16) << i.vl
	switch c {
	case 'b':
		return 1
	case 'w':
		return 2
	case 'd':
		return 4
	case 'q':
		return 8
	case 't':
		return 10
	case 'o':
		return 16
	case 'y':
		return 32
	case 'z':
		return 64
	case 'v':
		return uint16(i.opSize())
	case 's':
		return uint16(i.stackSize())
	case 'm':
		return pick(8, 4)
	case 'p': // AMD ignores W here and reads less
		return 2 + uint16(i.opSize())
	case 'g':
		return pick(16, 8)
	case 'c':
		if i.pp == ppOpSize {
			return pick(4, 1)
		}
		return pick(8, 2)
	case 'n':
		if short {
			return 14
		}
		return 28
	case 'f':
		if short {
			return 94
		}
		return 108
	case 'l':
		return 512
	case 'x':
		return vl
	case 'h':
		return vl / 2
	case 'k':
		return vl / 4
	case 'e':
		return vl / 8
	case 'i':
		return pick(vl, vl/2)
	case 'u':
		if i.vl == 0 {
			return 8
		}
		return vl
	}
	return 0
}
