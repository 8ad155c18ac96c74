package analyze

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/internal/elffile"
	_ "github.com/guestprobe/guestprobe/internal/fuzzing"
	"github.com/guestprobe/guestprobe/internal/kerneltest"
)

const kernelBase = kerneltest.Base

// words appends values of 32 bits.
func words(vs ...uint32) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// testKernel is a kernel of 600 functions of 16 bytes, and what the first ones
// are is in their code:
//
//	0 ftrace call, then 5 nops     1 a load with an exception entry
//	2 a static branch              3 a static call
//	4 blacklisted by its address   5 a jump into function 6
//	6 nops                         7 a part of 4
//	8 padding of a function        the others: 9 nops, ret, int3
func testKernel(t testing.TB, l kerneltest.Layout) []byte {
	const exTable, rodata, black, patched = kernelBase + 0x10_0000, kernelBase + 0x20_0000, kernelBase + 0x30_0000, kernelBase + 0x40_0000
	text := bytes.Repeat(append(bytes.Repeat([]byte{0x90}, 9), 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc), 600)
	put := func(fn int, code ...byte) { copy(text[fn*16:], code) }
	put(0, 0xe8, 0, 0, 0, 0)
	put(1, 0x48, 0x8b, 0x07)
	put(2, 0x0f, 0x1f, 0x44, 0, 0)
	put(3, 0xe8, 0, 0, 0, 0)
	put(5, 0xeb, 16+2-2) // to function 6, +2
	var syms []elffile.Name
	add := func(name string, addr uint64) { syms = append(syms, elffile.Name{Name: name, Addr: addr}) }
	names := []string{"traced", "loads", "branches", "calls", "hidden", "jumper", "jumped", "hidden.cold", "__pfx_padded"}
	for n := range 600 {
		name := "fn_" + strings.Repeat("x", n%7) + string(rune('a'+n%26))
		if n < len(names) {
			name = names[n]
		}
		add(name, kernelBase+uint64(n)*16)
	}
	add("__start___ex_table", exTable)
	add("__stop___ex_table", exTable+12)
	add("linux_banner", rodata)
	add("__start_kprobe_blacklist", black)
	add("__stop_kprobe_blacklist", black+8)
	add("__start_mcount_loc", patched)
	add("__stop_mcount_loc", patched+8)
	add("__start___jump_table", patched+8)
	add("__stop___jump_table", patched+24)
	add("__start_static_call_sites", patched+24)
	add("__stop_static_call_sites", patched+32)
	tables := binary.LittleEndian.AppendUint64(nil, kernelBase)
	to := func(addr uint64) uint32 { return uint32(addr - (patched + uint64(len(tables)))) }
	tables = append(tables, words(to(kernelBase+32), 0, 0, 0)...)
	tables = append(tables, words(to(kernelBase+48), 0)...)
	from := func(at, addr uint64) uint32 { return uint32(addr - at) }
	exports := words(from(patched+0x1000, kernelBase+96), 0x100-4, 0)
	strs := append(exports, make([]byte, 0x100-len(exports))...)
	strs = append(strs, "jumped\x00"...)
	ro := append([]byte("Linux version 6.1.0-test (gcc)\n\x00"), make([]byte, 32)...)
	ro = append(ro[:64:64], kerneltest.Kallsyms(l, kernelBase, syms, "T")...)
	return kerneltest.ELF(
		kerneltest.Section{Name: ".text", Addr: kernelBase, Data: text, X: true},
		kerneltest.Section{Name: "__ex_table", Addr: exTable, Data: words(from(exTable, kernelBase+16), 0, 0)},
		kerneltest.Section{Name: ".rodata", Addr: rodata, Data: ro},
		kerneltest.Section{Name: ".init.data", Addr: black, Data: binary.LittleEndian.AppendUint64(nil, kernelBase+64)},
		kerneltest.Section{Name: ".tables", Addr: patched, Data: tables},
		kerneltest.Section{Name: "__ksymtab", Addr: patched + 0x1000, Data: strs[:12]},
		kerneltest.Section{Name: "__ksymtab_strings", Addr: patched + 0x1100, Data: strs[0x100:]},
		kerneltest.Section{Name: ".retpoline_sites", Addr: patched + 0x2000, Data: words(0)},
	)
}

