package analyze

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
)

// Limits of a file.
const (
	MaxFile    = 512 << 20 // bytes, of the file and of what it is decompressed to
	maxSymbols = 4 << 20
)

// ErrFormat is wrapped by errors about files that are no x86-64 ELF, nor a
// kernel that holds one.
var ErrFormat = errors.New("not an x86-64 ELF file or bzImage")

// section is one part of the image that occupies memory and has bytes.
type section struct {
	name string
	addr uint64
	data []byte
	x, w bool
}

// symbol is one name for an address.
type symbol struct {
	name string
	addr uint64
	size uint64 // 0 when not known
	fn   bool
	// label: the file does not say what it names.
	label bool
}

// image is a file, taken apart.
type image struct {
	kind     string    // "elf" or "bzImage"
	packing  string    // how the kernel in a bzImage was compressed; "" for none
	version  string    // of a kernel, as its banner says it; "" otherwise
	buildID  string    // hexadecimal; "" when there is none
	source   string    // of the names: ".symtab", ".dynsym" or "kallsyms"
	checked  int       // names that a second table confirms
	full     bool      // the names are those of all functions
	movable  bool      // position-independent
	sections []section // ascending
	symbols  []symbol  // ascending by address
	byName   map[string]uint64
}

// load reads the file at path.
func load(path string) (*image, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("analyze: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("analyze %s: not a regular file", path)
	}
	if st.Size() > MaxFile {
		return nil, fmt.Errorf("analyze %s: %d bytes, more than %d", path, st.Size(), MaxFile)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("analyze: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("analyze: %w", err)
	}
	img, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("analyze %s: %w", path, err)
	}
	return img, nil
}

// parse takes a file's bytes apart and keeps parts of them.
func parse(b []byte) (*image, error) {
	img := &image{kind: "elf"}
	if !bytes.HasPrefix(b, []byte(elf.ELFMAG)) {
		payload, ok := bzImagePayload(b)
		if !ok {
			return nil, ErrFormat
		}
		var err error
		img.kind = "bzImage"
		if b, img.packing, err = decompress(payload); err != nil {
			return nil, err
		}
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 || f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return nil, fmt.Errorf("%w: %v %v %v", ErrFormat, f.Class, f.Machine, f.Type)
	}
	img.movable = f.Type == elf.ET_DYN
	if err := img.readSections(f, b); err != nil {
		return nil, err
	}
	if err := img.readSymbols(f); err != nil {
		return nil, err
	}
	img.version = img.banner()
	return img, nil
}

// readSections keeps the sections that have bytes in memory.
func (img *image) readSections(f *elf.File, b []byte) error {
	for _, s := range f.Sections {
		if s.Type == elf.SHT_NOBITS || s.Flags&elf.SHF_ALLOC == 0 || s.Flags&elf.SHF_COMPRESSED != 0 || s.Size == 0 {
			continue
		}
		if s.Offset > uint64(len(b)) || s.Size > uint64(len(b))-s.Offset || s.Addr+s.Size < s.Addr {
			return fmt.Errorf("section %s: %d bytes at %#x are not in the file", s.Name, s.Size, s.Offset)
		}
		img.sections = append(img.sections, section{
			name: s.Name, addr: s.Addr, data: b[s.Offset:][:s.Size:s.Size],
			x: s.Flags&elf.SHF_EXECINSTR != 0, w: written(f, s),
		})
		if s.Type == elf.SHT_NOTE && img.buildID == "" {
			img.buildID = buildID(img.sections[len(img.sections)-1].data)
		}
	}
	slices.SortFunc(img.sections, func(a, b section) int {
		switch {
		case a.addr < b.addr:
			return -1
		case a.addr > b.addr:
			return 1
		}
		return 0
	})
	if len(img.sections) == 0 {
		return errors.New("no section headers, so it is not known what is code")
	}
	return nil
}

// written reports whether the program writes a section: as its segment says,
// because linkers merge sections into one that is not written.
func written(f *elf.File, s *elf.Section) bool {
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && s.Addr-p.Vaddr < p.Memsz {
			return p.Flags&elf.PF_W != 0
		}
	}
	return s.Flags&elf.SHF_WRITE != 0
}

