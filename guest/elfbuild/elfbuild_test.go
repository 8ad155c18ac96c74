package elfbuild

import (
	"debug/elf"
	"testing"
)

// TestBytes: the file is what the guest package takes, and debug/elf.
func TestBytes(t *testing.T) {
	f := File{
		Entry: 0xffffffff81000000,
		Segments: []Segment{
			{Section: ".text", VAddr: 0xffffffff81000000, PAddr: 0x100000, Flags: elf.PF_R | elf.PF_X, Data: []byte{0xfa, 0xf4, 0xeb, 0xfc}},
			{Section: ".data", VAddr: 0xffffffff81001000, PAddr: 0x101000, Flags: elf.PF_R | elf.PF_W, Data: []byte{1, 2}, MemSize: 64},
		},
		Symbols: []Symbol{{"halt", 0xffffffff81000000, 4, elf.STT_FUNC}, {"x", 0xffffffff81001000, 2, elf.STT_OBJECT}},
	}
	img, err := f.Image()
	if err != nil {
		t.Fatal(err)
	}
	s, err := img.Lookup("halt")
	if err != nil || s.Size != 4 || s.Section != ".text" || !img.IsText(s.Addr+3) || img.IsText(s.Addr+4) {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := img.Lookup("x"); err != nil || s.Section != ".data" {
		t.Errorf("%+v, %v", s, err)
	}
	f.Segments[0].Section, f.Segments[1].Section = "", ""
	if img, err := f.Image(); err != nil || len(img.Sections) != 0 || len(img.Symbols()) != 0 {
		t.Errorf("without sections: %v", err)
	}
}
