package event

import (
	"fmt"
	"strings"
)

// Format says how a value is kept and printed.
type Format uint8

// The formats. The zero value is hexadecimal, the default of the language.
const (
	Hex      Format = iota // x8..x64: 0x1f
	Unsigned               // u8..u64
	Signed                 // s8..s64
	Char                   // one byte: 'c'
	Symbol                 // an address: name+0xoff/0xsize
	SymStr                 // likewise, as a "string"
	String                 // what the memory at the address holds up to a NUL
	UString                // likewise, in user space
	Bits                   // bW@O/S: part of an unsigned number; a structure's bit field is Unsigned or Signed
)

// Type is the type of an argument.
type Type struct {
	Format Format
	Size   int // bytes of one value in memory: 1, 2, 4, 8; strings: 4, as a record's data_loc
	Width  int // of a bit field: number of bits, from 1; 0: it is none
	Offset int // of a bit field: number of the lowest one
	Count  int // elements of an array, 1..64; 0 for a single value
}

// defaultType is the type of an argument that has none.
var defaultType = Type{Format: Hex, Size: 8}

var stringType = Type{Format: String, Size: 4}

// namedTypes are the types that are a word.
var namedTypes = map[string]Type{
	"char":    {Format: Char, Size: 1},
	"symbol":  {Format: Symbol, Size: 8},
	"symstr":  {Format: SymStr, Size: 4},
	"string":  stringType,
	"ustring": {Format: UString, Size: 4},
	"u8":      {Format: Unsigned, Size: 1}, "u16": {Format: Unsigned, Size: 2}, "u32": {Format: Unsigned, Size: 4}, "u64": {Format: Unsigned, Size: 8},
	"s8": {Format: Signed, Size: 1}, "s16": {Format: Signed, Size: 2}, "s32": {Format: Signed, Size: 4}, "s64": {Format: Signed, Size: 8},
	"x8": {Format: Hex, Size: 1}, "x16": {Format: Hex, Size: 2}, "x32": {Format: Hex, Size: 4}, "x64": {Format: Hex, Size: 8},
}

// isString reports whether values of the type are kept as text behind the
// fixed part of a record or, for symstr, printed as such.
func (t Type) isString() bool { return t.Format == String || t.Format == UString || t.Format == SymStr }

// HasText reports whether a record keeps text for the type, behind its fields.
func (t Type) HasText() bool { return t.Format == String || t.Format == UString }

// String returns the type as the language writes it.
func (t Type) String() string {
	s := ""
	switch t.Format {
	case Hex:
		s = fmt.Sprintf("x%d", 8*t.Size)
	case Unsigned:
		s = fmt.Sprintf("u%d", 8*t.Size)
	case Signed:
		s = fmt.Sprintf("s%d", 8*t.Size)
	case Bits:
		s = fmt.Sprintf("b%d@%d/%d", t.Width, t.Offset, 8*t.Size)
	case Char:
		s = "char"
	case Symbol:
		s = "symbol"
	case SymStr:
		s = "symstr"
	case String:
		s = "string"
	case UString:
		s = "ustring"
	}
	if t.Count > 0 {
		s += fmt.Sprintf("[%d]", t.Count)
	}
	return s
}

// parseType finds a type without its array suffix. ok is false for an unknown
// one; a bit field whose container is known is ok here, and parseBits checks
// the rest, because the kernel does the two at different times.
func parseType(s string) (t Type, ok bool) {
	if strings.HasPrefix(s, "b") {
		_, container, _ := strings.Cut(s, "/")
		bits, ok := parseUint(container)
		switch bits {
		case 8, 16, 32, 64:
			return Type{Format: Bits, Size: int(bits / 8)}, ok
		}
		return Type{}, false
	}
	t, ok = namedTypes[s]
	return t, ok
}

// parseBits reads width and offset of bW@O/S into t.
func parseBits(s string, t *Type) bool {
	width, rest, ok := leadingUint(s[1:])
	if !ok || width == 0 || !strings.HasPrefix(rest, "@") {
		return false
	}
	offset, rest, ok := leadingUint(rest[1:])
	size := uint64(8 * t.Size)
	if !ok || !strings.HasPrefix(rest, "/") || width > size || offset > size-width {
		return false
	}
	t.Width, t.Offset = int(width), int(offset)
	return true
}

// container returns the type without its bit field.
func (t Type) container() Type {
	if t.Format == Bits {
		t.Format = Unsigned
	}
	t.Width, t.Offset = 0, 0
	return t
}
