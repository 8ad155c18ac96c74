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
	Zero uint64 // bytes after it that are zero in memory
	X    bool
	Link uint32
	Type elf.SectionType // 0: SHT_PROGBITS
}

// ELF makes an executable of sections. Sections in memory are loaded, each by a
// program header of its own, kernels at Linux's physical addresses. The entry is
// the first byte of the first executable section.
func ELF(parts ...Section) []byte {
	names := []byte{0}
	parts = append(parts, Section{Name: ".shstrtab", Type: elf.SHT_STRTAB})
	for _, p := range parts {
		names = append(append(names, p.Name...), 0)
	}
	parts[len(parts)-1].Data = names
	out := make([]byte, 64)
	var loads []elf.Prog64
	entry := uint64(0)
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
		if p.Addr != 0 {
			l := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R), Off: h.Off, Vaddr: p.Addr, Paddr: p.Addr - kernelMap, Filesz: h.Size, Memsz: h.Size + p.Zero}
			if p.X {
				l.Flags |= uint32(elf.PF_X)
			}
			if p.X && entry == 0 {
				entry = l.Paddr
			}
			loads = append(loads, l)
		}
		heads, out = append(heads, h), append(out, p.Data...)
	}
	var b bytes.Buffer
	phoff := uint64(len(out))
	for _, l := range loads {
		binary.Write(&b, binary.LittleEndian, l)
	}
	at := phoff + uint64(b.Len())
	for _, h := range heads {
		binary.Write(&b, binary.LittleEndian, h)
	}
	out = append(out, b.Bytes()...)
	b.Reset()
	head := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Entry: entry, Phoff: phoff, Phentsize: 56, Phnum: uint16(len(loads)), Shoff: at, Ehsize: 64, Shentsize: 64,
		Shnum: uint16(len(heads)), Shstrndx: uint16(len(heads) - 1)}
	copy(head.Ident[:], "\x7fELF\x02\x01\x01")
	binary.Write(&b, binary.LittleEndian, head)
	copy(out, b.Bytes())
	return out
}

// kernelMap is the address that stands for physical address 0 (__START_KERNEL_map).
const kernelMap = 0xffff_ffff_8000_0000

// Relocs returns the relocations that follow the image of a relocatable kernel.
// They are addresses of 64-bit words, of 32-bit words, and of 32-bit words that
// the slide is subtracted from. Linux 6.15 and later do not have the last list.
func Relocs(abs64, abs32 []uint64, inverse ...[]uint64) (b []byte) {
	for _, l := range append(append([][]uint64{abs64}, inverse...), abs32) {
		b = binary.LittleEndian.AppendUint32(b, 0)
		for _, a := range l {
			b = binary.LittleEndian.AppendUint32(b, uint32(a))
		}
	}
	return b
}
