package bpf

import (
	"testing"

	"github.com/cilium/ebpf/asm"
)

// TestSameInstructions: programs of an object that differ in their names and places only are checked once, and no others.
func TestSameInstructions(t *testing.T) {
	counts := func(n int64, label string) asm.Instructions {
		return asm.Instructions{
			asm.LoadMapPtr(asm.R1, 0).WithSymbol(label), asm.Mov.Imm(asm.R0, int32(n)), asm.JEq.Imm(asm.R0, 5, "end"), asm.Mov.Imm(asm.R0, 0), asm.Return().WithSymbol("end"),
		}
	}
	of := func(name string, kind Kind, insns asm.Instructions, maps ...string) ObjectProgram {
		for i := range insns {
			if insns[i].IsLoadFromMap() {
				insns[i].Constant = 0
			}
		}
		return NewObjectProgram(ObjectProgram{Name: name, Section: kind.String() + "/" + name, Kind: kind, AttachTo: name}, insns, maps)
	}
	o := &Object{
		Maps: []MapSpec{{Name: "a", Kind: Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}, {Name: "b", Kind: Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}},
		Programs: []ObjectProgram{
			of("first", Kprobe, counts(1, "x"), "a"), of("same", Kprobe, counts(1, "x"), "a"), of("number", Kprobe, counts(2, "x"), "a"),
			of("kind", Kretprobe, counts(1, "x"), "a"), of("map", Kprobe, counts(1, "x"), "b"), of("maps", Kprobe, counts(1, "x"), "a", "b"),
		},
	}
	c, err := o.Load(1, Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first := c.Programs[0]
	for i, p := range c.Programs {
		if want := o.Programs[i]; p.Name() != want.Name || p.Kind() != want.Kind || p.AttachTo != want.AttachTo || len(p.Maps()) != len(want.maps) || p.Maps()[0] != c.Maps[want.maps[0]] {
			t.Errorf("program %d is %s, %v at %s", i, p.Name(), p.Kind(), p.AttachTo)
		}
		if same := p.Instructions() == first.Instructions(); same != (i < 2) {
			t.Errorf("%s has the instructions of %s: %v", p.Name(), first.Name(), same)
		}
	}
}
