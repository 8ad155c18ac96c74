package guest

import (
	"debug/elf"
	"fmt"
	"slices"
	"strings"
)

// symbols reads the symbol table, if the file has one.
func (f *elfFile) symbols(img *Image) error {
	index := slices.IndexFunc(f.sections, func(s elf.Section64) bool { return elf.SectionType(s.Type) == elf.SHT_SYMTAB })
	if index < 0 {
		return nil
	}
	part := fmt.Sprintf("symbol table (section %d)", index)
	table, err := f.sectionData(index, elf.SHT_SYMTAB)
	if err != nil {
		return err
	}
	s := &f.sections[index]
	n := len(table) / symSize
	switch {
	case s.Entsize != symSize:
		return damaged(part, "entry size %d, not %d", s.Entsize, symSize)
	case len(table)%symSize != 0:
		return damaged(part, "%d bytes are not a whole number of entries", len(table))
	case n > MaxImageSymbols:
		return &ImageError{part, fmt.Sprintf("%d symbols, more than %d", n, MaxImageSymbols), "strip local symbols (objcopy --discard-locals)"}
	case uint64(s.Link) >= uint64(len(f.sections)):
		return damaged(part, "its string table is section %d of %d", s.Link, len(f.sections))
	}
	data, err := f.sectionData(int(s.Link), elf.SHT_STRTAB)
	if err != nil {
		return err
	}
	strs := string(data) // every name is a part of it

	names := make([]string, len(f.sections)) // of sections, read when needed
	known := make([]bool, len(f.sections))
	// Linkers share the tails of names, so that together they are longer than
	// the table, but not many times.
	budget := 16*len(strs) + 1<<16
	syms := make([]Symbol, 0, n)
	for i := 1; i < n; i++ { // entry 0 is the undefined symbol
		var es elf.Sym64
		decodeSym(table[i*symSize:], &es)
		sym := Symbol{Addr: GVA(es.Value), Size: es.Size, Global: elf.ST_BIND(es.Info) != elf.STB_LOCAL}
		shndx := elf.SectionIndex(es.Shndx)
		var sec *elf.Section64
		switch {
		case shndx == elf.SHN_UNDEF:
			continue
		case shndx < elf.SHN_LORESERVE:
			if int(shndx) >= len(f.sections) {
				return damaged(fmt.Sprintf("symbol %d", i), "it is in section %d of %d", shndx, len(f.sections))
			}
			sec = &f.sections[shndx]
			if sec.Flags&shfAlloc == 0 {
				continue // not an address in memory
			}
			if !known[shndx] {
				if names[shndx], err = f.sectionName(int(shndx)); err != nil {
					return err
				}
				known[shndx] = true
			}
			sym.Section = names[shndx]
		case shndx == elf.SHN_COMMON:
			continue
		case shndx == elf.SHN_XINDEX:
			if m := img.section(sym.Addr); m != nil {
				sym.Section = m.Name
			}
		}
		switch elf.ST_TYPE(es.Info) {
		case elf.STT_FUNC, elf.STT_GNU_IFUNC:
			sym.Kind = SymFunc
		case elf.STT_OBJECT:
			sym.Kind = SymData
		case elf.STT_NOTYPE:
			sym.Label = true
			if sec != nil && sec.Flags&shfExec != 0 {
				sym.Kind = SymFunc
			} else if sec != nil {
				sym.Kind = SymData
			}
		default: // sections, files, thread-local offsets
			continue
		}
		name, ok := cString(strs, es.Name, maxSymbolName)
		if !ok {
			return damaged(fmt.Sprintf("symbol %d", i), "its name, at offset %#x of a string table of %d bytes, does not end there or is longer than %d", es.Name, len(strs), maxSymbolName)
		}
		if len(name) == 0 {
			continue
		}
		if budget -= len(name); budget < 0 {
			return damaged(part, "the names overlap: together they have more than 16 times the %d bytes of their table", len(strs))
		}
		sym.Name = strings.ToValidUTF8(name, "\uFFFD")
		if seg := img.segment(sym.Addr); seg != nil {
			sym.User = seg.User
		}
		syms = append(syms, sym)
	}
	img.syms.build(img, syms)
	return nil
}

// decodeSym reads one symbol without reflection: there may be a million.
func decodeSym(b []byte, s *elf.Sym64) {
	_ = b[symSize-1]
	s.Name = le32(b)
	s.Info = b[4]
	s.Other = b[5]
	s.Shndx = uint16(b[6]) | uint16(b[7])<<8
	s.Value = le64(b[8:])
	s.Size = le64(b[16:])
}
