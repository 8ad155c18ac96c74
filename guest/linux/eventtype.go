package linux

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// CType returns the type of the field, by its text in the kernel, its size and its
// sign. If located is true the record has the place of the data in the field (see
// DataLoc), and the type is a pointer to the data. Enumerations, and structures that
// pointers point to, have the types that find returns for their tag (enum, struct) and
// name; nil means that no types are known.
func (f *EventField) CType(find func(tag, name string) btf.Type) (t btf.Type, located bool) {
	if elem, ok := f.DataLoc(); ok {
		size := numberSize(elem)
		return &btf.Pointer{Target: numberOf(elem, size, elem == "char" || strings.HasPrefix(strings.TrimPrefix(elem, "__"), "s"))}, true
	}
	text := strings.TrimSpace(strings.TrimPrefix(f.Type, "const "))
	if elem, rest, ok := strings.Cut(text, "["); ok {
		n, err := strconv.ParseUint(strings.TrimSuffix(rest, "]"), 10, 32)
		if err == nil && n > 0 && f.Size%n == 0 && f.Size/n <= 8 && f.Size/n > 0 {
			return arrayOf(numberOf(elem, f.Size/n, f.Signed || elem == "char"), n), false
		}
		return arrayOf(numberOf("unsigned char", 1, false), f.Size), false
	}
	if to, ok := strings.CutSuffix(text, "*"); ok && f.Size == 8 {
		return &btf.Pointer{Target: pointee(to, find, 0)}, false
	}
	if name, ok := strings.CutPrefix(text, "enum "); ok && find != nil {
		if e, _ := find("enum", name).(*btf.Enum); e != nil && uint64(e.Size) == f.Size {
			return e, false
		}
	}
	switch f.Size {
	case 1, 2, 4, 8:
		return numberOf(text, f.Size, f.Signed), false
	}
	return arrayOf(numberOf("unsigned char", 1, false), f.Size), false
}

// maxPointers bounds the pointers to pointers in a type.
const maxPointers = 8

// pointee returns the type that a pointer has before its last "*": void if it is not known.
func pointee(text string, find func(tag, name string) btf.Type, depth int) btf.Type {
	words := strings.FieldsFunc(strings.ReplaceAll(text, "*", " * "), func(r rune) bool { return r == ' ' })
	words = slices.DeleteFunc(words, func(w string) bool { return slices.Contains(qualifiers, w) })
	if n := len(words); n > 0 && words[n-1] == "*" && depth < maxPointers {
		return &btf.Pointer{Target: pointee(strings.Join(words[:n-1], " "), find, depth+1)}
	}
	text = strings.Join(words, " ")
	if name, ok := strings.CutPrefix(text, "struct "); ok && find != nil {
		if t := find("struct", name); t != nil {
			return t
		}
	}
	if size := numberSize(text); text == "char" || size > 1 || slices.Contains(bytesOf, text) {
		return numberOf(text, size, isSigned(text))
	}
	return (*btf.Void)(nil)
}

// qualifiers are words of a type that say nothing about its values.
var qualifiers = []string{"const", "volatile", "restrict", "__restrict", "__user", "__kernel", "__rcu"}

// bytesOf are names of types of one byte, besides char.
var bytesOf = []string{"u8", "__u8", "s8", "__s8", "unsigned char", "signed char", "bool", "uint8_t", "int8_t"}

// isSigned reports whether one of the kernel's numbers has a sign, by its type's name.
func isSigned(name string) bool {
	switch strings.TrimPrefix(name, "__") {
	case "char", "short", "int", "long", "long long", "signed char", "loff_t", "off_t", "ssize_t", "pid_t":
		return true
	}
	return len(name) > 1 && strings.HasPrefix(strings.TrimPrefix(name, "__"), "s") && strings.ContainsAny(name, "123468") || strings.HasPrefix(name, "int") && strings.HasSuffix(name, "_t")
}

func numberOf(name string, size uint64, signed bool) btf.Type {
	t := &btf.Int{Name: name, Size: uint32(size)}
	if signed {
		t.Encoding = btf.Signed
	}
	return t
}

func arrayOf(of btf.Type, n uint64) btf.Type {
	return &btf.Array{Index: numberOf("int", 4, true), Type: of, Nelems: uint32(n)}
}

// numberSize returns the size of one of the kernel's numbers by its type's name, 1 for other names.
func numberSize(name string) uint64 {
	switch strings.TrimPrefix(name, "__") {
	case "u16", "s16", "short", "unsigned short", "uint16_t", "int16_t", "umode_t":
		return 2
	case "u32", "s32", "int", "unsigned int", "unsigned", "uint32_t", "int32_t", "pid_t", "uid_t", "gid_t":
		return 4
	case "u64", "s64", "long", "unsigned long", "long long", "unsigned long long", "cpumask_t", "uint64_t", "int64_t", "size_t", "ssize_t", "loff_t", "off_t":
		return 8
	}
	return 1
}
