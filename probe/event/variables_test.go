package event

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
)

// someVariables are the variables of the code at one address.
type someVariables struct{ addr guest.GVA }

func (v someVariables) Variable(addr guest.GVA, name string, path []string) (Fetch, btf.Type, error) {
	if addr != v.addr {
		return nil, nil, ErrNoSource
	}
	u32, char := &btf.Int{Name: "u32", Size: 4}, &btf.Int{Name: "char", Size: 1, Encoding: btf.Signed}
	inner := &btf.Struct{Name: "inner", Size: 8, Members: []btf.Member{{Name: "x", Type: u32, Offset: 32}}}
	outer := &btf.Struct{Name: "outer", Size: 24, Members: []btf.Member{{Name: "in", Type: inner, Offset: 64}, {Name: "to", Type: &btf.Pointer{Target: inner}, Offset: 128}}}
	switch name + "(" + strings.Join(path, ",") + ")" {
	case "n()":
		return Sum{Offset: 3, Of: Register{RegBX}}, u32, nil
	case "text()":
		return Deref{Offset: -32, Of: Register{RegBP}}, &btf.Array{Type: char, Nelems: 16, Index: u32}, nil
	case "how(in,x)", "how(to,x)", "how(none)":
		return Deref{Offset: 16, Of: Register{RegSP}}, outer, nil
	case "p(to,x)", "p(in,x)":
		return Register{RegDI}, &btf.Typedef{Name: "t", Type: &btf.Pointer{Target: &btf.Const{Type: outer}}}, nil
	case "small(in,x)":
		return Register{RegDI}, outer, nil
	}
	return nil, nil, fmt.Errorf("no variable %s with %q", name, path)
}

// TestVariables: how arguments use variables of the code that are not the function's
// parameters.
func TestVariables(t *testing.T) {
	f, err := kernel.Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	x := func(off int64, of Fetch) Fetch { return Deref{Offset: off, Of: of} }
	u32 := number(Unsigned, 4)
	for _, at := range []uint64{0, 0x10} {
		scope := typedKernel(t)
		scope.Variables = someVariables{f.Addr + guest.GVA(at)}
		place := fmt.Sprintf("p vfs_read+%d ", at)
		for text, want := range map[string]Arg{
			"n":               {"n", "n", Sum{Offset: 3, Of: Register{RegBX}}, u32},
			"a=n:x8":          {"a", "n:x8", Sum{Offset: 3, Of: Register{RegBX}}, number(Hex, 1)},
			"n:symstr":        {"n", "n:symstr", Sum{Offset: 3, Of: Register{RegBX}}, Type{Format: SymStr, Size: 4}},
			"text:string":     {"text", "text:string", x(-32, Register{RegBP}), stringType},
			"a=text:u8[4]":    {"a", "text:u8[4]", x(-32, Register{RegBP}), Type{Format: Unsigned, Size: 1, Count: 4}},
			"a=how.in.x":      {"a", "how.in.x", x(28, Register{RegSP}), u32},
			"a=how.to->x":     {"a", "how.to->x", x(4, x(32, Register{RegSP})), u32},
			"a=p->to->x":      {"a", "p->to->x", x(4, x(16, Register{RegDI})), u32},
			"a=p->in.x":       {"a", "p->in.x", x(12, Register{RegDI}), u32},
			"a=+8(n):u32":     {"a", "+8(n):u32", x(8, Sum{Offset: 3, Of: Register{RegBX}}), u32},
			"a=+0(p->in.x)":   {"a", "+0(p->in.x)", x(0, x(12, Register{RegDI})), x64},
			"a=how.in.x:x64 ": {"a", "how.in.x:x64", x(28, Register{RegSP}), x64},
		} {
			d, err := ParseIn(place+text, scope)
			if err != nil {
				t.Errorf("%s%s: %v", place, text, err)
				continue
			}
			if diff := cmp.Diff([]Arg{want}, d.Args); diff != "" {
				t.Errorf("%s%s:\n%s", place, text, diff)
			}
		}
		for text, want := range map[string]Code{
			"nothing": CodeNoBTFArg, "how.none": CodeNoBTFField, "how->in": CodeNoBTFArg, "small.in.x": CodeNosupDatArg, "n->": CodeNoPtrStrct, "p-x": CodeBadHyphen,
			"text:ustring[2] text": CodeUsedArgName,
		} {
			_, err := ParseIn(place+text, scope)
			var e *SyntaxError
			if at == 0 && text == "how.none" {
				want = CodeNosupDatArg // as for a parameter
			}
			if !errors.As(err, &e) || e.Code != want {
				t.Errorf("%s%s: %v, want %s", place, text, err, want)
			}
		}
		// Parameters of the function itself are by its types, as without variables.
		if at == 0 {
			if d, err := ParseIn(place+"count", scope); err != nil || d.Args[0].Fetch != (FuncArg{3}) {
				t.Errorf("count is %+v, %v", d, err)
			}
		}
		scope.Variables = someVariables{}
		if _, err := ParseIn("p vfs_read+16 n", scope); err == nil || !strings.Contains(err.Error(), "BTF is not available") {
			t.Errorf("without debug information: %v", err)
		}
	}
}