// buildID finds the GNU build ID among notes.
func buildID(notes []byte) string {
	for len(notes) >= 12 {
		name, desc, kind := le32(notes), le32(notes[4:]), le32(notes[8:])
		at := uint64(12) + (uint64(name)+3)&^3
		end := at + (uint64(desc)+3)&^3
		if end > uint64(len(notes)) {
			return ""
		}
		if kind == 3 && name == 4 && string(notes[12:16]) == "GNU\x00" {
			return fmt.Sprintf("%x", notes[at:at+uint64(desc)])
		}
		notes = notes[end:]
	}
	return ""
}

// readSymbols takes the names from .symtab, else from the kernel's own tables,
// else from .dynsym.
func (img *image) readSymbols(f *elf.File) error {
	syms, err := f.Symbols()
	img.source, img.full = ".symtab", true
	if errors.Is(err, elf.ErrNoSymbols) || err == nil && len(syms) == 0 {
		if ks := img.kallsyms(); len(ks) > 0 {
			img.source = "kallsyms"
			img.setSymbols(ks)
			img.checked, err = img.checkExports()
			return err
		}
		syms, err = f.DynamicSymbols()
		img.source, img.full = ".dynsym", false
	}
	if errors.Is(err, elf.ErrNoSymbols) {
		return errors.New("it has no names: no .symtab, no .dynsym, no kallsyms tables")
	}
	if err != nil {
		return fmt.Errorf("symbols: %w", err)
	}
	out := make([]symbol, 0, len(syms))
	for _, s := range syms {
		kind := elf.ST_TYPE(s.Info)
		if s.Section == elf.SHN_UNDEF || kind == elf.STT_SECTION || kind == elf.STT_FILE || kind == elf.STT_TLS {
			continue
		}
		fn := kind == elf.STT_FUNC || kind == elf.STT_GNU_IFUNC
		if kind == elf.STT_NOTYPE {
			sec := img.at(s.Value)
			fn = sec != nil && sec.x && s.Section < elf.SHN_LORESERVE
		}
		out = append(out, symbol{s.Name, s.Value, s.Size, fn, kind == elf.STT_NOTYPE})
	}
	img.setSymbols(out)
	return nil
}

// setSymbols sorts the names.
func (img *image) setSymbols(syms []symbol) {
	if len(syms) > maxSymbols {
		syms = syms[:maxSymbols]
	}
	slices.SortStableFunc(syms, func(a, b symbol) int {
		switch {
		case a.addr < b.addr:
			return -1
		case a.addr > b.addr:
			return 1
		}
		return 0
	})
	img.symbols = syms
	img.byName = make(map[string]uint64, len(syms))
	for _, s := range syms {
		if _, twice := img.byName[s.name]; !twice {
			img.byName[s.name] = s.addr
		}
	}
}

// at returns the section that holds addr, or nil.
func (img *image) at(addr uint64) *section {
	i := sort.Search(len(img.sections), func(i int) bool { return img.sections[i].addr > addr }) - 1
	if i < 0 || addr-img.sections[i].addr >= uint64(len(img.sections[i].data)) {
		return nil
	}
	return &img.sections[i]
}

// bytes returns the n bytes at addr, or nil when the image does not have all of
// them in one section.
func (img *image) bytes(addr uint64, n int) []byte {
	s := img.at(addr)
	if s == nil || n < 0 {
		return nil
	}
	off := addr - s.addr
	if uint64(n) > uint64(len(s.data))-off {
		return nil
	}
	return s.data[off:][:n:n]
}

// banner returns the kernel's version, or "".
func (img *image) banner() string {
	const mark = "Linux version "
	for i := range img.sections {
		s := &img.sections[i]
		if k := bytes.Index(s.data, []byte(mark)); k >= 0 && img.kernel() {
			rest := s.data[k+len(mark):]
			if end := bytes.IndexAny(rest[:min(len(rest), 128)], " \n\x00"); end > 0 {
				return string(rest[:end])
			}
		}
	}
	return ""
}

// kernel reports whether the image looks like Linux.
func (img *image) kernel() bool {
	_, a := img.byName["linux_banner"]
	_, b := img.byName["__start___ex_table"]
	return a || b
}

func le32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

func le64(b []byte) uint64 { return uint64(le32(b)) | uint64(le32(b[4:]))<<32 }
