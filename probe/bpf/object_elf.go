package bpf

import (
	"bytes"
	"debug/elf"
	"fmt"
)

// checkSections refuses files whose sections are larger than they can be: what
// compressed ones unpack to, and how large ones without bytes in the file are,
// has no limit but what we give it.
func checkSections(b []byte) error {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return err
	}
	for _, s := range f.Sections {
		limit := uint64(len(b))
		if s.Type == elf.SHT_NOBITS {
			limit = MaxValueSize // it becomes the value of a map
		}
		switch {
		case s.Flags&elf.SHF_COMPRESSED != 0 || len(s.Name) > 7 && s.Name[:7] == ".zdebug":
			return fmt.Errorf("section %q is compressed", s.Name)
		case s.Size > limit:
			return fmt.Errorf("section %q of %d bytes is too large: %w", s.Name, s.Size, ErrMapLimit)
		}
	}
	return nil
}
