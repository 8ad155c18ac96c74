package bpf

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Compilers before clang 15 write enumerations of 8 bytes with only the lower 32 bits
// of each value (BTF_KIND_ENUM). The whole values are in the debug information, if
// the file still has it; without it the names are useless.

// Limits on reading an object's debug information.
const (
	maxDebugEntries = 1 << 20
	maxEnumerators  = 1 << 16
)

// widenEnums gives enumerations their whole values, or removes their names.
func widenEnums(b []byte, spec *btf.Spec) {
	narrow := narrowEnums(b)
	if len(narrow) == 0 || spec == nil {
		return
	}
	whole := debugEnums(b)
	for t, err := range spec.All() {
		e, ok := t.(*btf.Enum)
		if err != nil || !ok {
			continue
		}
		if id, err := spec.TypeID(e); err != nil || !narrow[id] {
			continue
		}
		values, signed := wholeValues(e, whole[e.Name])
		e.Values, e.Signed = values, signed
	}
}

// wholeValues returns the values of an enumeration from a candidate with the same
// names, nil if there is no such candidate.
func wholeValues(e *btf.Enum, candidates []btf.Enum) (values []btf.EnumValue, signed bool) {
	for _, c := range candidates {
		same := slices.EqualFunc(e.Values, c.Values, func(a, b btf.EnumValue) bool { return a.Name == b.Name && uint32(a.Value) == uint32(b.Value) })
		switch {
		case !same:
		case values == nil:
			values, signed = c.Values, c.Signed
		case !slices.Equal(values, c.Values):
			return nil, false // two with the same name
		}
	}
	return values, signed
}

// narrowEnums returns the numbers of the enumerations of 8 bytes with values of 4.
func narrowEnums(b []byte) map[btf.TypeID]bool {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil
	}
	out := map[btf.TypeID]bool{}
	for id, t := range readRawTypes(typesOf(b, f)).all {
		if t.kind() == btfEnum && t.size() == 8 {
			out[btf.TypeID(id+1)] = true
		}
	}
	return out
}

// debugEnums returns the enumerations of 8 bytes in a file's debug information, by name.
func debugEnums(b []byte) map[string][]btf.Enum {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil || f.Section(".debug_info") == nil {
		return nil
	}
	parts := map[string][]byte{}
	for _, s := range f.Sections { // in these sections the relocations of this machine add 0
		if strings.HasPrefix(s.Name, ".debug_") && s.Type == elf.SHT_PROGBITS {
			if parts[s.Name], err = s.Data(); err != nil {
				return nil
			}
		}
	}
	d, err := dwarf.New(parts[".debug_abbrev"], nil, nil, parts[".debug_info"], parts[".debug_line"], nil, nil, parts[".debug_str"])
	if err != nil {
		return nil
	}
	for _, name := range []string{".debug_str_offsets", ".debug_addr", ".debug_line_str"} {
		if part := parts[name]; part != nil && d.AddSection(name, part) != nil {
			return nil
		}
	}
	out := map[string][]btf.Enum{}
	var in *btf.Enum
	r := d.Reader()
	for entries, values := 0, 0; entries < maxDebugEntries && values < maxEnumerators; entries++ {
		e, err := r.Next()
		if err != nil || e == nil {
			break
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		switch size, _ := e.Val(dwarf.AttrByteSize).(int64); e.Tag {
		case dwarf.TagEnumerationType:
			if in = nil; size == 8 {
				out[name] = append(out[name], btf.Enum{Name: name, Size: 8})
				in = &out[name][len(out[name])-1]
			}
		case dwarf.TagEnumerator:
			if v, ok := e.Val(dwarf.AttrConstValue).(int64); ok && in != nil {
				in.Values = append(in.Values, btf.EnumValue{Name: name, Value: uint64(v)})
				values++
			}
		case dwarf.TagSubprogram:
			in = nil
			r.SkipChildren()
		}
	}
	return out
}
