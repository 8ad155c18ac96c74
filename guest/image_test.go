package guest

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustParse(t testing.TB, e testELF) *Image {
	t.Helper()
	img, err := ParseELF(e.build())
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestParseELF(t *testing.T) {
	e := soundELF()
	e.notes = []byte("\x04\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00xyz\x00abc\x00" + // another note, padded
		"\x04\x00\x00\x00\x04\x00\x00\x00\x03\x00\x00\x00GNU\x00\x12\x34\xab\xcd")
	img := mustParse(t, e)
	if img.Entry != testKernel || img.BuildID != "1234abcd" || img.SHA256 != sha256.Sum256(e.build()) {
		t.Errorf("entry %v, build ID %q, hash %x", img.Entry, img.BuildID, img.SHA256)
	}
	wantSegs := []Segment{ // ascending by address: the user program is in the lower half
		{testUser, 0x200000, code(3, 0x40), 0x40, true, false, true, true},
		{testKernel, 0x100000, code(1, 0x1800), 0x1800, true, false, true, false},
		{testKernel + 0x2000, 0x102000, code(2, 0x100), 0x1100, true, true, false, false},
	}
	if diff := cmp.Diff(wantSegs, img.Segments); diff != "" {
		t.Errorf("segments: %s", diff)
	}
	wantSecs := []Section{
		{".utext", testUser, 0x40, false, true},
		{".text", testKernel, 0x1000, false, true},
		{".kprobes.text", testKernel + 0x1000, 0x100, false, true},
		{".data", testKernel + 0x2000, 0x100, true, false},
		{".bss", testKernel + 0x2100, 0x1000, true, false},
	}
	if diff := cmp.Diff(wantSecs, img.Sections); diff != "" {
		t.Errorf("sections: %s", diff)
	}
	if diff := cmp.Diff([]Range{{testKernel, testKernel + 0x1100}}, img.Text(false)); diff != "" {
		t.Errorf("kernel text: %s", diff)
	}
	if diff := cmp.Diff([]Range{{testUser, testUser + 0x40}}, img.Text(true)); diff != "" {
		t.Errorf("user text: %s", diff)
	}
}

func TestParseELFWithoutSections(t *testing.T) {
	e := soundELF()
	e.sections, e.syms = nil, nil
	img := mustParse(t, e)
	if len(img.Sections) != 0 || len(img.Symbols()) != 0 || !img.IsText(testKernel+0x17ff) {
		t.Errorf("image %+v", img)
	}
	if s, ok := img.Find(testKernel); ok {
		t.Errorf("found %+v", s)
	}
	if _, err := img.Lookup("_start"); !errors.Is(err, ErrSymbolNotFound) {
		t.Error(err)
	}
	if r := img.BlacklistReason(testKernel); r != "" {
		t.Error(r)
	}
}

func TestTextAndCode(t *testing.T) {
	e := soundELF()
	// Read-only data between two pieces of code, and zeros after the file's bytes.
	e.sections[0].size = 0x800
	e.sections = append(e.sections, testSection{".rodata", testKernel + 0x800, 0x100, elf.SHF_ALLOC, 0},
		testSection{".text.hot", testKernel + 0x900, 0x700, elf.SHF_ALLOC | elf.SHF_EXECINSTR, 0})
	e.segs[2].memsz = 0x2000
	e.sections[4].size = 0x100
	img := mustParse(t, e)
	tests := []struct {
		va   GVA
		n    int
		want []byte // nil: no text
	}{
		{testKernel - 1, 4, nil},
		{testKernel, 4, code(1, 4)},
		{testKernel, 0, nil},
		{testKernel + 0x7fe, 15, []byte{0xff, 0}},
		{testKernel + 0x800, 1, nil},
		{testKernel + 0x8ff, 1, nil},
		{testKernel + 0x900, 1, []byte{1}},
		{testKernel + 0xffe, 4, []byte{0xff, 0, 1, 2}}, // into the next section
		{testKernel + 0x10ff, 15, []byte{0}},
		{testKernel + 0x1100, 1, nil}, // in the segment, but in no section
		{testKernel + 0x1800, 1, nil},
		{testKernel + 0x2000, 1, nil},
		{testUser, 2, []byte{3, 4}},
		{testUser + 0x3f, 2, []byte{0x42}},
		{testUser + 0x40, 1, nil}, // executable, but nothing from the file
		{0, 1, nil},
		{^GVA(0), 1, nil},
	}
	for _, tt := range tests {
		if got := img.Code(tt.va, tt.n); !bytes.Equal(got, tt.want) || cap(got) != len(got) {
			t.Errorf("Code(%v, %d) = % x (cap %d), want % x", tt.va, tt.n, got, cap(got), tt.want)
		}
		if got := img.IsText(tt.va); tt.n > 0 && got != (tt.want != nil) {
			t.Errorf("IsText(%v) = %v", tt.va, got)
		}
		if got := img.IsUserText(tt.va); tt.n > 0 && got != (tt.want != nil && tt.va < testKernel) {
			t.Errorf("IsUserText(%v) = %v", tt.va, got)
		}
	}
	if got := fmt.Sprint(img.Text(false)); got != "[{0xffffffff80100000 0xffffffff80100800} {0xffffffff80100900 0xffffffff80101100}]" {
		t.Errorf("text %s", got)
	}
}

func TestBlacklist(t *testing.T) {
	e := soundELF()
	fn := symInfo(elf.STB_GLOBAL, elf.STT_FUNC)
	// The list: "twin" by its second byte, nothing, the unnamed padding at 0xff0.
	table := []byte{0x01, 0x03, 0x10, 0x80, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0x0f, 0x10, 0x80, 0xff, 0xff, 0xff, 0xff}
	copy(e.segs[1].data[0x80:], table)
	e.sections[2].size = 0x80
	e.sections = append(e.sections, testSection{NoProbeTable().Section, testKernel + 0x2080, 24, elf.SHF_ALLOC, 0}, testSection{".init.data", testKernel + 0x20a0, 0x20, elf.SHF_ALLOC, 0})
	e.sections[3] = testSection{".bss", testKernel + 0x2100, 0x1000, elf.SHF_ALLOC | elf.SHF_WRITE, elf.SHT_NOBITS}
	// .noinstr.text and .entry.text merged into .text: known by the symbols around.
	e.syms = append(e.syms,
		testSym{"__noinstr_text_start", testKernel + 0x900, 0, fn, 1},
		testSym{"entry_code", testKernel + 0x900, 0x20, fn, 1},
		testSym{"__noinstr_text_end", testKernel + 0x910, 0, fn, 1},
		testSym{"after", testKernel + 0x920, 0x10, fn, 1},
		testSym{"end_marker", testKernel + 0xfe0, 0x10, fn, 1},
		testSym{"trap.isra.0", testKernel + 0x940, 8, fn, 1},
		testSym{"after.part.1", testKernel + 0x950, 8, fn, 1},
	)
	// A second list, known by the symbols around it: "sized" by its address.
	copy(e.segs[1].data[0xa0:], []byte{0x00, 0x01, 0x10, 0x80, 0xff, 0xff, 0xff, 0xff})
	e.syms = append(e.syms,
		testSym{NoProbeTable().Start, testKernel + 0x20a0, 0, symInfo(elf.STB_GLOBAL, elf.STT_NOTYPE), 6},
		testSym{NoProbeTable().End, testKernel + 0x20a8, 0, symInfo(elf.STB_GLOBAL, elf.STT_NOTYPE), 6})
	img := mustParse(t, e)
	tests := []struct {
		off  GVA
		want string
	}{
		{0, ""},
		{0xff, ""},
		{0x100, "listed in _kprobe_blacklist"},
		{0x17f, "listed in _kprobe_blacklist"},
		{0x180, ""},
		{0x2ff, ""},
		{0x300, "listed in _kprobe_blacklist"},
		{0x30f, "listed in _kprobe_blacklist"},
		{0x310, ""},
		{0xfef, ""},
		{0xff0, "listed in _kprobe_blacklist"},
		{0xff1, ""},
		{0xfff, ""},
		{0x1000, "in section .kprobes.text"},
		{0x10ff, "in section .kprobes.text"}, // no symbol there
		{0x1100, ""},
		{0x8ff, ""},
		{0x900, "in section .noinstr.text"},
		{0x91f, "in section .noinstr.text"}, // the symbol started in it
		{0x920, ""},
		{0x710, "part of trap, in section .kprobes.text"},
		{0x717, "part of trap, in section .kprobes.text"},
		{0x718, ""},
		{0x700, "part of sized, listed in _kprobe_blacklist"},
		{0x940, "part of trap, in section .kprobes.text"},
		{0x950, ""},
	}
	for _, tt := range tests {
		if got := img.BlacklistReason(testKernel + tt.off); got != tt.want {
			t.Errorf("text+%#x: %q, want %q", tt.off, got, tt.want)
		}
	}
}

func TestBlacklistTooLong(t *testing.T) {
	e := soundELF()
	e.segs[1].memsz = 32 << 20
	e.segs[2].paddr = 64 << 20
	e.sections[3] = testSection{NoProbeTable().Section, testKernel + 0x2100, 8*MaxImageSymbols + 8, elf.SHF_ALLOC, elf.SHT_NOBITS}
	if _, err := ParseELF(e.build()); errText(err) != "elf _kprobe_blacklist: 1048577 entries, more than 1048576" {
		t.Error(err)
	}
}
