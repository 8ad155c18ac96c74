package elf

import (
	"cmp"
	"debug/elf"
	"errors"
	"slices"
	"sort"
)

// Memory is what a file has in memory before it runs, by address and by name. It
// may be used from any thread once its names are set.
type Memory struct {
	Sections []Part // ascending
	Names    []Name // ascending by address

	byName map[string]uint64
}

// Part is a section that occupies memory and has bytes in the file.
type Part struct {
	Name string
	Addr uint64
	Data []byte // the file's own; must not be changed
	X    bool   // executable
	W    bool   // the program writes it
}

// Name is a name for an address.
type Name struct {
	Name string
	Addr uint64
	Size uint64 // bytes; 0 when not known
	Func bool
	// Global: other files may refer to it.
	Global bool
	// Label: the file does not say what it names.
	Label bool
}

// ErrNoSections is returned for a file without sections in memory: its code
// cannot be distinguished from data.
var ErrNoSections = errors.New("no section headers, so code cannot be distinguished from data")

// Memory returns what the file has in memory, without names.
func (f *File) Memory() (*Memory, error) {
	m := &Memory{}
	for i := range f.Sections {
		s := &f.Sections[i]
		if s.Is(elf.SHT_NOBITS) || !s.Has(elf.SHF_ALLOC) || s.Has(elf.SHF_COMPRESSED) || s.Size == 0 {
			continue
		}
		data := f.Bytes(s.Off, s.Size)
		if data == nil || s.Addr+s.Size < s.Addr {
			return nil, damagedError("section "+s.Name, "%d bytes at %#x are not in the file", s.Size, s.Off)
		}
		m.Sections = append(m.Sections, Part{Name: s.Name, Addr: s.Addr, Data: data, X: s.Has(elf.SHF_EXECINSTR), W: f.written(s)})
	}
	if len(m.Sections) == 0 {
		return nil, ErrNoSections
	}
	slices.SortStableFunc(m.Sections, func(a, b Part) int { return cmp.Compare(a.Addr, b.Addr) })
	return m, nil
}

// written reports whether the program writes a section: as its segment says,
// because linkers merge sections into one that is not written.
func (f *File) written(s *Section) bool {
	for i := range f.Progs {
		if p := &f.Progs[i]; elf.ProgType(p.Type) == elf.PT_LOAD && s.Addr-p.Vaddr < p.Memsz {
			return elf.ProgFlag(p.Flags)&elf.PF_W != 0
		}
	}
	return s.Has(elf.SHF_WRITE)
}

// ReadNames sets the names from a symbol table of the file, and reports whether
// there are any. Of more than limit entries none is taken.
func (m *Memory) ReadNames(f *File, t elf.SectionType, limit int) (bool, error) {
	syms, err := f.Symbols(t, limit)
	if err != nil {
		return false, err
	}
	names := make([]Name, 0, len(syms))
	for i := range syms {
		s := &syms[i]
		kind := s.Type()
		if s.Section == elf.SHN_UNDEF || kind == elf.STT_SECTION || kind == elf.STT_FILE || kind == elf.STT_TLS {
			continue
		}
		fn := kind == elf.STT_FUNC || kind == elf.STT_GNU_IFUNC
		if kind == elf.STT_NOTYPE {
			in := m.PartAt(s.Value)
			fn = in != nil && in.X && s.Section < elf.SHN_LORESERVE
		}
		names = append(names, Name{s.Name, s.Value, s.Size, fn, s.Global(), kind == elf.STT_NOTYPE})
	}
	m.SetNames(names)
	return len(names) > 0, nil
}

// SetNames takes names in any order, and keeps the slice. Where two things have
// one name, Lookup finds that with the lower address.
func (m *Memory) SetNames(names []Name) {
	slices.SortStableFunc(names, func(a, b Name) int { return cmp.Compare(a.Addr, b.Addr) })
	m.Names, m.byName = names, make(map[string]uint64, len(names))
	for _, n := range names {
		if _, twice := m.byName[n.Name]; !twice {
			m.byName[n.Name] = n.Addr
		}
	}
}

// Lookup returns the address of a name.
func (m *Memory) Lookup(name string) (addr uint64, ok bool) {
	addr, ok = m.byName[name]
	return addr, ok
}

// Named reports whether name stands for addr, besides others perhaps.
func (m *Memory) Named(addr uint64, name string) bool {
	i := m.NamesFrom(addr)
	for ; i < len(m.Names) && m.Names[i].Addr == addr; i++ {
		if m.Names[i].Name == name {
			return true
		}
	}
	return false
}

// NamesFrom returns the index of the first name at addr or above.
func (m *Memory) NamesFrom(addr uint64) int {
	return sort.Search(len(m.Names), func(i int) bool { return m.Names[i].Addr >= addr })
}

// RangeBetween returns the addresses of two names around a range.
func (m *Memory) RangeBetween(start, end string) (lo, hi uint64, ok bool) {
	lo, a := m.byName[start]
	hi, b := m.byName[end]
	return lo, hi, a && b && lo <= hi
}

// Table returns the bytes between two names, or of a section.
func (m *Memory) Table(section, start, end string) Part {
	if lo, hi, ok := m.RangeBetween(start, end); ok {
		return Part{Name: section, Addr: lo, Data: m.Bytes(lo, hi-lo)}
	}
	if s := m.Section(section); s != nil {
		return *s
	}
	return Part{}
}

// Section returns the first section of that name, or nil.
func (m *Memory) Section(name string) *Part {
	if i := slices.IndexFunc(m.Sections, func(s Part) bool { return s.Name == name }); i >= 0 {
		return &m.Sections[i]
	}
	return nil
}

// PartAt returns the section that holds addr, or nil.
func (m *Memory) PartAt(addr uint64) *Part {
	i := sort.Search(len(m.Sections), func(i int) bool { return m.Sections[i].Addr > addr }) - 1
	if i < 0 || addr-m.Sections[i].Addr >= uint64(len(m.Sections[i].Data)) {
		return nil
	}
	return &m.Sections[i]
}

// Bytes returns the n bytes at addr, or nil when they are not all in one section.
func (m *Memory) Bytes(addr, n uint64) []byte {
	s := m.PartAt(addr)
	if s == nil {
		return nil
	}
	off := addr - s.Addr
	if n > uint64(len(s.Data))-off {
		return nil
	}
	return s.Data[off:][:n:n]
}
