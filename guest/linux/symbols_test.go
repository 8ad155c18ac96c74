package linux

import (
	"bytes"
	debugelf "debug/elf"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

// note is a build ID.
func note(id string) kerneltest.Section {
	b := words(4, uint32(len(id)), 3)
	return kerneltest.Section{Name: ".notes", Type: debugelf.SHT_NOTE, Data: append(append(b, "GNU\x00"...), id...)}
}

// namelessKernel makes the small kernel forget its names, as one that was built without
// CONFIG_KALLSYMS.
func namelessKernel(t testing.TB) (*Kernel, []elf.Name) {
	t.Helper()
	k, err := Parse(kerneltest.Kernel(kerneltest.Layouts[3], note("ours")))
	if err != nil {
		t.Fatal(err)
	}
	names := k.mem.Names
	k.mem = &elf.Memory{Sections: k.mem.Sections}
	k.Embeds, k.Checked = false, 0
	return k, names
}

// systemMap writes names as nm does.
func systemMap(names []elf.Name) []byte {
	var b bytes.Buffer
	for _, n := range names {
		letter := byte('d')
		if n.Func {
			letter = 't'
		}
		if n.Global {
			letter -= 'a' - 'A'
		}
		fmt.Fprintf(&b, "%016x %c %s\n", n.Addr, letter, n.Name)
	}
	return b.Bytes()
}

func TestReadSymbols(t *testing.T) {
	k, names := namelessKernel(t)
	if err := k.readSymbols(systemMap(names)); err != nil {
		t.Fatal(err)
	}
	if len(k.mem.Names) != len(names) || k.Embeds {
		t.Fatalf("%d names of %d", len(k.mem.Names), len(names))
	}
	for i, n := range names {
		if k.mem.Names[i] != n {
			t.Errorf("name %d is %+v, want %+v", i, k.mem.Names[i], n)
		}
	}
	// One export, the banner, and the exception table.
	if k.Checked != 3 {
		t.Errorf("%d names were confirmed", k.Checked)
	}
	if s, err := k.Sites(); err != nil || s.Count(Ftrace) != 2 || s.Count(JumpLabel) != 1 {
		t.Errorf("sites: %+v, %v", s, err)
	}

	k, _ = namelessKernel(t)
	var table, text []byte
	table, text = append(table, make([]byte, 24)...), append(text, 0)
	for _, n := range names {
		sym := debugelf.Sym64{Name: uint32(len(text)), Info: debugelf.ST_INFO(debugelf.STB_GLOBAL, debugelf.STT_FUNC), Shndx: 1, Value: n.Addr, Size: 3}
		table, _ = binary.Append(table, binary.LittleEndian, sym)
		text = append(append(text, n.Name...), 0)
	}
	vmlinux := func(id string) []byte {
		return kerneltest.ELF(kerneltest.Section{Name: ".text", Addr: kerneltest.Base, Data: []byte{0xc3}, X: true}, note(id),
			kerneltest.Section{Name: ".symtab", Type: debugelf.SHT_SYMTAB, Link: 4, Data: table}, kerneltest.Section{Name: ".strtab", Type: debugelf.SHT_STRTAB, Data: text})
	}
	if err := k.readSymbols(vmlinux("ours")); err != nil || len(k.mem.Names) != len(names) || k.mem.Names[0].Size != 3 {
		t.Errorf("vmlinux: %d names, %v", len(k.mem.Names), err)
	}
	if err := k.readSymbols(vmlinux("else")); err == nil || err.Error() != "it is of another build: its build ID is 656c7365, the kernel's 6f757273" {
		t.Errorf("another vmlinux: %v", err)
	}
}

// TestSymbolsOfAnotherKernel: what the image knows of itself must agree.
func TestSymbolsOfAnotherKernel(t *testing.T) {
	_, names := namelessKernel(t)
	good := string(systemMap(names))
	moved := func(name string) string {
		for _, n := range names {
			if n.Name == name {
				return strings.Replace(good, fmt.Sprintf("%016x", n.Addr), fmt.Sprintf("%016x", n.Addr+16), 1)
			}
		}
		t.Fatal(name)
		return ""
	}
	for _, tt := range []struct{ name, file, want string }{
		{"Debian's", "ffffffffffffffff B The real System.map is in the linux-image-<version>-dbg package\n", "it has no names of a kernel: want a System.map"},
		{"empty", "", "it has no names of a kernel"},
		{"a script", "#!/bin/sh\nexit 0 1\n", "it has no names of a kernel"},
		{"another export", moved("jumped"), "it is of another kernel: __ksymtab says that jumped is at 0xffffffff81000060"},
		{"another banner", moved("linux_banner"), "it is of another kernel: linux_banner would be at"},
		{"another table", moved("__start___ex_table"), "it is of another kernel: __start___ex_table would be at"},
		{"nothing to compare", "ffffffff81000000 T traced\n", ""},
		{"damaged ELF", "\x7fELF\x02\x01\x01", "elf header"},
	} {
		k, _ := namelessKernel(t)
		err := k.readSymbols([]byte(tt.file))
		switch {
		case tt.want == "" && (err == nil || k.Checked != 0):
			// Its export is added, and nothing is confirmed.
			t.Errorf("%s: %v, %d confirmed", tt.name, err, k.Checked)
		case err == nil || !strings.Contains(err.Error(), tt.want):
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		case len(k.mem.Names) != 0:
			t.Errorf("%s: its names were taken", tt.name)
		}
	}
}

func FuzzSystemMap(f *testing.F) {
	_, names := namelessKernel(f)
	f.Add(systemMap(names[:40]))
	f.Add([]byte("ffffffffffffffff B The real one\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		names, err := readSystemMap(b)
		if err != nil {
			return
		}
		if again, err := readSystemMap(systemMap(names)); err != nil || len(again) != len(names) {
			t.Errorf("%d names, then %d, %v", len(names), len(again), err)
		}
	})
}
