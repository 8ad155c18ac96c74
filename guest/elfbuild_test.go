package guest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// testELF describes an executable for build. Zero fields get sound defaults.
type testELF struct {
	entry    uint64
	segs     []testSeg
	sections []testSection
	syms     []testSym
	notes    []byte
	edit     func(f *elf.Header64, progs []elf.Prog64, secs []elf.Section64) // last changes, before writing
}

type testSeg struct {
	vaddr, paddr uint64
	data         []byte
	memsz        uint64 // 0: len(data)
	flags        elf.ProgFlag
}

type testSection struct {
	name  string
	addr  uint64
	size  uint64
	flags elf.SectionFlag
	typ   elf.SectionType // 0: SHT_PROGBITS
}

// Sizes of the structures of ELF64 (System V ABI, "Object Files").
const (
	ehdrSize = 64
	phdrSize = 56
	shdrSize = 64
	symSize  = 24
)

type testSym struct {
	name  string
	addr  uint64
	size  uint64
	info  byte
	shndx int // index into sections, plus 1; negative: as is, modulo 2^16
}

func symInfo(bind elf.SymBind, typ elf.SymType) byte { return byte(bind)<<4 | byte(typ) }

// build writes the file: header, program headers, segment data, symbol table,
// string tables, section headers.
func (t testELF) build() []byte {
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Entry: t.entry,
		Phoff: ehdrSize, Ehsize: ehdrSize, Phentsize: phdrSize, Shentsize: shdrSize}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1

	nprog := len(t.segs)
	if t.notes != nil {
		nprog++
	}
	off := uint64(ehdrSize + nprog*phdrSize)
	var body bytes.Buffer
	add := func(b []byte) uint64 {
		at := off + uint64(body.Len())
		body.Write(b)
		return at
	}
	var progs []elf.Prog64
	for _, s := range t.segs {
		p := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(s.flags), Off: add(s.data), Vaddr: s.vaddr, Paddr: s.paddr,
			Filesz: uint64(len(s.data)), Memsz: s.memsz, Align: PageSize}
		if p.Memsz == 0 {
			p.Memsz = p.Filesz
		}
		progs = append(progs, p)
	}
	if t.notes != nil {
		progs = append(progs, elf.Prog64{Type: uint32(elf.PT_NOTE), Off: add(t.notes), Filesz: uint64(len(t.notes))})
	}

	var secs []elf.Section64
	if t.sections != nil || t.syms != nil {
		shstr, str := []byte{0}, []byte{0}
		name := func(table *[]byte, s string) uint32 {
			if s == "" {
				return 0
			}
			at := len(*table)
			*table = append(append(*table, s...), 0)
			return uint32(at)
		}
		secs = append(secs, elf.Section64{})
		for _, s := range t.sections {
			sec := elf.Section64{Name: name(&shstr, s.name), Type: uint32(elf.SHT_PROGBITS), Flags: uint64(s.flags), Addr: s.addr, Size: s.size}
			if s.typ != 0 {
				sec.Type = uint32(s.typ)
			}
			for i, seg := range t.segs {
				if s.addr >= seg.vaddr && s.addr-seg.vaddr < uint64(len(seg.data)) {
					sec.Off = progs[i].Off + s.addr - seg.vaddr
				}
			}
			secs = append(secs, sec)
		}
		var syms bytes.Buffer
		binary.Write(&syms, binary.LittleEndian, elf.Sym64{})
		for _, s := range t.syms {
			binary.Write(&syms, binary.LittleEndian, elf.Sym64{Name: name(&str, s.name), Info: s.info, Shndx: uint16(s.shndx), Value: s.addr, Size: s.size})
		}
		link := uint32(len(secs) + 1)
		secs = append(secs,
			elf.Section64{Name: name(&shstr, ".symtab"), Type: uint32(elf.SHT_SYMTAB), Off: add(syms.Bytes()), Size: uint64(syms.Len()), Entsize: symSize, Link: link, Info: 1},
			elf.Section64{Name: name(&shstr, ".strtab"), Type: uint32(elf.SHT_STRTAB), Off: add(str), Size: uint64(len(str))})
		last := elf.Section64{Name: name(&shstr, ".shstrtab"), Type: uint32(elf.SHT_STRTAB)}
		last.Off, last.Size = add(shstr), uint64(len(shstr))
		secs = append(secs, last)
		h.Shoff, h.Shnum, h.Shstrndx = off+uint64(body.Len()), uint16(len(secs)), uint16(len(secs)-1)
	}
	h.Phnum = uint16(len(progs))
	if t.edit != nil {
		t.edit(&h, progs, secs)
	}
	var out bytes.Buffer
	binary.Write(&out, binary.LittleEndian, h)
	binary.Write(&out, binary.LittleEndian, progs)
	out.Write(body.Bytes())
	binary.Write(&out, binary.LittleEndian, secs)
	return out.Bytes()
}

const (
	testKernel = 0xffffffff80100000 // virtual address of the test kernel
	testUser   = 0x0000010000000000 // and of its user program
)

// code returns n bytes that differ by position and start with first.
func code(first byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// soundELF is a kernel with text, data and bss, and a user program.
func soundELF() testELF {
	rx, rw := elf.PF_R|elf.PF_X, elf.PF_R|elf.PF_W
	ax, aw := elf.SHF_ALLOC|elf.SHF_EXECINSTR, elf.SHF_ALLOC|elf.SHF_WRITE
	fn, lfn := symInfo(elf.STB_GLOBAL, elf.STT_FUNC), symInfo(elf.STB_LOCAL, elf.STT_FUNC)
	return testELF{
		entry: testKernel,
		segs: []testSeg{
			{testKernel, 0x100000, code(1, 0x1800), 0, rx},
			{testKernel + 0x2000, 0x102000, code(2, 0x100), 0x1100, rw},
			{testUser, 0x200000, code(3, 0x40), 0, rx | PFUser},
		},
		sections: []testSection{
			{".text", testKernel, 0x1000, ax, 0},
			{".kprobes.text", testKernel + 0x1000, 0x100, ax, 0},
			{".data", testKernel + 0x2000, 0x100, aw, 0},
			{".bss", testKernel + 0x2100, 0x1000, aw, elf.SHT_NOBITS},
			{".utext", testUser, 0x40, ax, 0},
		},
		syms: []testSym{
			{"_start", testKernel, 0x10, fn, 1},
			{"sized", testKernel + 0x100, 0x80, fn, 1},
			{"sized_label", testKernel + 0x140, 0, symInfo(elf.STB_LOCAL, elf.STT_NOTYPE), 1},
			{"open", testKernel + 0x200, 0, fn, 1},
			{"__twin", testKernel + 0x300, 0x10, fn, 1},
			{"twin", testKernel + 0x300, 0x10, lfn, 1},
			{"dup", testKernel + 0x400, 0x10, lfn, 1},
			{"dup", testKernel + 0x500, 0x10, lfn, 1},
			{"last", testKernel + 0x600, 0, fn, 1},
			{"trap", testKernel + 0x1000, 0x20, fn, 2},
			{"counter", testKernel + 0x2008, 8, symInfo(elf.STB_GLOBAL, elf.STT_OBJECT), 3},
			{"zeros", testKernel + 0x2100, 0, symInfo(elf.STB_GLOBAL, elf.STT_OBJECT), 4},
			{"user_hot", testUser + 8, 0x18, fn, 5},
			{"sized.cold", testKernel + 0x700, 8, lfn, 1},
			{"trap.cold", testKernel + 0x710, 8, lfn, 1},
		},
	}
}
