package types

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestDefinition: definitions of types in C, with the bits that C would not leave out by itself.
func TestDefinition(t *testing.T) {
	char := &btf.Int{Name: "char", Size: 1, Encoding: btf.Char}
	short := &btf.Int{Name: "short unsigned int", Size: 2}
	word := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	long := &btf.Typedef{Name: "u64", Type: &btf.Int{Name: "long unsigned int", Size: 8}}
	pair := &btf.Struct{Name: "pair", Size: 8, Members: []btf.Member{{Name: "a", Type: word}, {Name: "b", Type: word, Offset: 32}}}
	inner := &btf.Union{Size: 4, Members: []btf.Member{{Name: "x", Type: word}, {Type: &btf.Struct{Size: 2, Members: []btf.Member{{Name: "lo", Type: char}, {Name: "hi", Type: char, Offset: 8}}}}}}
	for _, c := range []struct {
		t    btf.Type
		want string
	}{
		{pair, "struct pair {\n\tint a;\n\tint b;\n};\n"},
		{&btf.Struct{Name: "none"}, "struct none {\n};\n"},
		{&btf.Struct{Name: "node", Size: 48, Members: []btf.Member{
			{Name: "next", Type: &btf.Pointer{Target: &btf.Const{Type: &btf.Struct{Name: "node"}}}},
			{Name: "fn", Type: &btf.Pointer{Target: &btf.FuncProto{Return: word, Params: []btf.FuncParam{{Type: long}}}}, Offset: 64},
			{Type: inner, Offset: 128},
			{Name: "both", Type: &btf.Array{Type: inner, Nelems: 2}, Offset: 160},
			{Name: "name", Type: &btf.Array{Type: char, Nelems: 9}, Offset: 224},
			{Name: "p", Type: pair, Offset: 320},
		}}, `struct node {
	const struct node *next;
	int (*fn)(u64);
	union {
		int x;
		struct {
			char lo;
			char hi;
		};
	};
	union {
		int x;
		struct {
			char lo;
			char hi;
		};
	} both[2];
	char name[9];
	struct pair p;
};
`},
		{&btf.Struct{Name: "bits", Size: 16, Members: []btf.Member{
			{Name: "a", Type: word, BitfieldSize: 3}, {Name: "b", Type: word, Offset: 3, BitfieldSize: 5}, {Name: "c", Type: word, Offset: 10, BitfieldSize: 2},
			{Name: "d", Type: word, Offset: 32, BitfieldSize: 30}, {Name: "e", Type: word, Offset: 64, BitfieldSize: 4},
		}}, "struct bits {\n\tint a: 3;\n\tint b: 5;\n\tchar: 2;\n\tint c: 2;\n\tint d: 30;\n\tint e: 4;\n\tchar: 4;\n\tchar: 8;\n\tshort: 16;\n\tint: 32;\n};\n"},
		{&btf.Struct{Name: "holes", Size: 32, Members: []btf.Member{{Name: "a", Type: char}, {Name: "b", Type: word, Offset: 32}, {Name: "c", Type: char, Offset: 128}}},
			"struct holes {\n\tchar a;\n\tint b;\n\tlong: 64;\n\tchar c;\n\tchar: 8;\n\tshort: 16;\n\tint: 32;\n\tlong: 64;\n};\n"},
		{&btf.Struct{Name: "tight", Size: 7, Members: []btf.Member{{Name: "a", Type: char}, {Name: "b", Type: word, Offset: 8}, {Name: "c", Type: short, Offset: 40}}},
			"struct tight {\n\tchar a;\n\tint b;\n\tshort unsigned int c;\n} __attribute__((packed));\n"},
		{&btf.Union{Name: "either", Size: 8, Members: []btf.Member{{Name: "n", Type: long}, {Name: "c", Type: char}}}, "union either {\n\tu64 n;\n\tchar c;\n};\n"},
		{&btf.Enum{Name: "kind", Size: 4, Signed: true, Values: []btf.EnumValue{{Name: "A", Value: 3}, {Name: "B", Value: ^uint64(0)}}}, "enum kind {\n\tA = 3,\n\tB = -1,\n};\n"},
		{&btf.Enum{Name: "big", Size: 8, Values: []btf.EnumValue{{Name: "C", Value: ^uint64(0)}}}, "enum big {\n\tC = 18446744073709551615,\n};\n"},
		{word, ""}, {long, ""},
	} {
		if got := Definition(c.t); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}

// TestDefinitionBounded: the text of a type is bounded, whatever is in it.
func TestDefinitionBounded(t *testing.T) {
	var deep btf.Type = &btf.Int{Name: "int", Size: 4}
	for range 40 {
		deep = &btf.Struct{Size: 8, Members: []btf.Member{{Name: "a", Type: deep}, {Name: "b", Type: deep, Offset: 32}}}
	}
	deep.(*btf.Struct).Name = "deep"
	wide := &btf.Enum{Name: "wide"}
	for range 100_000 {
		wide.Values = append(wide.Values, btf.EnumValue{Name: "ENUMERATOR"})
	}
	far := &btf.Struct{Name: "far", Size: 1 << 31}
	for _, x := range []btf.Type{deep, wide, far} {
		if got := Definition(x); len(got) > 4*maxDefinition || !strings.Contains(got, "...") {
			t.Errorf("%s: %d bytes, which end in %q", x.TypeName(), len(got), got[max(0, len(got)-40):])
		}
	}
}
