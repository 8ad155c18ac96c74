package script

import (
	"math"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// Types are the types of a guest's program. *types.Info is one.
type Types interface {
	// TypeByName returns the type that C writes with this tag and this name, or nil.
	TypeByName(tag types.Tag, name string) btf.Type
	// Names returns all names with this tag.
	Names(tag types.Tag) []string
	// Enumerator returns the value of an enumerator, and its enumeration.
	Enumerator(name string) (value uint64, of *btf.Enum, ok bool)
}

// cNumbers are C's own numbers, and common typedefs, by name; names of several words
// have single blanks.
var cNumbers = map[string]btf.Type{}

func init() {
	number := func(size uint32, e btf.IntEncoding, names ...string) {
		for _, n := range names {
			cNumbers[n] = &btf.Int{Name: n, Size: size, Encoding: e}
		}
	}
	number(1, btf.Bool, "bool", "_Bool")
	number(1, btf.Signed, "int8", "int8_t", "s8", "__s8", "char", "signed char")
	number(1, btf.Unsigned, "uint8", "uint8_t", "u8", "__u8", "unsigned char")
	number(2, btf.Signed, "int16", "int16_t", "s16", "__s16", "short", "signed short")
	number(2, btf.Unsigned, "uint16", "uint16_t", "u16", "__u16", "unsigned short")
	number(4, btf.Signed, "int32", "int32_t", "s32", "__s32", "int", "signed")
	number(4, btf.Unsigned, "uint32", "uint32_t", "u32", "__u32", "unsigned")
	number(8, btf.Signed, "int64", "int64_t", "s64", "__s64", "long", "signed long", "long long", "signed long long", "ssize_t", "intptr_t")
	number(8, btf.Unsigned, "uint64", "uint64_t", "u64", "__u64", "unsigned long", "unsigned long long", "size_t", "uintptr_t")
	number(16, btf.Signed, "__int128", "signed __int128")
	number(16, btf.Unsigned, "unsigned __int128")
	for n, size := range map[string]uint32{"float": 4, "double": 8, "long double": 16} {
		cNumbers[n] = &btf.Float{Name: n, Size: size}
	}
}

// cWords are the words in the names of C's own types, in the order used by spelled.
var cWords = []string{"signed", "unsigned", "short", "long", "char", "int", "__int128", "float", "double"}

// typeOfWords returns the number type named by these words, which C accepts in any
// order, or nil.
func typeOfWords(words []string) btf.Type {
	if len(words) > 4 {
		return nil // unsigned long long int has the most words
	}
	has := func(of ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(of, w) })
	}
	words = slices.Clone(words)
	if i := slices.Index(words, "int"); has("signed", "unsigned", "short", "long") && !has("char", "double", "__int128") && i >= 0 {
		words = slices.Delete(words, i, i+1)
	}
	slices.SortFunc(words, func(a, b string) int { return slices.Index(cWords, a) - slices.Index(cWords, b) })
	return cNumbers[strings.Join(words, " ")]
}

// cVoid is C's void.
var cVoid btf.Type = (*btf.Void)(nil)

// maxPointers bounds the depth of pointers to pointers, and of arrays of arrays.
const maxPointers = 16

// fromC converts a C type.
func fromC(t btf.Type) Type { return fromCIn(t, maxPointers) }

func fromCIn(t btf.Type, left int) Type {
	if left--; left < 0 {
		return Type{Kind: Void}
	}
	switch t := types.Strip(t).(type) {
	case *btf.Int:
		switch {
		case t.Encoding == btf.Bool:
			return typeBool
		case t.Size == 1 || t.Size == 2 || t.Size == 4 || t.Size == 8:
			return Type{Kind: Int, Size: int(t.Size), Signed: t.Encoding == btf.Signed}
		}
		words := arrayOf(typeUint, int(t.Size/8))
		if t.Size == 16 {
			words.C = t
		}
		return words
	case *btf.Float:
		bytes := arrayOf(typeUintOf(1), int(t.Size))
		if _, ok := formatOf(t); ok {
			bytes.C = t
		}
		return bytes
	case *btf.Enum:
		if t.Size != 1 && t.Size != 2 && t.Size != 4 {
			t = &btf.Enum{Name: t.Name, Size: 8, Signed: t.Signed, Values: t.Values}
		}
		return Type{Kind: Int, Size: int(t.Size), Signed: t.Signed, C: t}
	case *btf.Pointer:
		return pointerTo(fromCIn(t.Target, left))
	case *btf.Array:
		of := fromCIn(t.Type, left)
		if isText(t) {
			return typeString(min(int(t.Nelems), maxText) + 1)
		}
		return arrayOf(of, int(t.Nelems))
	case *btf.Struct, *btf.Union, *btf.Fwd:
		n, _ := types.Size(t)
		return Type{Kind: Struct, Size: int(n), C: t}
	}
	return Type{Kind: Void}
}

// maxText bounds strings from arrays of characters, in bytes.
const maxText = maxStrlen

// isText reports whether an array is of characters: in a guest's types all integers
// of a byte count, as in bpftrace.
func isText(a *btf.Array) bool {
	i, ok := types.Strip(a.Type).(*btf.Int)
	return ok && i.Size == 1 && i.Encoding != btf.Bool && (i.Name == "char" || cNumbers[i.Name] != i)
}

func arrayOf(t Type, n int) Type {
	size := 0
	if n > 0 {
		size = n * min(t.sizeInC(), math.MaxInt32/n) // the size of damaged types becomes too large for any use
	}
	return Type{Kind: Array, Size: size, Depth: n, Elems: []Type{t}}
}

// sizeInC is the size of a value of the type in a structure.
func (t Type) sizeInC() int {
	switch t.Kind {
	case Bool:
		return 1
	case String:
		return t.Size - 1
	}
	return t.Size
}

// sameC reports whether two C types are identical, or have the same name and size.
func sameC(a, b btf.Type) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil || a.TypeName() == "" || a.TypeName() != b.TypeName() {
		return false
	}
	at, _ := types.TagOf(a)
	bt, _ := types.TagOf(b)
	return at == bt && haveSameMembers(a, b)
}

// haveSameMembers reports whether two types have the same members at the same places: a program may have a structure with the
// name of the kernel's, or of another program's. A type that only has its name is like every other.
func haveSameMembers(a, b btf.Type) bool {
	of, ok := types.Members(a)
	with, also := types.Members(b)
	return !ok || !also || slices.EqualFunc(of, with, func(x, y btf.Member) bool { return x.Name == y.Name && x.Offset == y.Offset })
}

// completeType returns the structure t, even if t has only its name.
func (s *script) completeType(t btf.Type) btf.Type {
	f, ok := types.Strip(t).(*btf.Fwd)
	if !ok {
		return t
	}
	tag := types.TagStruct
	if f.Kind == btf.FwdUnion {
		tag = types.TagUnion
	}
	if w := s.typeNamed(tag, f.Name); w != nil {
		return w
	}
	return t
}

// typeNamed returns the type with this tag and name: of the script, of a file of the probe, or of the guest, or nil.
func (s *script) typeNamed(tag types.Tag, name string) btf.Type {
	return s.typeNamedIn(s.types, tag, name)
}

// typeNamedIn is typeNamed with these types in place of the guest's; nil: none.
func (s *script) typeNamedIn(known Types, tag types.Tag, name string) btf.Type {
	if t := s.defined[cName{tag, name}]; t != nil {
		return t
	}
	if known == nil {
		return nil
	}
	return known.TypeByName(tag, name)
}

// cName is the name of a type of C.
type cName struct {
	tag  types.Tag
	name string
}
