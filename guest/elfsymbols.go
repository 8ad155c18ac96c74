package guest

import (
	debugelf "debug/elf"
	"errors"
	"strings"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// readSymbols reads the symbol table, if the file has one.
func (img *Image) readSymbols() error {
	all, err := img.file.Symbols(debugelf.SHT_SYMTAB, MaxImageSymbols)
	if err != nil {
		return imageError(err)
	}
	syms := make([]Symbol, 0, len(all))
	for i := range all {
		if sym, ok := img.symbol(&all[i]); ok {
			syms = append(syms, sym)
		}
	}
	img.SymbolTable = NewSymbolTable(syms, img.roomOf)
	return nil
}

// Lookup is SymbolTable.Lookup. The program of an image has no other files.
func (img *Image) Lookup(name string) (Symbol, error) {
	s, err := img.SymbolTable.Lookup(name)
	if errors.Is(err, ErrSymbolNotFound) && strings.HasPrefix(name, "/") {
		err = &MissingSymbolError{Name: name, Advice: "only Linux guests have programs in files"}
	}
	return s, err
}

// roomOf returns how many bytes of its segment and of its section follow a symbol. A
// label at the very end of its section (_etext), or a number that is not an address,
// is in neither.
func (img *Image) roomOf(s *Symbol) (segment, section uint64) {
	seg := img.segment(s.Addr)
	if seg == nil {
		return 0, 0
	}
	segment = seg.MemSize - uint64(s.Addr-seg.VAddr)
	if len(img.Sections) == 0 {
		return segment, segment
	}
	if sec := img.section(s.Addr); sec != nil && sec.Name == s.Section {
		section = sec.Size - uint64(s.Addr-sec.Addr)
	}
	return segment, section
}

// symbol converts an entry of the table, if it names a place in memory.
func (img *Image) symbol(es *elf.Symbol) (Symbol, bool) {
	sym := Symbol{Addr: GVA(es.Value), Size: es.Size, Global: es.Global()}
	var sec *elf.Section
	switch {
	case es.Name == "" || es.Section == debugelf.SHN_UNDEF || es.Section == debugelf.SHN_COMMON:
		return sym, false
	case es.Section < debugelf.SHN_LORESERVE:
		sec = &img.file.Sections[es.Section]
		if !sec.Has(debugelf.SHF_ALLOC) {
			return sym, false
		}
		sym.Section = sec.Name
	case es.Section == debugelf.SHN_XINDEX:
		if m := img.section(sym.Addr); m != nil {
			sym.Section = m.Name
		}
	}
	switch es.Type() {
	case debugelf.STT_FUNC, debugelf.STT_GNU_IFUNC:
		sym.Kind = SymFunc
	case debugelf.STT_OBJECT:
		sym.Kind = SymData
	case debugelf.STT_NOTYPE:
		sym.Label = true
		if sec != nil && sec.Has(debugelf.SHF_EXECINSTR) {
			sym.Kind = SymFunc
		} else if sec != nil {
			sym.Kind = SymData
		}
	default: // sections, files, thread-local offsets
		return sym, false
	}
	sym.Name = strings.ToValidUTF8(es.Name, "\uFFFD")
	if seg := img.segment(sym.Addr); seg != nil {
		sym.User = seg.User
	}
	return sym, true
}
