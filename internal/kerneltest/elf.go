package kerneltest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// Section is one section of a file.
type Section struct {
	Name string
	Addr uint64 // 0: not in memory
	Data []byte
	X    bool
	Link uint32
	Type elf.SectionType // 0: SHT_PROGBITS
}

// ELF makes an executable of sections.
func ELF(parts ...Section) []byte {
	names := []byte{0}
	parts = append(parts, Section{Name: ".shstrtab", Type: elf.SHT_STRTAB})
	for _, p := range parts {
		names = append(append(names, p.Name...), 0)
	}
	parts[len(parts)-1].Data = names
	out := make([]byte, 64)
	heads := make([]elf.Section64, 1)
	name := uint32(1)
	for _, p := range parts {
		h := elf.Section64{Name: name, Type: uint32(p.Type), Addr: p.Addr, Off: uint64(len(out)), Size: uint64(len(p.Data)), Link: p.Link, Addralign: 1}
		name += uint32(len(p.Name)) + 1
		if h.Type == 0 {
			h.Type = uint32(elf.SHT_PROGBITS)
		}
		if p.Addr != 0 {
			h.Flags = uint64(elf.SHF_ALLOC)
		}
		if p.X {
			h.Flags |= uint64(elf.SHF_EXECINSTR)
		}
		if p.Type == elf.SHT_SYMTAB || p.Type == elf.SHT_DYNSYM {
			h.Entsize = 24
		}
		heads, out = append(heads, h), append(out, p.Data...)
	}
	var b bytes.Buffer
	at := uint64(len(out))
	for _, h := range heads {
		binary.Write(&b, binary.LittleEndian, h)
	}
	out = append(out, b.Bytes()...)
	b.Reset()
	head := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: at, Ehsize: 64, Shentsize: 64,
		Shnum: uint16(len(heads)), Shstrndx: uint16(len(heads) - 1)}
	copy(head.Ident[:], "\x7fELF\x02\x01\x01")
	binary.Write(&b, binary.LittleEndian, head)
	copy(out, b.Bytes())
	return out
}
