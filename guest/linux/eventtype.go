package linux

import (
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// CType returns the type of the field, by its text in the kernel, its size and its
// sign. If located is true the record has the place of the data in the field (see
// DataLoc), and the type is a pointer to the data. Pointers to structures have the
// types that structs returns for their tags; nil means that no types are known.
func (f *EventField) CType(structs func(tag string) btf.Type) (t btf.Type, located bool) {
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
		to = strings.TrimSpace(to)
		if tag, ok := strings.CutPrefix(to, "struct "); ok && structs != nil {
			if t := structs(tag); t != nil {
				return &btf.Pointer{Target: t}, false
			}
		}
		if strings.TrimPrefix(to, "const ") == "char" {
			return &btf.Pointer{Target: numberOf("char", 1, true)}, false
		}
		return &btf.Pointer{Target: (*btf.Void)(nil)}, false
	}
	switch f.Size {
	case 1, 2, 4, 8:
		return numberOf(text, f.Size, f.Signed), false
	}
	return arrayOf(numberOf("unsigned char", 1, false), f.Size), false
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
	case "u16", "s16", "short", "unsigned short":
		return 2
	case "u32", "s32", "int", "unsigned int", "unsigned":
		return 4
	case "u64", "s64", "long", "unsigned long", "cpumask_t":
		return 8
	}
	return 1
}
