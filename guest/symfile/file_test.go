package symfile

import (
	"bytes"
	"debug/elf"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
)

const base = guest.GVA(0xffffffff81000000)

// row is a rule from an offset on.
type row struct {
	at   guest.GVA
	rule guest.FrameRule
}

// code is a kernel of three functions, one with two names, and of a module.
type code []row

func (code) Symbols() []guest.Symbol {
	return []guest.Symbol{
		{Name: "_text", Addr: base, Kind: guest.SymFunc}, {Name: "first", Addr: base, Size: 0x100, Kind: guest.SymFunc},
		{Name: "second", Addr: base + 0x100, Size: 0x80, Kind: guest.SymFunc}, {Name: "alias", Addr: base + 0x100, Size: 0x80, Kind: guest.SymFunc},
		{Name: "third", Addr: base + 0x180, Size: 0x80, Kind: guest.SymFunc}, {Name: "counter", Addr: base + 0x800, Size: 8, Kind: guest.SymData},
		{Name: "user", Addr: 0x400000, Size: 8, Kind: guest.SymFunc, User: true}, {Name: "module", Addr: base + 0x100000, Size: 0x40, Kind: guest.SymFunc},
	}
}

func (code) Text(user bool) []guest.Range {
	if user {
		return []guest.Range{{Start: 0x400000, End: 0x401000}}
	}
	return []guest.Range{{Start: base, End: base + 0x200}, {Start: base + 0x100000, End: base + 0x100040}}
}

func (c code) FrameRules(f func(guest.GVA, guest.FrameRule)) {
	for _, r := range c {
		f(base+r.at, r.rule)
	}
}

// call is the rule behind n pushes.
func call(n int32) guest.FrameRule { return guest.FrameRule{CFA: 8 + 8*n, Return: -8} }

var rules = code{
	{0, call(0)}, {4, call(1)}, {5, guest.FrameRule{CFA: 16, Return: -8, RBP: -16}},
	{8, guest.FrameRule{Base: guest.FrameRBP, CFA: 16, Return: -8, RBP: -16}}, {0x90, call(0)},
	// second has the rule that holds there, and one in its middle; third is entered by an interrupt.
	{0x150, call(300)},
	{0x180, guest.FrameRule{CFA: 0, Trap: true, Full: true, Return: 128, RBP: 32}}, {0x188, guest.FrameRule{CFA: 24, Trap: true}},
	{0x190, call(2)}, {0x1a0, guest.FrameRule{Base: guest.FrameR10, Return: -8, RBP: 8, AtRBP: true}},
	{0x1a8, guest.FrameRule{Base: guest.FrameRBP, Indirect: true, Inner: -8, CFA: 16, Return: -8}}, {0x1b0, guest.FrameRule{Outer: true}}, {0x1c0, call(1)},
	{0x100000, call(0)}, {0x100020, call(5)},
}

// TestFrames: who reads call frame information finds the rules in it that were written, each where it holds.
func TestFrames(t *testing.T) {
	starts := []guest.GVA{base, base + 0x100, base + 0x180, base + 0x100000}
	f := elfbuild.File{Entry: base, Segments: []elfbuild.Segment{
		{Section: ".text", VAddr: base, Flags: elf.PF_R | elf.PF_X, Data: make([]byte, 0x200)},
		{Section: ".more", VAddr: base + 0x100000, PAddr: 0x100000, Flags: elf.PF_R | elf.PF_X, Data: make([]byte, 0x40)},
	}, Extra: []elfbuild.Extra{{Name: ".debug_frame", Data: frames(rules, starts)}}}
	img, err := f.Image()
	if err != nil {
		t.Fatal(err)
	}
	if err := img.FrameError(); err != nil {
		t.Error(err)
	}
	for i, r := range rules {
		end := guest.GVA(0x100040)
		if i+1 < len(rules) {
			end = rules[i+1].at
		}
		if r.at < 0x200 {
			end = min(end, 0x200)
		}
		for at := r.at; at < end; at++ {
			got, known := img.FrameRule(base + at)
			// Package guest does not read expressions, and DWARF has no words for interrupts.
			want := r.rule
			want.Trap, want.Full = false, false
			if want.Indirect || want.AtRBP {
				if known {
					t.Errorf("%v: %+v", at, got)
				}
			} else if !known || got != want && !(want.Outer && got.Outer) {
				t.Errorf("%v: %+v, %t; want %+v", at, got, known, want)
			}
		}
	}
}

// TestBytes: the file has names and sections at their addresses, and nothing of user code.
func TestBytes(t *testing.T) {
	f, err := elf.NewFile(bytes.NewReader(Bytes(rules, base)))
	if err != nil {
		t.Fatal(err)
	}
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, s := range syms {
		got[s.Name] = s.Value
	}
	for _, s := range rules.Symbols() {
		if at, ok := got[s.Name]; ok == s.User || ok && at != uint64(s.Addr) {
			t.Errorf("%s: %#x, %t", s.Name, at, ok)
		}
	}
	if p := f.Progs[0]; p.Vaddr != uint64(base) || p.Memsz != 0x200 || p.Filesz != 0 {
		t.Errorf("%+v", p.ProgHeader)
	}
	if s := f.Section(".text.1"); s == nil || s.Type != elf.SHT_NOBITS || s.Addr != uint64(base)+0x100000 || s.Size != 0x40 {
		t.Errorf("%+v", s)
	}
}
