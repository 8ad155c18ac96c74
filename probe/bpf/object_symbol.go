package bpf

import (
	"debug/elf"
	"encoding/binary"
	"slices"
	"strings"
)

// Offsets in an Elf64_Sym and in an Elf64_Rel.
const (
	symSize   = 24
	symInfoAt = 4
	relInfoAt = 8
)

// part returns the bytes of a section in the file, nil if it has none.
func part(b []byte, s *elf.Section) []byte {
	if s == nil || s.Type == elf.SHT_NOBITS || s.Offset > uint64(len(b)) || s.Size > uint64(len(b))-s.Offset {
		return nil
	}
	return b[s.Offset:][:s.Size]
}

// correctSymbols changes symbols to the form that the parser expects. Weak maps and
// variables that the file defines become global: no other file could have a stronger
// definition. Functions, maps and variables without a type, as old compilers make
// them (clang before version 8, assembly without .type), get the type that follows
// from their section.
func correctSymbols(b []byte, f *elf.File) {
	symbols, err := f.Symbols()
	table := part(b, f.SectionByType(elf.SHT_SYMTAB))
	if err != nil || f.Class != elf.ELFCLASS64 || len(table) < symSize*(len(symbols)+1) {
		return
	}
	for i, sym := range symbols {
		entry := table[symSize*(i+1):]
		bind, typ := elf.ST_BIND(sym.Info), elf.ST_TYPE(sym.Info)
		if sym.Section == elf.SHN_UNDEF || int(sym.Section) >= len(f.Sections) {
			continue
		}
		if s := f.Sections[sym.Section]; typ == elf.STT_NOTYPE && !isLabel(sym.Name) && !inFunction(symbols, &sym) {
			switch {
			case s.Flags&elf.SHF_EXECINSTR != 0:
				typ = elf.STT_FUNC
			case s.Name == ".maps" || isData(s.Name):
				typ = elf.STT_OBJECT
			}
		}
		if bind == elf.STB_WEAK && typ == elf.STT_OBJECT {
			bind = elf.STB_GLOBAL
		}
		entry[symInfoAt] = elf.ST_INFO(bind, typ)
	}
}

// inFunction reports whether a symbol is a place in a function that has a type, as are
// the labels of inline assembly.
func inFunction(symbols []elf.Symbol, sym *elf.Symbol) bool {
	return slices.ContainsFunc(symbols, func(s elf.Symbol) bool {
		return elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section == sym.Section && sym.Value-s.Value < s.Size
	})
}

// isLabel reports whether a symbol is a place in a function, as clang names it.
func isLabel(name string) bool {
	return name == "" || strings.HasPrefix(name, "LBB") || strings.HasPrefix(name, ".L") || strings.HasPrefix(name, "L_")
}

// unselected is a program in the values of a map that is in no section that is
// loaded.
type unselected struct{ program, section string }

// hideValues removes from the values of maps the programs that are hidden from the
// parser, and returns the first one of each map.
func hideValues(b []byte, f *elf.File, hidden []bool) map[string]unselected {
	symbols, err := f.Symbols()
	if err != nil {
		return nil
	}
	le := binary.LittleEndian
	out := map[string]unselected{}
	for _, rel := range f.Sections {
		if rel.Type != elf.SHT_REL || int(rel.Info) >= len(f.Sections) || f.Sections[rel.Info].Name != ".maps" {
			continue
		}
		for entry, n := part(b, rel), uint64(0); len(entry) >= relSize; entry, n = entry[relSize:], n+1 {
			at, info := le.Uint64(entry), le.Uint64(entry[relInfoAt:])
			i := int(info>>32) - 1
			if i < 0 || i >= len(symbols) || int(symbols[i].Section) >= len(hidden) || !hidden[symbols[i].Section] {
				continue
			}
			for own, sym := range symbols {
				if sym.Section == elf.SectionIndex(rel.Info) && elf.ST_TYPE(sym.Info) != elf.STT_SECTION && at-sym.Value < sym.Size {
					if _, ok := out[sym.Name]; !ok {
						out[sym.Name] = unselected{symbols[i].Name, f.Sections[symbols[i].Section].Name}
					}
					// This refers to the map itself, at a place that does not exist.
					le.PutUint64(entry, 1<<40+n)
					le.PutUint64(entry[relInfoAt:], uint64(own+1)<<32|info&0xffffffff)
					break
				}
			}
		}
	}
	return out
}
