package guest

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// ErrNotELF is returned for a file that does not start as an ELF file does.
var ErrNotELF = errors.New("not an ELF file")

// ImageError is returned for an ELF file that cannot be a guest.
type ImageError struct {
	Part   string // which part of the file: "segment 2", "symbol 7"
	Reason string // what is wrong with it
	Fix    string // what to do about it; empty for a damaged file
}

// Error names the part, the reason and the remedy.
func (e *ImageError) Error() string {
	s := fmt.Sprintf("elf %s: %s", e.Part, e.Reason)
	if e.Fix != "" {
		s += ": " + e.Fix
	}
	return s
}

// damaged returns the error for a file that breaks the format.
func damaged(part, format string, args ...any) error {
	return &ImageError{Part: part, Reason: fmt.Sprintf(format, args...)}
}

// tooBig returns the error for a file of size bytes.
func tooBig(size int64) error {
	return &ImageError{"file", fmt.Sprintf("%d bytes, more than %d", size, MaxImageFile), "strip its debug information"}
}

// Sizes of the structures of ELF64 (System V ABI, "Object Files").
const (
	ehdrSize = 64
	phdrSize = 56
	shdrSize = 64
	symSize  = 24

	maxPhdrs = 4096  // program headers of any type
	maxShdrs = 65536 // sections
	shfExec  = uint64(elf.SHF_EXECINSTR)
	shfWrite = uint64(elf.SHF_WRITE)
	shfAlloc = uint64(elf.SHF_ALLOC)
)

// elfFile is a file whose header and tables were found to lie inside it.
type elfFile struct {
	b        []byte
	hdr      elf.Header64
	progs    []elf.Prog64
	sections []elf.Section64
	names    string // section name string table
}

// ParseELF parses a statically linked x86-64 ELF executable. It keeps b, which
// must not change afterwards. Whatever b holds, the result is an image or an
// error (ErrNotELF, *ImageError), in time and memory proportional to b.
func ParseELF(b []byte) (*Image, error) {
	if len(b) > MaxImageFile {
		return nil, tooBig(int64(len(b)))
	}
	f := &elfFile{b: b}
	if err := f.readHeader(); err != nil {
		return nil, err
	}
	if err := f.readProgs(); err != nil {
		return nil, err
	}
	if err := f.readSections(); err != nil {
		return nil, err
	}
	img := &Image{Entry: GVA(f.hdr.Entry), SHA256: sha256.Sum256(b), file: b}
	if err := f.segments(img); err != nil {
		return nil, err
	}
	if err := f.memorySections(img); err != nil {
		return nil, err
	}
	img.buildText()
	switch t := img.findText(img.Entry); {
	case t == nil:
		return nil, &ImageError{"entry point", fmt.Sprintf("%v is not in the image's code", img.Entry), "link with -e SYMBOL, a function in an executable section"}
	case t.user:
		return nil, &ImageError{"entry point", fmt.Sprintf("%v is in a user segment", img.Entry), "the guest starts at CPL 0: enter a kernel segment"}
	}
	if err := f.symbols(img); err != nil {
		return nil, err
	}
	if err := f.relocations(img); err != nil {
		return nil, err
	}
	img.noteObjects()
	if err := img.buildBlacklist(); err != nil {
		return nil, err
	}
	img.BuildID = f.buildID()
	return img, nil
}

// decode reads one structure of the file. Its extent was checked.
func decode(b []byte, v any) {
	if _, err := binary.Decode(b, binary.LittleEndian, v); err != nil {
		panic("BUG: decode ELF structure: " + err.Error())
	}
}

// inFile reports whether n bytes at off are inside the file.
func (f *elfFile) inFile(off, n uint64) bool {
	size := uint64(len(f.b))
	return off <= size && n <= size-off
}

