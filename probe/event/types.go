package event

import (
	"fmt"
	"strings"
)

// Format says how a value is stored and printed.
type Format uint8

// The formats. The zero value is hexadecimal, the default of the language.
const (
	Hex      Format = iota // x8..x64: 0x1f
	Unsigned               // u8..u64
	Signed                 // s8..s64
	Char                   // one byte: 'c'
	Symbol                 // an address: name+0xoff/0xsize
	SymStr                 // likewise, as a "string"
	String                 // the text at the address, up to a NUL
	UString                // likewise, in user space
	Bits                   // bW@O/S: part of an unsigned number; a structure's bit field is Unsigned or Signed
)

// Type is the type of an argument.
type Type struct {
	Format Format
	Size   int // bytes of one value in memory: 1, 2, 4, 8; strings: 4, as a record's data_loc
	Width  int // of a bit field: number of bits, from 1; 0: not a bit field
	Offset int // of a bit field: number of the lowest bit
	Count  int // elements of an array, 1..64; 0 for a single value
}

// defaultType is the type of an argument without one.
var defaultType = Type{Format: Hex, Size: 8}

var stringType = Type{Format: String, Size: 4}

// namedTypes are the types whose name is a word.
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

// isString reports whether values of the type are kept as text after the fixed part
// of a record or, for symstr, printed as text.
func (t Type) isString() bool { return t.Format == String || t.Format == UString || t.Format == SymStr }

// HasText reports whether a record keeps text for the type, after its fields.
func (t Type) HasText() bool { return t.Format == String || t.Format == UString }

// String returns the type in the syntax of the language.
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

// parseType parses a type without its array suffix. ok is false for an unknown one; a
// bit field with a known container is accepted here, and parseBits checks the rest,
// because the kernel does the two at different times.
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

// otherTypes are names of types in C, with their equivalents in definitions.
var otherTypes = map[string]string{
	"int": "s32", "unsigned": "u32", "unsigned int": "u32", "uint": "u32", "short": "s16", "long": "s64", "ulong": "u64", "size_t": "u64", "ssize_t": "s64",
	"bool": "u8", "void*": "x64", "ptr": "x64", "pointer": "x64", "hex": "x64", "str": "string", "char*": "string", "int8": "s8", "int16": "s16", "int32": "s32",
	"int64": "s64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
}

// typeAdvice suggests existing types for one that does not exist.
func typeAdvice(name string) string {
	const have = "types are u8 to u64, s8 to s64, x8 to x64 (hexadecimal), char, string, ustring, symbol, symstr, and bWIDTH@OFFSET/SIZE; [N] after one makes an array"
	if meant := otherTypes[strings.TrimSuffix(name, "_t")]; meant != "" {
		return "write " + meant + "; " + have
	}
	if meant := otherTypes[name]; meant != "" {
		return "write " + meant + "; " + have
	}
	return have
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
