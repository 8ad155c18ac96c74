package analyze

import (
	"bytes"
	debugelf "debug/elf"
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/linux"
)

// maxFile is the size in bytes of the largest file that is read, packed and
// unpacked.
const maxFile = linux.MaxImage

// errFormat is wrapped by errors about files that are neither an x86-64 ELF file
// nor a kernel that contains one.
var errFormat = errors.New("not an x86-64 ELF file or bzImage")

// image is a parsed file.
type image struct {
	*elf.Memory

	kind    string        // "elf" or "bzImage"
	packing string        // how the kernel in a bzImage was compressed, or ""
	buildID string        // hexadecimal, or ""
	source  string        // of the names: ".symtab", ".dynsym" or "kallsyms"
	full    bool          // all functions have names
	movable bool          // position-independent
	kernel  *linux.Kernel // nil: not Linux
}

// load reads the file at path.
func load(path string) (*image, error) {
	b, err := elf.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("analyze %w", err)
	}
	img, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("analyze %s: %w", path, err)
	}
	return img, nil
}

// parse parses a file's bytes, and keeps parts of them.
func parse(b []byte) (*image, error) {
	img := &image{kind: "elf"}
	if !bytes.HasPrefix(b, []byte(debugelf.ELFMAG)) {
		img.kind = "bzImage"
		var err error
		switch b, img.packing, err = linux.Unpack(b); {
		case errors.Is(err, linux.ErrNotKernel):
			return nil, errFormat
		case err != nil:
			return nil, err
		}
	}
	f, err := elf.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errFormat, err)
	}
	switch t := debugelf.Type(f.Header.Type); t {
	case debugelf.ET_EXEC:
	case debugelf.ET_DYN:
		img.movable = true
	default:
		return nil, fmt.Errorf("%w: %v", errFormat, t)
	}
	if img.Memory, err = f.Memory(); err != nil {
		return nil, err
	}
	img.buildID = f.BuildID()
	return img, img.readNames(f)
}

// readNames reads the names from .symtab, else from the kernel's own tables,
// else from .dynsym.
func (img *image) readNames(f *elf.File) error {
	named, err := img.ReadNames(f, debugelf.SHT_SYMTAB, linux.MaxNames)
	if err != nil {
		return err
	}
	if img.kernel, err = linux.New(img.Memory); err != nil {
		return err
	}
	img.source, img.full = ".symtab", true
	switch {
	case named:
		return nil
	case img.kernel != nil && img.kernel.Embeds:
		img.source = "kallsyms"
		return nil
	}
	img.source, img.full = ".dynsym", false
	if named, err = img.ReadNames(f, debugelf.SHT_DYNSYM, linux.MaxNames); err != nil {
		return err
	}
	if !named {
		return errors.New("it has no names: no .symtab, no .dynsym, no kallsyms tables")
	}
	return nil
}
