package guest

import (
	debugelf "debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// TestParseELFRefuses changes one thing in a sound file and wants one error.
func TestParseELFRefuses(t *testing.T) {
	type hdr = debugelf.Header64
	prog := func(i int, f func(p *debugelf.Prog64)) func(*hdr, []debugelf.Prog64, []debugelf.Section64) {
		return func(_ *hdr, p []debugelf.Prog64, _ []debugelf.Section64) { f(&p[i]) }
	}
	sec := func(i int, f func(s *debugelf.Section64)) func(*hdr, []debugelf.Prog64, []debugelf.Section64) {
		return func(_ *hdr, _ []debugelf.Prog64, s []debugelf.Section64) { f(&s[i]) }
	}
	head := func(f func(h *hdr)) func(*hdr, []debugelf.Prog64, []debugelf.Section64) {
		return func(h *hdr, _ []debugelf.Prog64, _ []debugelf.Section64) { f(h) }
	}
	// In soundELF sections 1 to 5 are in memory, 6 is .symtab, 7 .strtab, 8 .shstrtab.
	const build = ": build the guest as a static x86-64 executable (-m64 -static -no-pie)"
	tests := []struct {
		name string
		edit func(*hdr, []debugelf.Prog64, []debugelf.Section64)
		want string // a part of the message, after "elf "
	}{
		{"32-bit", head(func(h *hdr) { h.Ident[debugelf.EI_CLASS] = 1 }), "header: ELFCLASS32, not 64-bit" + build},
		{"big endian", head(func(h *hdr) { h.Ident[debugelf.EI_DATA] = 2 }), "header: ELFDATA2MSB, not little endian" + build},
		{"wrong machine", head(func(h *hdr) { h.Machine = 183 }), "header: machine EM_AARCH64, not EM_X86_64" + build},
		{"version", head(func(h *hdr) { h.Version = 2 }), "header: unknown version 1/2"},
		{"PIE", head(func(h *hdr) { h.Type = 3 }), "header: position-independent executable or shared object: it needs relocating, which nothing here does: link with -static -no-pie"},
		{"object file", head(func(h *hdr) { h.Type = 1 }), "header: object file: link it first"},
		{"core", head(func(h *hdr) { h.Type = 4 }), "header: type ET_CORE, not an executable" + build},
		{"header size", head(func(h *hdr) { h.Ehsize = 52 }), "header: header size 52, not 64"},
		{"no program headers", head(func(h *hdr) { h.Phnum = 0 }), "program headers: the file has no program headers"},
		{"PN_XNUM", head(func(h *hdr) { h.Phnum = 0xffff }), "program headers: 65535 of them, more than 4095"},
		{"program header size", head(func(h *hdr) { h.Phentsize = 32 }), "program headers: entry size 32, not 56"},
		{"program headers outside", head(func(h *hdr) { h.Phoff = 1 << 62 }), "program headers: 3 at offset 0x4000000000000000 reach beyond"},
		{"program headers wrap", head(func(h *hdr) { h.Phoff = ^uint64(7) }), "program headers: 3 at offset 0xfffffffffffffff8 reach beyond"},
		{"section header size", head(func(h *hdr) { h.Shentsize = 40 }), "section headers: entry size 40, not 64"},
		{"section headers without offset", head(func(h *hdr) { h.Shoff = 0 }), "section headers: 9 of them but no offset"},
		{"section headers outside", head(func(h *hdr) { h.Shoff = 1 << 40 }), "section headers: offset 0x10000000000 is beyond"},
		{"too few section headers", head(func(h *hdr) { h.Shnum = 10 }), "section headers: 10 at offset"},
		{"extended section count", func(h *hdr, _ []debugelf.Prog64, s []debugelf.Section64) { h.Shnum, s[0].Size = 0, 1<<60 }, "section headers: 1152921504606846976 of them, more than 65536"},
		{"name table out of range", head(func(h *hdr) { h.Shstrndx = 9 }), "section headers: name table is section 9 of 9"},
		{"extended name table", func(h *hdr, _ []debugelf.Prog64, s []debugelf.Section64) { h.Shstrndx, s[0].Link = 0xffff, 70000 }, "section headers: name table is section 70000 of 9"},
		{"name table is no table", head(func(h *hdr) { h.Shstrndx = 1 }), "section 1: type SHT_PROGBITS, want SHT_STRTAB"},
		{"name table compressed", sec(8, func(s *debugelf.Section64) { s.Flags = uint64(debugelf.SHF_COMPRESSED) }), "section 8: SHT_STRTAB must not be compressed"},
		{"name table outside", sec(8, func(s *debugelf.Section64) { s.Size = 1 << 40 }), "section 8: 1099511627776 bytes at offset"},
		{"section name out of range", sec(2, func(s *debugelf.Section64) { s.Name = 1 << 30 }), "section 2: its name, at offset 0x40000000"},
		{"section name without end", sec(8, func(s *debugelf.Section64) { s.Size-- }), "section 8: its name, at offset"},
		{"section outside segments", sec(1, func(s *debugelf.Section64) { s.Addr = 0x1000 }), `section 1 (.text): 4096 bytes at 0x0000000000001000 are in no PT_LOAD segment`},
		{"section beyond its segment", sec(2, func(s *debugelf.Section64) { s.Size = 0x801 }), `section 2 (.kprobes.text): 2049 bytes at 0xffffffff80101000 are in no PT_LOAD segment`},
		{"gigantic section", sec(1, func(s *debugelf.Section64) { s.Size = ^uint64(0) }), `section 1 (.text): 18446744073709551615 bytes at`},
		{"sections overlap", sec(1, func(s *debugelf.Section64) { s.Size++ }), `sections: ".text" at 0xffffffff80100000 and ".kprobes.text" at 0xffffffff80101000 overlap`},

		{"interpreter", prog(2, func(p *debugelf.Prog64) { p.Type = 3 }), "program header 2: the program wants a dynamic loader (PT_INTERP): link with -static -no-pie"},
		{"dynamic", prog(2, func(p *debugelf.Prog64) { p.Type = 2 }), "program header 2: the program needs relocating (PT_DYNAMIC): link with -static -no-pie"},
		{"nothing to load", func(_ *hdr, p []debugelf.Prog64, _ []debugelf.Section64) { p[0].Type, p[1].Type, p[2].Type = 4, 4, 4 }, "program headers: no PT_LOAD segment"},
		{"filesz above memsz", prog(0, func(p *debugelf.Prog64) { p.Memsz-- }), "program header 0: 6144 bytes in the file for 6143 bytes of memory"},
		{"segment outside the file", prog(0, func(p *debugelf.Prog64) { p.Off = 1 << 40 }), "program header 0: 6144 bytes at offset 0x10000000000 reach beyond the file's"},
		{"segment offset wraps", prog(0, func(p *debugelf.Prog64) { p.Off = ^uint64(0) }), "program header 0: 6144 bytes at offset 0xffffffffffffffff reach beyond the file's"},
		{"gigantic memsz", prog(1, func(p *debugelf.Prog64) { p.Memsz = 1 << 60 }), "program header 1: 1152921504606846976 bytes of memory, more than any guest can have (68719476736)"},
		{"address wraps", prog(1, func(p *debugelf.Prog64) { p.Vaddr = ^uint64(0xfff) }), "program header 1: 4352 bytes at virtual address 0xfffffffffffff000 reach the last page of the address space"},
		{"last page", prog(1, func(p *debugelf.Prog64) { p.Vaddr = ^uint64(0xfff) - 0x1000 }), "program header 1: 4352 bytes at virtual address 0xffffffffffffe000 reach the last page"},
		{"physical address wraps", prog(1, func(p *debugelf.Prog64) { p.Paddr = ^uint64(0xfff) }), "program header 1: 4352 bytes at physical address 0xfffffffffffff000 wrap around"},
		{"non-canonical", prog(1, func(p *debugelf.Prog64) { p.Vaddr = 1 << 50 }), "program header 1: 4352 bytes at virtual address 0x4000000000000 are not all canonical 48-bit addresses: link the guest below"},
		{"ends non-canonical", prog(1, func(p *debugelf.Prog64) { p.Vaddr = 1<<47 - 0x1000 }), "program header 1: 4352 bytes at virtual address 0x7ffffffff000 are not all canonical"},
		{"starts non-canonical", prog(1, func(p *debugelf.Prog64) { p.Vaddr = 0xffff7ffffffff000 }), "program header 1: 4352 bytes at virtual address 0xffff7ffffffff000 are not all canonical"},
		{"incongruent", prog(1, func(p *debugelf.Prog64) { p.Paddr += 8 }), "program header 1: virtual address 0xffffffff80102000 and physical address 0x102008 have different offsets in their pages"},
		{"virtual overlap", prog(1, func(p *debugelf.Prog64) { p.Vaddr, p.Paddr = testKernel+0x17ff, 0x1047ff }), "segments: those at 0xffffffff80100000 (6144 bytes) and 0xffffffff801017ff overlap in virtual memory"},
		{"physical overlap", prog(1, func(p *debugelf.Prog64) { p.Paddr = 0x101000 }), "segments: those at 0xffffffff80100000 and 0xffffffff80102000 overlap in physical memory at 0x101000"},
		{"shared page, two frames", prog(1, func(p *debugelf.Prog64) { p.Vaddr, p.Paddr = testKernel+0x1800, 0x202800 }), "segments: those at 0xffffffff80100000 and 0xffffffff80101800 share a virtual page but not the physical one: align"},
		{"shared page, kernel and user", prog(1, func(p *debugelf.Prog64) { p.Vaddr, p.Paddr, p.Flags = testKernel+0x1800, 0x101800, p.Flags|PFUser }), "segments: those at 0xffffffff80100000 and 0xffffffff80101800 share a page, and one is the kernel's, the other the user's: align"},

		{"entry in data", head(func(h *hdr) { h.Entry = testKernel + 0x2000 }), "entry point: 0xffffffff80102000 is not in the image's code: link with -e"},
		{"entry behind the text", head(func(h *hdr) { h.Entry = testKernel + 0x1100 }), "entry point: 0xffffffff80101100 is not in"},
		{"entry 0", head(func(h *hdr) { h.Entry = 0 }), "entry point: 0x0000000000000000 is not in"},
		{"entry in user text", head(func(h *hdr) { h.Entry = testUser }), "entry point: 0x0000010000000000 is in a user segment"},

		{"symbol table outside", sec(6, func(s *debugelf.Section64) { s.Off = 1 << 40 }), "section 6: 384 bytes at offset 0x10000000000 reach beyond"},
		{"symbol size", sec(6, func(s *debugelf.Section64) { s.Entsize = 16 }), "section 6: entry size 16, not 24"},
		{"half a symbol", sec(6, func(s *debugelf.Section64) { s.Size -= 4 }), "section 6: 380 bytes are not a whole number of entries"},
		{"string table out of range", sec(6, func(s *debugelf.Section64) { s.Link = 9 }), "section 6: its string table is section 9 of 9"},
		{"string table is no table", sec(6, func(s *debugelf.Section64) { s.Link = 1 }), "section 1: type SHT_PROGBITS, want SHT_STRTAB"},
		{"string table outside", sec(7, func(s *debugelf.Section64) { s.Off = 1 << 40 }), "section 7: "},
		{"string table empty", sec(7, func(s *debugelf.Section64) { s.Size = 0 }), "symbol 1: its name, at offset 0x1 of a string table of 0 bytes"},
		{"string table without end", sec(7, func(s *debugelf.Section64) { s.Size-- }), "symbol 15: its name, at offset"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := soundELF()
			e.edit = tt.edit
			_, err := ParseELF(e.build())
			var ie *ImageError
			if !errors.As(err, &ie) || !strings.HasPrefix(err.Error(), "elf "+tt.want) {
				t.Errorf("got  %v\nwant elf %s", err, tt.want)
			}
		})
	}
}

