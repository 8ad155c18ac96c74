package elfbuild

import (
	"bytes"
	"debug/elf"
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
)

// Segment is one PT_LOAD, with a section of the same extent where Section is set: one that is not in
// the file where there is no Data.
type Segment struct {
	Section string
	VAddr   guest.GVA
	PAddr   guest.GPA
	Flags   elf.ProgFlag // guest.PFUser among them
	Data    []byte
	MemSize uint64 // bytes; 0: the size of Data
}

// Symbol is one name.
type Symbol struct {
	Name string
	Addr guest.GVA
	Size uint64
	Type elf.SymType
}

// File is an executable for x86-64. Where no segment has a section name the file
// has no section table.
type File struct {
	Entry    guest.GVA
	Segments []Segment
	Symbols  []Symbol
	Extra    []Extra // where there is a section table
}

// Extra is a section that is in no memory.
type Extra struct {
	Name string
	Data []byte
}

// header sizes of ELF64.
const (
	ehdrSize = 64
	phdrSize = 56
	shdrSize = 64
)

// Bytes returns the file.
func (f *File) Bytes() []byte {
	w := &writer{shstr: []byte{0}, sections: []elf.Section64{{}}}
	at := uint64(ehdrSize + phdrSize*len(f.Segments))
	var progs, body bytes.Buffer
	named := false
	for _, s := range f.Segments {
		off := at + uint64(body.Len())
		put(&progs, elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(s.Flags), Off: off, Vaddr: uint64(s.VAddr), Paddr: uint64(s.PAddr),
			Filesz: uint64(len(s.Data)), Memsz: max(s.MemSize, uint64(len(s.Data))), Align: 1})
		body.Write(s.Data)
		if s.Section != "" {
			named = true
			kind, size := elf.SHT_PROGBITS, uint64(len(s.Data))
			if size == 0 {
				kind, size = elf.SHT_NOBITS, s.MemSize
			}
			flags := elf.SHF_ALLOC
			if s.Flags&elf.PF_X != 0 {
				flags |= elf.SHF_EXECINSTR
			}
			if s.Flags&elf.PF_W != 0 {
				flags |= elf.SHF_WRITE
			}
			w.section(s.Section, elf.Section64{Type: uint32(kind), Flags: uint64(flags), Addr: uint64(s.VAddr), Off: off, Size: size, Addralign: 1})
		}
	}
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Entry: uint64(f.Entry), Phoff: ehdrSize, Ehsize: ehdrSize, Phentsize: phdrSize, Phnum: uint16(len(f.Segments)),
	}
	if named {
		f.tables(w, &body, at)
		h.Shoff, h.Shentsize, h.Shnum, h.Shstrndx = at+uint64(body.Len()), shdrSize, uint16(len(w.sections)), uint16(len(w.sections)-1)
		put(&body, w.sections)
	}
	var out bytes.Buffer
	put(&out, h)
	out.Write(progs.Bytes())
	out.Write(body.Bytes())
	return out.Bytes()
}

// tables appends the symbols and the names; at is where body stands in the file.
func (f *File) tables(w *writer, body *bytes.Buffer, at uint64) {
	syms, strs := []elf.Sym64{{}}, []byte{0}
	for _, s := range f.Symbols {
		in := uint16(elf.SHN_ABS)
		for i, sec := range w.sections[1:] {
			if uint64(s.Addr)-sec.Addr < sec.Size {
				in = uint16(i + 1)
			}
		}
		syms = append(syms, elf.Sym64{Name: uint32(len(strs)), Info: elf.ST_INFO(elf.STB_GLOBAL, s.Type), Shndx: in, Value: uint64(s.Addr), Size: s.Size})
		strs = append(append(strs, s.Name...), 0)
	}
	off := at + uint64(body.Len())
	for _, x := range f.Extra {
		body.Write(x.Data)
		w.section(x.Name, elf.Section64{Type: uint32(elf.SHT_PROGBITS), Off: off, Size: uint64(len(x.Data)), Addralign: 1})
		off += uint64(len(x.Data))
	}
	n := uint32(len(w.sections))
	put(body, syms)
	w.section(".symtab", elf.Section64{Type: uint32(elf.SHT_SYMTAB), Off: off, Size: uint64(len(syms)) * elf.Sym64Size, Link: n + 1, Info: 1, Addralign: 8, Entsize: elf.Sym64Size})
	off = at + uint64(body.Len())
	body.Write(strs)
	w.section(".strtab", elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: off, Size: uint64(len(strs)), Addralign: 1})
	off = at + uint64(body.Len())
	w.section(".shstrtab", elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: off, Addralign: 1})
	w.sections[len(w.sections)-1].Size = uint64(len(w.shstr))
	body.Write(w.shstr)
}

// writer collects the section table.
type writer struct {
	sections []elf.Section64
	shstr    []byte
}

func (w *writer) section(name string, s elf.Section64) {
	s.Name = uint32(len(w.shstr))
	w.shstr = append(append(w.shstr, name...), 0)
	w.sections = append(w.sections, s)
}

// put appends a structure of fixed size.
func put(b *bytes.Buffer, v any) {
	if err := binary.Write(b, binary.LittleEndian, v); err != nil {
		panic("BUG: " + err.Error())
	}
}

// Image parses the file.
func (f *File) Image() (*guest.Image, error) { return guest.ParseELF(f.Bytes()) }