func (f *elfFile) readHeader() error {
	b := f.b
	if len(b) < 4 || string(b[:4]) != elf.ELFMAG {
		return fmt.Errorf("read guest image: %w", ErrNotELF)
	}
	if len(b) < elf.EI_NIDENT {
		return damaged("header", "truncated after %d bytes", len(b))
	}
	const build = "build the guest as a static x86-64 executable (-m64 -static -no-pie)"
	if c := elf.Class(b[elf.EI_CLASS]); c != elf.ELFCLASS64 {
		return &ImageError{"header", fmt.Sprintf("%v, not 64-bit", c), build}
	}
	if d := elf.Data(b[elf.EI_DATA]); d != elf.ELFDATA2LSB {
		return &ImageError{"header", fmt.Sprintf("%v, not little endian", d), build}
	}
	if len(b) < ehdrSize {
		return damaged("header", "truncated after %d of %d bytes", len(b), ehdrSize)
	}
	decode(b[:ehdrSize], &f.hdr)
	h := &f.hdr
	if m := elf.Machine(h.Machine); m != elf.EM_X86_64 {
		return &ImageError{"header", fmt.Sprintf("machine %v, not EM_X86_64", m), build}
	}
	if b[elf.EI_VERSION] != byte(elf.EV_CURRENT) || h.Version != uint32(elf.EV_CURRENT) {
		return damaged("header", "unknown version %d/%d", b[elf.EI_VERSION], h.Version)
	}
	switch t := elf.Type(h.Type); t {
	case elf.ET_EXEC:
	case elf.ET_DYN:
		return &ImageError{"header", "position-independent executable or shared object", "it needs relocating, which nothing here does: link with -static -no-pie"}
	case elf.ET_REL:
		return &ImageError{"header", "object file", "link it first"}
	default:
		return &ImageError{"header", fmt.Sprintf("type %v, not an executable", t), build}
	}
	if h.Ehsize != ehdrSize {
		return damaged("header", "header size %d, not %d", h.Ehsize, ehdrSize)
	}
	return nil
}

func (f *elfFile) readProgs() error {
	h := &f.hdr
	n := uint64(h.Phnum)
	switch {
	case n == 0:
		return &ImageError{"program headers", "there are none", "link the guest: it needs PT_LOAD segments"}
	case n >= maxPhdrs: // PN_XNUM included
		return damaged("program headers", "%d of them, more than %d", n, maxPhdrs-1)
	case h.Phentsize != phdrSize:
		return damaged("program headers", "entry size %d, not %d", h.Phentsize, phdrSize)
	case !f.inFile(h.Phoff, n*phdrSize):
		return damaged("program headers", "%d at offset %#x reach beyond the file's %d bytes (truncated?)", n, h.Phoff, len(f.b))
	}
	f.progs = make([]elf.Prog64, n)
	decode(f.b[h.Phoff:h.Phoff+n*phdrSize], f.progs)
	return nil
}

func (f *elfFile) readSections() error {
	h := &f.hdr
	if h.Shoff == 0 {
		if h.Shnum != 0 {
			return damaged("section headers", "%d of them but no offset", h.Shnum)
		}
		return nil
	}
	if h.Shentsize != shdrSize {
		return damaged("section headers", "entry size %d, not %d", h.Shentsize, shdrSize)
	}
	if !f.inFile(h.Shoff, shdrSize) {
		return damaged("section headers", "offset %#x is beyond the file's %d bytes (truncated?)", h.Shoff, len(f.b))
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
		return damaged("section headers", "%d of them, more than %d", n, maxShdrs)
	}
	if n == 0 {
		return nil
	}
	if !f.inFile(h.Shoff, n*shdrSize) {
		return damaged("section headers", "%d at offset %#x reach beyond the file's %d bytes (truncated?)", n, h.Shoff, len(f.b))
	}
	f.sections = make([]elf.Section64, n)
	decode(f.b[h.Shoff:h.Shoff+n*shdrSize], f.sections)
	if strndx == 0 {
		return nil
	}
	if strndx >= n {
		return damaged("section headers", "name table is section %d of %d", strndx, n)
	}
	names, err := f.sectionData(int(strndx), elf.SHT_STRTAB)
	f.names = string(names)
	return err
}

// sectionPart names section i in errors.
func sectionPart(i int) string { return fmt.Sprintf("section %d", i) }

