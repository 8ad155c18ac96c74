package elf

import (
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNotELF is returned for bytes that do not start as an ELF file does.
var ErrNotELF = errors.New("not an ELF file")

// Error is returned for a file that breaks the format, or is of another machine.
type Error struct {
	Part    string // which part of the file: "header", "symbol 7"
	Reason  string // the defect
	Fix     string // what to do about it; "" for a damaged file
	Foreign bool   // it is sound, but not 64-bit, little endian and x86-64
}

// Error names the part, the reason and the remedy.
func (e *Error) Error() string {
	s := fmt.Sprintf("elf %s: %s", e.Part, e.Reason)
	if e.Fix != "" {
		s += ": " + e.Fix
	}
	return s
}

// damagedError returns the error for a file that breaks the format.
func damagedError(part, format string, args ...any) error {
	return &Error{Part: part, Reason: fmt.Sprintf(format, args...)}
}

// Sizes of the structures of ELF64 (System V ABI, "Object Files").
const (
	ehdrSize = 64
	phdrSize = 56
	shdrSize = 64
	symSize  = 24
	chdrSize = 24

	maxPhdrs = 4096  // program headers of any type
	maxShdrs = 65536 // sections
)

// File is a file whose header and tables were found to lie inside it. It keeps
// the bytes that it was made from, and may be used from any thread.
type File struct {
	Header   elf.Header64
	Progs    []elf.Prog64
	Sections []Section

	b []byte
}

// Section is a section header with its name, "" in a file without names.
type Section struct {
	Name string
	elf.Section64
}

// Has reports whether the section has all these flags.
func (s *Section) Has(flags elf.SectionFlag) bool { return elf.SectionFlag(s.Flags)&flags == flags }

// Is reports whether the section is of this type.
func (s *Section) Is(t elf.SectionType) bool { return elf.SectionType(s.Type) == t }

// Parse reads the header and the tables of b, which must not change afterwards.
// Errors are ErrNotELF and *Error.
func Parse(b []byte) (*File, error) {
	f := &File{b: b}
	if err := f.readHeader(); err != nil {
		return nil, err
	}
	if err := f.readProgs(); err != nil {
		return nil, err
	}
	if err := f.readSections(); err != nil {
		return nil, err
	}
	return f, nil
}

// decode reads one structure of the file. Its extent was checked.
func decode(b []byte, v any) {
	if _, err := binary.Decode(b, binary.LittleEndian, v); err != nil {
		panic("BUG: decode ELF structure: " + err.Error())
	}
}

// Index returns the number of the first section of that name, or -1.
func (f *File) Index(name string) int {
	return slices.IndexFunc(f.Sections, func(s Section) bool { return s.Name == name })
}

// Size is that of the file in bytes.
func (f *File) Size() int { return len(f.b) }

// End returns the offset after the last byte that the headers refer to. Later
// bytes are not part of the file, as Linux appends its relocations to its image.
func (f *File) End() uint64 {
	end := max(ehdrSize, f.Header.Phoff+uint64(len(f.Progs))*phdrSize, f.Header.Shoff+uint64(len(f.Sections))*shdrSize)
	for i := range f.Progs {
		end = max(end, f.Progs[i].Off+f.Progs[i].Filesz)
	}
	for i := range f.Sections {
		if s := &f.Sections[i]; !s.Is(elf.SHT_NOBITS) {
			end = max(end, s.Off+s.Size)
		}
	}
	return min(end, uint64(len(f.b)))
}

// Bytes returns the n bytes of the file at off, or nil when it does not have all
// of them. They must not be changed.
func (f *File) Bytes(off, n uint64) []byte {
	if !f.contains(off, n) {
		return nil
	}
	return f.b[off : off+n : off+n]
}

// contains reports whether n bytes at off are inside the file.
func (f *File) contains(off, n uint64) bool {
	size := uint64(len(f.b))
	return off <= size && n <= size-off
}

func (f *File) readHeader() error {
	b := f.b
	if len(b) < 4 || string(b[:4]) != elf.ELFMAG {
		return ErrNotELF
	}
	if len(b) < elf.EI_NIDENT {
		return damagedError("header", "truncated after %d bytes", len(b))
	}
	if c := elf.Class(b[elf.EI_CLASS]); c != elf.ELFCLASS64 {
		return &Error{Part: "header", Reason: fmt.Sprintf("%v, not 64-bit", c), Foreign: true}
	}
	if d := elf.Data(b[elf.EI_DATA]); d != elf.ELFDATA2LSB {
		return &Error{Part: "header", Reason: fmt.Sprintf("%v, not little endian", d), Foreign: true}
	}
	if len(b) < ehdrSize {
		return damagedError("header", "truncated after %d of %d bytes", len(b), ehdrSize)
	}
	decode(b[:ehdrSize], &f.Header)
	h := &f.Header
	if m := elf.Machine(h.Machine); m != elf.EM_X86_64 {
		return &Error{Part: "header", Reason: fmt.Sprintf("machine %v, not EM_X86_64", m), Foreign: true}
	}
	if b[elf.EI_VERSION] != byte(elf.EV_CURRENT) || h.Version != uint32(elf.EV_CURRENT) {
		return damagedError("header", "unknown version %d/%d", b[elf.EI_VERSION], h.Version)
	}
	if h.Ehsize != ehdrSize {
		return damagedError("header", "header size %d, not %d", h.Ehsize, ehdrSize)
	}
	return nil
}

func (f *File) readProgs() error {
	h := &f.Header
	n := uint64(h.Phnum)
	switch {
	case n == 0:
		return nil
	case n >= maxPhdrs: // PN_XNUM included
		return damagedError("program headers", "%d of them, more than %d", n, maxPhdrs-1)
	case h.Phentsize != phdrSize:
		return damagedError("program headers", "entry size %d, not %d", h.Phentsize, phdrSize)
	case !f.contains(h.Phoff, n*phdrSize):
		return damagedError("program headers", "%d at offset %#x reach beyond the file's %d bytes (truncated?)", n, h.Phoff, len(f.b))
	}
	f.Progs = make([]elf.Prog64, n)
	decode(f.b[h.Phoff:h.Phoff+n*phdrSize], f.Progs)
	return nil
}

func (f *File) readSections() error {
	h := &f.Header
	if h.Shoff == 0 {
		if h.Shnum != 0 {
			return damagedError("section headers", "%d of them but no offset", h.Shnum)
		}
		return nil
	}
	if h.Shentsize != shdrSize {
		return damagedError("section headers", "entry size %d, not %d", h.Shentsize, shdrSize)
	}
	if !f.contains(h.Shoff, shdrSize) {
		return damagedError("section headers", "offset %#x is beyond the file's %d bytes (truncated?)", h.Shoff, len(f.b))
	}
	// Counts that do not fit are in the first section (System V ABI, "Sections").
	var first elf.Section64
	decode(f.b[h.Shoff:h.Shoff+shdrSize], &first)
	n, strndx := uint64(h.Shnum), uint64(h.Shstrndx)
	if n == 0 {
		n = first.Size
	}
	if elf.SectionIndex(strndx) == elf.SHN_XINDEX {
		strndx = uint64(first.Link)
	}
	if n > maxShdrs {
		return damagedError("section headers", "%d of them, more than %d", n, maxShdrs)
	}
	if n == 0 {
		return nil
	}
	if !f.contains(h.Shoff, n*shdrSize) {
		return damagedError("section headers", "%d at offset %#x reach beyond the file's %d bytes (truncated?)", n, h.Shoff, len(f.b))
	}
	heads := make([]elf.Section64, n)
	decode(f.b[h.Shoff:h.Shoff+n*shdrSize], heads)
	f.Sections = make([]Section, n)
	for i := range heads {
		f.Sections[i].Section64 = heads[i]
	}
	if strndx == 0 {
		return nil
	}
	if strndx >= n {
		return damagedError("section headers", "name table is section %d of %d", strndx, n)
	}
	return f.nameSections(int(strndx))
}

// Greatest lengths of names in bytes. Symbols of C++ and Rust programs have
// some thousands. Strings in a table may overlap, so that without limits a small
// file could hold long names by the million.
const (
	maxSectionName = 1 << 10
	maxSymbolName  = 64 << 10
)

// nameSections reads the names of all sections, which are parts of one string.
func (f *File) nameSections(table int) error {
	data, err := f.readPlain(table, elf.SHT_STRTAB)
	if err != nil {
		return err
	}
	names := string(data)
	if names == "" {
		return nil
	}
	for i := range f.Sections {
		s := &f.Sections[i]
		name, ok := cString(names, s.Section64.Name, maxSectionName)
		if !ok {
			return damagedError(sectionPart(i), "its name, at offset %#x of a name table of %d bytes, does not end there or is longer than %d", s.Section64.Name, len(names), maxSectionName)
		}
		s.Name = name
	}
	return nil
}

// sectionPart names section i in errors.
func sectionPart(i int) string { return fmt.Sprintf("section %d", i) }

// readPlain returns the bytes of section i, which must have type t and not be
// compressed.
func (f *File) readPlain(i int, t elf.SectionType) ([]byte, error) {
	s := &f.Sections[i]
	switch {
	case !s.Is(t):
		return nil, damagedError(sectionPart(i), "type %v, want %v", elf.SectionType(s.Type), t)
	case s.Has(elf.SHF_COMPRESSED):
		return nil, damagedError(sectionPart(i), "%v must not be compressed", t)
	case !f.contains(s.Off, s.Size):
		return nil, damagedError(sectionPart(i), "%d bytes at offset %#x reach beyond the file's %d (truncated?)", s.Size, s.Off, len(f.b))
	}
	return f.Bytes(s.Off, s.Size), nil
}

// cString returns the NUL-terminated string at off, if it has at most limit
// bytes.
func cString(table string, off uint32, limit int) (string, bool) {
	if uint64(off) >= uint64(len(table)) {
		return "", false
	}
	t := table[off:]
	n := strings.IndexByte(t[:min(len(t), limit+1)], 0)
	if n < 0 {
		return "", false
	}
	return t[:n], true
}

// BuildID returns the GNU build ID (note type 3, name "GNU") in hexadecimal, or
// "". It looks at program headers, or at sections if the file has no program headers.
func (f *File) BuildID() string {
	for i := range f.Progs {
		if p := &f.Progs[i]; elf.ProgType(p.Type) == elf.PT_NOTE {
			if id := buildID(f.Bytes(p.Off, p.Filesz)); id != "" {
				return id
			}
		}
	}
	for i := range f.Sections {
		if s := &f.Sections[i]; s.Is(elf.SHT_NOTE) {
			if id := buildID(f.Bytes(s.Off, s.Size)); id != "" {
				return id
			}
		}
	}
	return ""
}

// buildID finds the build ID among notes.
func buildID(b []byte) string {
	const ntBuildID = 3
	for len(b) >= 12 {
		nameLen, descLen := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[4:]))
		kind := binary.LittleEndian.Uint32(b[8:])
		descOff := 12 + (nameLen+3)&^3
		end := descOff + (descLen+3)&^3
		if end > uint64(len(b)) {
			return ""
		}
		if kind == ntBuildID && string(b[12:12+nameLen]) == "GNU\x00" && descLen <= 64 {
			return hex.EncodeToString(b[descOff : descOff+descLen])
		}
		b = b[end:]
	}
	return ""
}
