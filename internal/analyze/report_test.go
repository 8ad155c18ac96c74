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

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

func TestKernelReport(t *testing.T) {
	for _, l := range kerneltest.Layouts {
		if l.PerCPU {
			continue // its names of data would have to be sorted apart
		}
		path := filepath.Join(t.TempDir(), "vmlinuz")
		if err := os.WriteFile(path, kerneltest.BzImage(kerneltest.Pack(t, kerneltest.Kernel(l))["zstd"]), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := File(context.Background(), path, Options{Workers: 3})
		if err != nil {
			t.Errorf("%s: %v", l.Name, err)
			continue
		}
		r.Seconds, r.File, r.Text = 0, "", 0
		// 600 functions but padding and two that are blacklisted; each has 10
		// instructions but those whose bytes were changed above, the seven that boot, nine calls, a
		// jump into the next one, and one through a pointer, and the two of kexec, three calls.
		want := &Report{
			Kind: "bzImage", Packing: "zstd", Version: "6.1.0-test", Names: "kallsyms", Checked: 1, Thunks: true,
			Targets: 2 + 9 + 1 + 3, Count: 597, Insts: 597*10 - 4 - 2 - 4 - 4 - 1 - 38 - 10, Jumps: 1,
			LeftOut: []Count{{"blacklisted", 2}, {"init_text", 2}, {"padding", 1}},
		}
		rules := r.Rules
		r.Rules = nil
		if d := cmp.Diff(want, r); d != "" {
			t.Errorf("%s (-want +got):\n%s", l.Name, d)
		}
		patched := []Count{{"patched_site:ftrace", 1}, {"patched_site:jump_label", 1}, {"patched_site:static_call", 1}}
		for i, s := range rules {
			no := []Count{{"call_in_region", 8}, {"branch_in_region", 2}, {"exception_entry", 1}}
			switch s.Rule {
			case "ours": // our jmp may be displaced, but two functions are jumped into
				no[1] = Count{"jump_into_region", 2}
			case "ours_calls":
				no = []Count{{"jump_into_region", 2}, {"exception_entry", 1}, {"indirect_jump", 1}}
			}
			yes := 597 - len(patched)
			for _, n := range no {
				yes -= n.Count
			}
			if d := cmp.Diff(append(no, patched...), s.Entries.Reasons); d != "" || s.Entries.Total != 597 || s.Entries.Yes != yes || s.BehindFtrace.Yes != 1 {
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
	k := kerneltest.Kernel(kerneltest.Layouts[3])
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