// sectionData returns the bytes of section i, which must have type t.
func (f *elfFile) sectionData(i int, t elf.SectionType) ([]byte, error) {
	s := &f.sections[i]
	switch {
	case elf.SectionType(s.Type) != t:
		return nil, damaged(sectionPart(i), "type %v, want %v", elf.SectionType(s.Type), t)
	case s.Flags&uint64(elf.SHF_COMPRESSED) != 0:
		return nil, damaged(sectionPart(i), "%v must not be compressed", t)
	case !f.inFile(s.Off, s.Size):
		return nil, damaged(sectionPart(i), "%d bytes at offset %#x reach beyond the file's %d (truncated?)", s.Size, s.Off, len(f.b))
	}
	return f.b[s.Off : s.Off+s.Size : s.Off+s.Size], nil
}

// sectionName returns the name of section i.
func (f *elfFile) sectionName(i int) (string, error) {
	if f.names == "" {
		return "", nil
	}
	s, ok := cString(f.names, f.sections[i].Name, maxSectionName)
	if !ok {
		return "", damaged(sectionPart(i), "its name, at offset %#x of a name table of %d bytes, does not end there or is longer than %d", f.sections[i].Name, len(f.names), maxSectionName)
	}
	return s, nil
}

// Greatest lengths of names in bytes. Symbols of C++ and Rust programs have
// some thousands. Strings in a table may overlap, so that without limits a small
// file could hold long names by the million.
const (
	maxSectionName = 1 << 10
	maxSymbolName  = 64 << 10
)

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

// memorySections keeps the sections that are in memory, checked to lie in a
// segment.
func (f *elfFile) memorySections(img *Image) error {
	for i := range f.sections {
		s := &f.sections[i]
		name, err := f.sectionName(i)
		if err != nil {
			return err
		}
		if name == ".debug_info" && s.Size != 0 && elf.SectionType(s.Type) != elf.SHT_NOBITS {
			img.debug = true
		}
		// Thread-local .tbss has an address but no memory there.
		tbss := s.Flags&uint64(elf.SHF_TLS) != 0 && elf.SectionType(s.Type) == elf.SHT_NOBITS
		if s.Flags&shfAlloc == 0 || s.Size == 0 || tbss {
			continue
		}
		if !utf8.ValidString(name) {
			return damaged(sectionPart(i), "name %q is not UTF-8", name)
		}
		seg := img.segment(GVA(s.Addr))
		if seg == nil || s.Size > seg.MemSize-uint64(GVA(s.Addr)-seg.VAddr) {
			return &ImageError{fmt.Sprintf("section %d (%s)", i, name), fmt.Sprintf("%d bytes at %v are in no PT_LOAD segment", s.Size, GVA(s.Addr)), "put it into a segment in the linker script"}
		}
		img.Sections = append(img.Sections, Section{Name: name, Addr: GVA(s.Addr), Size: s.Size, W: s.Flags&shfWrite != 0, X: s.Flags&shfExec != 0})
	}
	slices.SortStableFunc(img.Sections, func(a, b Section) int { return cmpAddr(a.Addr, b.Addr) })
	for i := 1; i < len(img.Sections); i++ {
		if a, b := &img.Sections[i-1], &img.Sections[i]; b.Addr-a.Addr < GVA(a.Size) {
			return damaged("sections", "%q at %v and %q at %v overlap", a.Name, a.Addr, b.Name, b.Addr)
		}
	}
	return nil
}

func cmpAddr(a, b GVA) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// buildID returns the GNU build ID (note type 3, name "GNU"), in hexadecimal.
func (f *elfFile) buildID() string {
	const ntBuildID = 3
	for i := range f.progs {
		p := &f.progs[i]
		if elf.ProgType(p.Type) != elf.PT_NOTE || !f.inFile(p.Off, p.Filesz) {
			continue
		}
		for b := f.b[p.Off : p.Off+p.Filesz]; len(b) >= 12; {
			nameLen, descLen := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[4:]))
			kind := binary.LittleEndian.Uint32(b[8:])
			descOff := 12 + (nameLen+3)&^3
			end := descOff + (descLen+3)&^3
			if end > uint64(len(b)) {
				break
			}
			if kind == ntBuildID && string(b[12:12+nameLen]) == "GNU\x00" && descLen <= 64 {
				return hex.EncodeToString(b[descOff : descOff+descLen])
			}
			b = b[end:]
		}
	}
	return ""
}
