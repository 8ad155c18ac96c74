package probetest

import (
	"debug/elf"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
)

// Func is one function of a generated image.
type Func struct {
	Name string
	Code []byte
}

// BuildImage returns an image whose text at base is funcs, one after the other.
// It is kernel text that begins at the entry point or, with user, user text
// beside a kernel that only halts.
func BuildImage(base guest.GVA, user bool, funcs ...Func) (*guest.Image, error) {
	const halt = 0xffff_ffff_8100_0000
	var text []byte
	f := elfbuild.File{Entry: base}
	for _, fn := range funcs {
		f.Symbols = append(f.Symbols, elfbuild.Symbol{Name: fn.Name, Addr: base + guest.GVA(len(text)), Size: uint64(len(fn.Code)), Type: elf.STT_FUNC})
		text = append(text, fn.Code...)
	}
	f.Segments = []elfbuild.Segment{{Section: ".text", VAddr: base, PAddr: 0x100000 + guest.GPA(base%guest.PageSize), Flags: elf.PF_R | elf.PF_X, Data: text}}
	if user {
		f.Entry = halt
		f.Segments[0].Flags |= guest.PFUser
		f.Segments = append(f.Segments, elfbuild.Segment{Section: ".halt", VAddr: halt, PAddr: 0x8_0000, Flags: elf.PF_R | elf.PF_X, Data: []byte("\xfa\xf4\xeb\xfc")}) // cli; hlt; jmp back
	}
	img, err := f.Image()
	if err != nil {
		return nil, fmt.Errorf("build test image: %w", err)
	}
	return img, nil
}
