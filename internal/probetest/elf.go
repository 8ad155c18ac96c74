package probetest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Func is one function of an image that a test makes up.
type Func struct {
	Name string
	Code []byte
}

// BuildImage returns an image whose text at base is funcs, one behind the
// other: kernel text that begins at the entry point, or, with user, user text
// beside a kernel that only halts.
func BuildImage(base guest.GVA, user bool, funcs ...Func) (*guest.Image, error) {
	const (
		phOff   = 64
		haltOff = 0x1000
		textOff = 0x2000
		halt    = 0xffff_ffff_8100_0000
	)
	var text, strtab bytes.Buffer
	strtab.WriteByte(0)
	syms := []elf.Sym64{{}}
	for _, f := range funcs {
		syms = append(syms, elf.Sym64{
			Name:  uint32(strtab.Len()),
			Info:  elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC),
			Shndx: 1,
			Value: uint64(base) + uint64(text.Len()),
			Size:  uint64(len(f.Code)),
		})
		strtab.WriteString(f.Name + "\x00")
		text.Write(f.Code)
	}
	shstr := []byte("\x00.text\x00.symtab\x00.strtab\x00.shstrtab\x00.halt\x00")
	symOff := uint64(textOff+text.Len()+7) &^ 7
	strOff := symOff + uint64(len(syms))*elf.Sym64Size
	shstrOff := strOff + uint64(strtab.Len())
	shOff := (shstrOff + uint64(len(shstr)) + 7) &^ 7
	entry := uint64(base)
	progs := []elf.Prog64{{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Off: textOff, Vaddr: uint64(base), Paddr: 0x100000,
		Filesz: uint64(text.Len()), Memsz: uint64(text.Len()), Align: 0x1000}}
	if user {
		entry = halt
		progs[0].Flags |= guest.PFUser
		progs = append(progs, elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Off: haltOff, Vaddr: halt, Paddr: 0x8_0000,
			Filesz: 4, Memsz: 4, Align: 0x1000})
	}
	out := make([]byte, shOff)
	put := func(off uint64, v any) {
		var b bytes.Buffer
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic("BUG: " + err.Error())
		}
		if need := int(off) + b.Len(); need > len(out) {
			out = append(out, make([]byte, need-len(out))...)
		}
		copy(out[off:], b.Bytes())
	}
	sections := []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC | elf.SHF_EXECINSTR), Addr: uint64(base), Off: textOff, Size: uint64(text.Len()), Addralign: 16},
		{Name: 7, Type: uint32(elf.SHT_SYMTAB), Off: symOff, Size: uint64(len(syms)) * elf.Sym64Size, Link: 3, Info: 1, Addralign: 8, Entsize: elf.Sym64Size},
		{Name: 15, Type: uint32(elf.SHT_STRTAB), Off: strOff, Size: uint64(strtab.Len()), Addralign: 1},
		{Name: 23, Type: uint32(elf.SHT_STRTAB), Off: shstrOff, Size: uint64(len(shstr)), Addralign: 1},
	}
	if user {
		sections = append(sections, elf.Section64{Name: 33, Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC | elf.SHF_EXECINSTR), Addr: halt, Off: haltOff, Size: 4, Addralign: 16})
	}
	put(0, elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Entry: entry, Phoff: phOff, Shoff: shOff, Ehsize: 64, Phentsize: 56, Phnum: uint16(len(progs)), Shentsize: 64, Shnum: uint16(len(sections)), Shstrndx: 4,
	})
	put(phOff, progs)
	copy(out[haltOff:], "\xfa\xf4\xeb\xfc") // cli; hlt; jmp back
	copy(out[textOff:], text.Bytes())
	put(symOff, syms)
	copy(out[strOff:], strtab.Bytes())
	copy(out[shstrOff:], shstr)
	put(shOff, sections)
	img, err := guest.ParseELF(out)
	if err != nil {
		return nil, fmt.Errorf("build test image: %w", err)
	}
	return img, nil
}
