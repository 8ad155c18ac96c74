package debuginfo

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// TestNamed compares what DWARF says of the built-in guest's types and functions with what
// its BTF says, which the compiler has written, too.
func TestNamed(t *testing.T) {
	i, f := guest(t)
	section, err := f.Data(f.Index(".BTF"), types.MaxBTF)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := types.Read(section, nil)
	if err != nil {
		t.Fatal(err)
	}
	info := types.New(spec, nil)
	same := comparison{t, map[string]bool{}}
	n := 0
	for _, tag := range []types.Tag{types.TagStruct, types.TagUnion, types.TagEnum, types.TagNone} {
		for _, name := range info.Names(tag) {
			if name == "__ARRAY_SIZE_TYPE__" {
				continue
			}
			n++
			same.types(string(tag)+" "+name, info.TypeByName(tag, name), i.TypeByName(tag, name))
			if !slices.Contains(i.Names(tag), name) {
				t.Errorf("%s %s is not among the names", tag, name)
			}
		}
	}
	functions := 0
	for x := range spec.All() {
		fn, ok := x.(*btf.Func)
		if !ok {
			continue
		}
		functions++
		want, have := types.Prototype(fn.Name, fn.Type.(*btf.FuncProto)), "nothing"
		if p := i.Func(fn.Name); p != nil {
			have = types.Prototype(fn.Name, p)
		}
		if have != want {
			t.Errorf("DWARF has %s\nBTF has %s", have, want)
		}
	}
	for x := range spec.All() {
		if e, ok := x.(*btf.Enum); ok {
			for _, v := range e.Values {
				if got, _, ok := i.Enumerator(v.Name); !ok || got != v.Value {
					t.Errorf("enumerator %s is %d, %v, want %d", v.Name, got, ok, v.Value)
				}
			}
		}
	}
	if n < 40 || functions < 100 || i.TypeByName(types.TagStruct, "none") != nil || i.Func("none") != nil {
		t.Errorf("%d types, %d functions", n, functions)
	}
}

// comparison compares types of two sources.
type comparison struct {
	*testing.T
	done map[string]bool
}

func (c comparison) types(what string, a, b btf.Type) {
	if b == nil {
		c.Errorf("%s is not there", what)
		return
	}
	if c.done[what] {
		return
	}
	c.done[what] = true
	an, _ := types.Size(a)
	bn, _ := types.Size(b)
	if x, y := types.Text(a), types.Text(flattenArrays(b)); x != y || an != bn {
		c.Errorf("%s: %s of %d bytes, and %s of %d", what, x, an, y, bn)
	}
	ams, _ := types.Members(a)
	bms, _ := types.Members(b)
	if len(ams) != len(bms) {
		c.Errorf("%s has %d members, and %d", what, len(ams), len(bms))
		return
	}
	for i, m := range ams {
		n := bms[i]
		if m.Name != n.Name || m.Offset != n.Offset || m.BitfieldSize != n.BitfieldSize {
			c.Errorf("%s: %+v, and %+v", what, m, n)
		}
		c.types(what+"."+m.Name, m.Type, n.Type)
	}
}

// flattenArrays has arrays of arrays as one array, as BTF of this compiler has them.
func flattenArrays(t btf.Type) btf.Type {
	a, ok := t.(*btf.Array)
	if !ok {
		return t
	}
	of, ok := flattenArrays(a.Type).(*btf.Array)
	if !ok {
		return t
	}
	return &btf.Array{Index: a.Index, Type: of.Type, Nelems: a.Nelems * of.Nelems}
}

// TestFuncAt: of several functions with a name, the one with code at the address is meant.
func TestFuncAt(t *testing.T) {
	i := open(t, filepath.Join(forms(t), "gcc5", "prog"))
	places, err := i.Places("a.c", 8)
	if err != nil || len(places) != 1 {
		t.Fatalf("%+v, %v", places, err)
	}
	at := places[0].Addr
	if p, why := i.FuncAt("work1", at); p == nil || why != "" || p.Params[0].Name != "l" {
		t.Fatalf("%+v, %q", p, why)
	}
	other := i.named.functions["_start"]
	i.named.functions["work1"] = other // as if another file had a function of this name first
	if p := i.Func("work1"); p == nil || len(p.Params) != 0 {
		t.Fatalf("%+v", p)
	}
	for addr, want := range map[uint64]int{at: 2, at + 1: 0, 0: 0} {
		if p, _ := i.FuncAt("work1", addr); p == nil || len(p.Params) != want {
			t.Errorf("at %#x: %+v, want %d parameters", addr, p, want)
		}
	}
	if p, why := i.FuncAt("none", at); p != nil || why != "" {
		t.Errorf("%+v, %q", p, why)
	}
}
