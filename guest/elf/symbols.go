package elf

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
)

// Symbol is an entry of a symbol table.
type Symbol struct {
	Name    string
	Value   uint64
	Size    uint64
	Info    uint8
	Section elf.SectionIndex // below elf.SHN_LORESERVE an index of File.Sections
}

// Type is what the symbol stands for.
func (s *Symbol) Type() elf.SymType { return elf.ST_TYPE(s.Info) }

// Global reports whether other files may refer to the symbol.
func (s *Symbol) Global() bool { return elf.ST_BIND(s.Info) != elf.STB_LOCAL }

// Table returns the bytes of section i, which must have type t and hold a whole
// number of entries of that size. They must not be changed.
func (f *File) Table(i int, t elf.SectionType, size uint64) ([]byte, error) {
	table, err := f.readPlain(i, t)
	switch {
	case err != nil:
		return nil, err
	case f.Sections[i].Entsize != size:
		return nil, damagedError(sectionPart(i), "entry size %d, not %d", f.Sections[i].Entsize, size)
	case uint64(len(table))%size != 0:
		return nil, damagedError(sectionPart(i), "%d bytes are not a whole number of entries", len(table))
	}
	return table, nil
}

// Symbols reads the first symbol table of this type, elf.SHT_SYMTAB or
// elf.SHT_DYNSYM, without its entry 0. It has at most limit entries. The result
// is nil when there is no such table. The names are parts of one string.
func (f *File) Symbols(t elf.SectionType, limit int) ([]Symbol, error) {
	index := slices.IndexFunc(f.Sections, func(s Section) bool { return s.Is(t) })
	if index < 0 {
		return nil, nil
	}
	table, err := f.Table(index, t, symSize)
	if err != nil {
		return nil, err
	}
	part, s, n := sectionPart(index), &f.Sections[index], len(table)/symSize
	switch {
	case n > limit:
		return nil, &Error{Part: part, Reason: fmt.Sprintf("%d symbols, more than %d", n, limit), Fix: "strip local symbols (objcopy --discard-locals)"}
	case uint64(s.Link) >= uint64(len(f.Sections)):
		return nil, damagedError(part, "its string table is section %d of %d", s.Link, len(f.Sections))
	}
	data, err := f.readPlain(int(s.Link), elf.SHT_STRTAB)
	if err != nil {
		return nil, err
	}
	names := string(data)
	// Linkers share the tails of names, so that together they are longer than
	// the table, but not many times.
	budget := 16*len(names) + 1<<16
	syms := make([]Symbol, 0, max(n-1, 0))
	for i := 1; i < n; i++ {
		b, le := table[i*symSize:][:symSize], binary.LittleEndian
		sym := Symbol{Info: b[4], Section: elf.SectionIndex(le.Uint16(b[6:])), Value: le.Uint64(b[8:]), Size: le.Uint64(b[16:])}
		if sym.Section < elf.SHN_LORESERVE && int(sym.Section) >= len(f.Sections) {
			return nil, damagedError(fmt.Sprintf("symbol %d", i), "it is in section %d of %d", sym.Section, len(f.Sections))
		}
		var ok bool
		if sym.Name, ok = cString(names, le.Uint32(b), maxSymbolName); !ok {
			return nil, damagedError(fmt.Sprintf("symbol %d", i), "its name, at offset %#x of a string table of %d bytes, does not end there or is longer than %d", le.Uint32(b), len(names), maxSymbolName)
		}
		if budget -= len(sym.Name); budget < 0 {
			return nil, damagedError(part, "the names overlap: together they have more than 16 times the %d bytes of their table", len(names))
		}
		syms = append(syms, sym)
	}
	return syms, nil
}