func TestParseELFNotELF(t *testing.T) {
	for _, b := range []string{"", "\x7fEL", "#!/bin/sh\n", strings.Repeat("\x00", 4096)} {
		if _, err := ParseELF([]byte(b)); !errors.Is(err, ErrNotELF) {
			t.Errorf("%.8q: %v, want ErrNotELF", b, err)
		}
	}
}

// TestParseELFTruncated cuts a sound file everywhere: an error each time, as
// its section headers are at the end.
func TestParseELFTruncated(t *testing.T) {
	b := soundELF().build()
	for n := range b {
		if _, err := ParseELF(b[:n:n]); err == nil {
			t.Fatalf("no error for the first %d of %d bytes", n, len(b))
		}
	}
	if _, err := ParseELF(b); err != nil {
		t.Fatal(err)
	}
}

func TestParseELFLimits(t *testing.T) {
	many := func(n int) testELF {
		e := testELF{entry: testKernel}
		for i := range n {
			off := uint64(i) * PageSize
			e.segs = append(e.segs, testSeg{testKernel + off, 0x100000 + off, []byte{0x90}, 0, debugelf.PF_R | debugelf.PF_X})
		}
		return e
	}
	if _, err := ParseELF(many(maxImageLoads).build()); err != nil {
		t.Errorf("%d segments: %v", maxImageLoads, err)
	}
	if _, err := ParseELF(many(maxImageLoads + 1).build()); errText(err) != "elf program header 64: more than 64 PT_LOAD segments: merge sections in the linker script" {
		t.Errorf("%d segments: %v", maxImageLoads+1, err)
	}

	// Symbols that all share one long name: more than any linker makes of a table.
	e := soundELF()
	e.syms[0].name = strings.Repeat("x", 1000)
	for range 100 {
		e.syms = append(e.syms, testSym{"", testKernel, 0, symInfo(debugelf.STB_GLOBAL, debugelf.STT_FUNC), 1})
	}
	b := e.build()
	if _, err := ParseELF(b); err != nil {
		t.Error(err)
	}
	f, err := elf.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i < f.Sections[6].Size/symSize; i++ {
		b[f.Sections[6].Off+i*symSize] = 1 // every name is at offset 1
	}
	if _, err := ParseELF(b); !strings.HasPrefix(errText(err), "elf section 6: the names overlap") {
		t.Errorf("overlapping names: %v", err)
	}

	// As many symbols as there may be, and one more; all but the first are empty.
	for _, n := range []int{MaxImageSymbols, MaxImageSymbols + 1} {
		b = soundELF().build()
		size := len(b)
		e = soundELF()
		e.edit = func(_ *debugelf.Header64, _ []debugelf.Prog64, s []debugelf.Section64) {
			s[6].Off, s[6].Size = uint64(size), uint64(n*symSize)
		}
		_, err := ParseELF(append(e.build(), make([]byte, n*symSize)...))
		if want := "elf section 6: 1048577 symbols, more than 1048576: strip local symbols (objcopy --discard-locals)"; n > MaxImageSymbols && errText(err) != want || n == MaxImageSymbols && err != nil {
			t.Errorf("%d symbols: %v", n, err)
		}
	}

	const maxSymbolName = 64 << 10 // bytes, as in package elf
	e = soundELF()
	e.syms[0].name = strings.Repeat("x", maxSymbolName)
	if _, err := ParseELF(e.build()); err != nil {
		t.Errorf("longest name: %v", err)
	}
	e.syms[0].name += "x"
	if _, err := ParseELF(e.build()); err == nil {
		t.Error("no error for a name that is too long")
	}
}

func TestLoadFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "guest.elf")
	if err := os.WriteFile(path, soundELF().build(), 0o600); err != nil {
		t.Fatal(err)
	}
	if img, err := LoadFile(path); err != nil || img.Entry != testKernel {
		t.Errorf("%+v, %v", img, err)
	}
	if _, err := LoadFile(dir); err == nil || !strings.HasSuffix(err.Error(), "not a regular file") {
		t.Errorf("directory: %v", err)
	}
	if _, err := LoadFile(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, maxImageFile+1); err != nil { // sparse
		t.Fatal(err)
	}
	want := "load guest image " + big + ": elf file: 268435457 bytes, more than 268435456: strip its debug information"
	if _, err := LoadFile(big); errText(err) != want {
		t.Errorf("big: %v, want %s", err, want)
	}
	if err := os.WriteFile(big, []byte("\x7fELF\x01"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadFile(big); errText(err) != "load guest image "+big+": elf header: truncated after 5 bytes" {
		t.Errorf("short: %v", err)
	}
}
