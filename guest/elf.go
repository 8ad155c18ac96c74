package guest

import (
	"cmp"
	"crypto/sha256"
	debugelf "debug/elf"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/guest/elf"
)

// ErrNotELF is returned for a file that does not start as an ELF file does.
var ErrNotELF = elf.ErrNotELF

// ImageError is returned for an ELF file that cannot be a guest.
type ImageError struct {
	Part   string // the part of the file: "segment 2", "symbol 7"
	Reason string // why it is invalid
	Fix    string // what to do about it; empty for a damaged file
}

// Error names the part, the reason and the remedy.
func (e *ImageError) Error() string {
	return (&elf.Error{Part: e.Part, Reason: e.Reason, Fix: e.Fix}).Error()
}

// damagedError returns the error for a file that breaks the format.
func damagedError(part, format string, args ...any) error {
	return &ImageError{Part: part, Reason: fmt.Sprintf(format, args...)}
}

// howToBuild is the advice for a file of another kind.
const howToBuild = "build the guest as a static x86-64 executable (-m64 -static -no-pie)"

// imageError turns an error about the file into one about the image.
func imageError(err error) error {
	var e *elf.Error
	switch {
	case errors.Is(err, ErrNotELF):
		return fmt.Errorf("read guest image: %w", err)
	case !errors.As(err, &e):
		return err // nil too
	case e.Foreign:
		return &ImageError{e.Part, e.Reason, howToBuild}
	}
	return &ImageError{e.Part, e.Reason, e.Fix}
}

// ParseELF parses a statically linked x86-64 ELF executable. It keeps b, which
// must not change afterwards. Whatever b holds, the result is an image or an
// error (ErrNotELF, *ImageError), in time and memory proportional to b.
func ParseELF(b []byte) (*Image, error) {
	return parseELF(b, true)
}

// parseELF is ParseELF, or LoadAny's part of it.
func parseELF(b []byte, boots bool) (*Image, error) {
	if len(b) > maxImageFile {
		return nil, &ImageError{"file", fmt.Sprintf("%d bytes, more than %d", len(b), maxImageFile), "strip its debug information"}
	}
	f, err := elf.Parse(b)
	if err != nil {
		if errors.Is(err, ErrNotELF) {
			err = notELFError(b)
		}
		return nil, imageError(err)
	}
	if boots {
		if err := cmp.Or(kindError(f, b), checkType(f)); err != nil {
			return nil, err
		}
	}
	img := &Image{Entry: GVA(f.Header.Entry), SHA256: sha256.Sum256(b), BuildID: f.BuildID(), file: f}
	if err := img.readSegments(); err != nil {
		return nil, err
	}
	if err := img.readSections(); err != nil {
		return nil, err
	}
	img.buildText()
	switch t := img.findText(img.Entry); {
	case !boots:
	case t == nil:
		return nil, &ImageError{"entry point", fmt.Sprintf("%v is not in the image's code", img.Entry), "link with -e SYMBOL, a function in an executable section"}
	case t.user:
		return nil, &ImageError{"entry point", fmt.Sprintf("%v is in a user segment", img.Entry), "the guest starts at CPL 0: enter a kernel segment"}
	}
	if err := img.readSymbols(); err != nil {
		return nil, err
	}
	if err := img.readRelocations(); err != nil {
		return nil, err
	}
	img.noteObjects()
	if img.Blacklist, err = NewBlacklist(img.SymbolTable, img.sections, img.bytesAt, img.IsText); err != nil {
		return nil, err
	}
	return img, nil
}

// checkType rejects files that are not linked executables at fixed addresses.
func checkType(f *elf.File) error {
	switch t := debugelf.Type(f.Header.Type); t {
	case debugelf.ET_EXEC:
	case debugelf.ET_DYN:
		return &ImageError{"header", "position-independent executable or shared object", "it needs relocating, which nothing here does: link with -static -no-pie"}
	case debugelf.ET_REL:
		return &ImageError{"header", "object file", "link it first"}
	default:
		return &ImageError{"header", fmt.Sprintf("type %v, not an executable", t), howToBuild}
	}
	if len(f.Progs) == 0 {
		return &ImageError{"program headers", "the file has no program headers", "link the guest: it needs PT_LOAD segments"}
	}
	return nil
}

// readSections keeps the sections that are in memory, checked to lie in a
// segment.
func (img *Image) readSections() error {
	for i := range img.file.Sections {
		s := &img.file.Sections[i]
		name := s.Name
		// Thread-local .tbss has an address but no memory there.
		tbss := s.Has(debugelf.SHF_TLS) && s.Is(debugelf.SHT_NOBITS)
		if !s.Has(debugelf.SHF_ALLOC) || s.Size == 0 || tbss {
			continue
		}
		if !utf8.ValidString(name) {
			return damagedError(fmt.Sprintf("section %d", i), "name %q is not UTF-8", name)
		}
		seg := img.segment(GVA(s.Addr))
		if seg == nil || s.Size > seg.MemSize-uint64(GVA(s.Addr)-seg.VAddr) {
			return &ImageError{fmt.Sprintf("section %d (%s)", i, name), fmt.Sprintf("%d bytes at %v are in no PT_LOAD segment", s.Size, GVA(s.Addr)), "put it into a segment in the linker script"}
		}
		img.Sections = append(img.Sections, Section{Name: name, Addr: GVA(s.Addr), Size: s.Size, W: s.Has(debugelf.SHF_WRITE), X: s.Has(debugelf.SHF_EXECINSTR)})
	}
	slices.SortStableFunc(img.Sections, func(a, b Section) int { return cmpAddr(a.Addr, b.Addr) })
	for i := 1; i < len(img.Sections); i++ {
		if a, b := &img.Sections[i-1], &img.Sections[i]; b.Addr-a.Addr < GVA(a.Size) {
			return damagedError("sections", "%q at %v and %q at %v overlap", a.Name, a.Addr, b.Name, b.Addr)
		}
	}
	return nil
}

// SectionData returns the bytes of the first section of that name in the file, in
// guest memory or not, decompressed to at most limit bytes; nil if the file has no
// such section. They must not be changed.
func (img *Image) SectionData(name string, limit uint64) ([]byte, error) {
	i := img.file.IndexDebug(name)
	if i < 0 {
		return nil, nil
	}
	data, err := img.file.Data(i, limit)
	return data, imageError(err)
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
