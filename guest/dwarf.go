package guest

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"errors"
	"fmt"
	"strings"
)

// ErrNoDWARF is returned for an image without debug information.
var ErrNoDWARF = errors.New("no debug information (build the guest with -g)")

// maxDWARF bounds the debug sections after decompression.
const maxDWARF = 512 << 20

// HasDWARF reports whether the image has a .debug_info section.
func (img *Image) HasDWARF() bool { return img.debug }

// DWARF returns the image's debug information, read on the first call. The
// guest is not trusted: an image whose debug information is damaged gives an
// error here and still works without it.
func (img *Image) DWARF() (*dwarf.Data, error) {
	img.dwarfOnce.Do(func() {
		img.dwarfData, img.dwarfErr = img.readDWARF()
	})
	return img.dwarfData, img.dwarfErr
}

func (img *Image) readDWARF() (d *dwarf.Data, err error) {
	if !img.debug {
		return nil, ErrNoDWARF
	}
	// The standard library's readers are hardened but have panicked on damaged
	// input before; a guest must not end the daemon.
	defer func() {
		if r := recover(); r != nil {
			d, err = nil, fmt.Errorf("read debug information: damaged: %v", r)
		}
	}()
	f, err := elf.NewFile(bytes.NewReader(img.file))
	if err != nil {
		return nil, fmt.Errorf("read debug information: %w", err)
	}
	total := uint64(0)
	for _, s := range f.Sections {
		if strings.HasPrefix(s.Name, ".zdebug_") {
			return nil, fmt.Errorf("read debug information: section %s: obsolete compression (build the guest with -gz=zlib or -gz=none)", s.Name)
		}
		if s.Flags&elf.SHF_ALLOC == 0 && s.Type != elf.SHT_NOBITS {
			if s.Size > maxDWARF-total { // Size is that after decompression
				return nil, fmt.Errorf("read debug information: more than %d bytes", maxDWARF)
			}
			total += s.Size
		}
	}
	if d, err = f.DWARF(); err != nil {
		return nil, fmt.Errorf("read debug information: %w", err)
	}
	return d, nil
}
