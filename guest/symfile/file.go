package symfile

import (
	"debug/elf"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
)

// Code is what the file has.
type Code interface {
	Symbols() []guest.Symbol
	Text(user bool) []guest.Range

	// FrameRules calls f with each place from which on another rule holds, ascending
	// within a piece of code.
	FrameRules(f func(at guest.GVA, r guest.FrameRule))
}

// Bytes returns the file: the kernel's names at the addresses where they are now, and how to find
// the callers of its functions. Code and data are not in it, which a debugger reads from the
// guest. base is the address of its first segment.
func Bytes(c Code, base guest.GVA) []byte {
	f := elfbuild.File{Entry: base}
	for i, r := range c.Text(false) {
		name := ".text"
		if i > 0 {
			name = fmt.Sprintf(".text.%d", i)
		}
		f.Segments = append(f.Segments, elfbuild.Segment{Section: name, VAddr: r.Start, Flags: elf.PF_R | elf.PF_X, MemSize: uint64(r.End - r.Start)})
	}
	var starts []guest.GVA
	for _, s := range c.Symbols() {
		if s.User {
			continue
		}
		kind := elf.STT_NOTYPE
		switch s.Kind {
		case guest.SymFunc:
			kind = elf.STT_FUNC
			starts = append(starts, s.Addr)
		case guest.SymData:
			kind = elf.STT_OBJECT
		}
		f.Symbols = append(f.Symbols, elfbuild.Symbol{Name: s.Name, Addr: s.Addr, Size: s.Size, Type: kind})
	}
	starts = slices.Compact(starts) // aliases
	f.Extra = []elfbuild.Extra{{Name: ".debug_frame", Data: frames(c, starts)}}
	return f.Bytes()
}