func TestKernelReport(t *testing.T) {
	for _, l := range kerneltest.Layouts {
		if l.PerCPU {
			continue // its names of data would have to be sorted apart
		}
		path := filepath.Join(t.TempDir(), "vmlinuz")
		if err := os.WriteFile(path, kerneltest.BzImage(kerneltest.Pack(t, testKernel(t, l))["zstd"]), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := File(context.Background(), path, Options{Workers: 3})
		if err != nil {
			t.Errorf("%s: %v", l.Name, err)
			continue
		}
		r.Seconds, r.File, r.Text = 0, "", 0
		// 600 functions but padding and two that are blacklisted; each has 10
		// instructions but those whose bytes were changed above.
		want := &Report{
			Kind: "bzImage", Packing: "zstd", Version: "6.1.0-test", Names: "kallsyms", Checked: 1, Thunks: true,
			Targets: 1, Count: 597, Insts: 597*10 - 4 - 2 - 4 - 4 - 1, Jumps: 0,
			LeftOut: []Count{{"blacklisted", 2}, {"padding", 1}},
		}
		rules := r.Rules
		r.Rules = nil
		if d := cmp.Diff(want, r); d != "" {
			t.Errorf("%s (-want +got):\n%s", l.Name, d)
		}
		patched := []Count{{"patched_site:ftrace", 1}, {"patched_site:jump_label", 1}, {"patched_site:static_call", 1}}
		for i, s := range rules {
			no := append([]Count(nil), patched...)
			switch s.Rule {
			case "kernel_thunks":
				no = append([]Count{{"branch_in_region", 1}, {"exception_entry", 1}}, no...)
			default: // our jmp may be displaced, but function 6 is jumped into
				no = append([]Count{{"exception_entry", 1}, {"jump_into_region", 1}}, no...)
			}
			if d := cmp.Diff(no, s.Entries.Reasons); d != "" || s.Entries.Total != 597 || s.Entries.Yes != 592 || s.BehindFtrace.Yes != 1 {
				t.Errorf("%s by %s: %d of %d, behind ftrace %+v (-want +got):\n%s", l.Name, s.Rule, s.Entries.Yes, s.Entries.Total, s.BehindFtrace, d)
			}
			if want := []string{"kernel_thunks", "ours", "ours_calls"}[i]; s.Rule != want {
				t.Errorf("rule %d is %s, want %s", i, s.Rule, want)
			}
		}
	}
}

// TestELFReport: two functions of a stripped library, and one without a name
// between them that jumps into the first.
func TestELFReport(t *testing.T) {
	const base = 0x40_0000
	text := bytes.Repeat([]byte{0x90}, 48)
	copy(text[9:], []byte{0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc})
	copy(text[16:], []byte{0xeb, 0xf0}) // to base+2
	text[41] = 0xc3
	sym := func(name uint32, addr, size uint64) []byte {
		var b bytes.Buffer
		binary.Write(&b, binary.LittleEndian, elf.Sym64{Name: name, Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC), Shndx: 1, Value: addr, Size: size})
		return b.Bytes()
	}
	table := append(append(make([]byte, 24), sym(1, base, 10)...), sym(7, base+32, 10)...)
	for _, tt := range []struct {
		typ         elf.SectionType
		name        string
		count, into int
	}{
		{elf.SHT_DYNSYM, ".dynsym", 2, 1},
		// With .symtab all functions are known: what is between belongs to the first.
		{elf.SHT_SYMTAB, ".symtab", 2, 1},
	} {
		b := kerneltest.ELF(kerneltest.Section{Name: ".text", Addr: base, Data: text, X: true}, kerneltest.Section{Name: tt.name, Data: table, Type: tt.typ, Link: 3},
			kerneltest.Section{Name: ".strtab", Data: []byte("\x00first\x00second\x00"), Type: elf.SHT_STRTAB})
		img, err := parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if img.source != tt.name {
			t.Errorf("names from %s, want %s", img.source, tt.name)
		}
		r, err := img.report(context.Background(), Options{Rules: RulesOurs, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		if r.Count != tt.count || len(r.Rules) != 2 || r.Rules[0].Entries.Yes != 1 {
			t.Errorf("%s: %+v", tt.name, r)
		}
		if want := []Count{{"jump_into_region", 1}}; !cmp.Equal(r.Rules[0].Entries.Reasons, want) {
			t.Errorf("%s: got %v, want %v", tt.name, r.Rules[0].Entries.Reasons, want)
		}
		if _, err := img.report(context.Background(), Options{Rules: "all"}); err == nil {
			t.Error("unknown rules were taken")
		}
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := img.report(gone, Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: got %v", err)
		}
	}
}

func TestRefusedFiles(t *testing.T) {
	good := kerneltest.ELF(kerneltest.Section{Name: ".text", Addr: 0x1000, Data: []byte{0xc3}, X: true})
	for _, tt := range []struct {
		name, want string
		b          []byte
	}{
		{"empty", "not an x86-64 ELF file", nil},
		{"text", "not an x86-64 ELF file", []byte("#!/bin/sh\n")},
		{"32 bits", "not an x86-64 ELF file", append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 60)...)},
		{"no names", "it has no names", good},
	} {
		_, err := parse(tt.b)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	for n := range good {
		if _, err := parse(good[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were taken", n, len(good))
		}
	}
	if _, err := File(context.Background(), t.TempDir(), Options{}); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	k := testKernel(f, kerneltest.Layouts[3])
	f.Add(k)
	f.Add(kerneltest.BzImage(kerneltest.Pack(f, k)["gzip"]))
	f.Fuzz(func(t *testing.T, b []byte) {
		img, err := parse(b)
		if err != nil {
			return
		}
		if r, err := img.report(context.Background(), Options{Workers: 1}); err == nil && r.Count == 0 {
			t.Error("a report about nothing")
		}
	})
}
