package bpf

import (
	"bytes"
	"debug/elf"
	"fmt"
)

// compressed refuses files with compressed sections: clang makes none that we
// read, and what they unpack to has no limit.
func compressed(b []byte) error {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return err
	}
	for _, s := range f.Sections {
		if s.Flags&elf.SHF_COMPRESSED != 0 || len(s.Name) > 7 && s.Name[:7] == ".zdebug" {
			return fmt.Errorf("section %q is compressed", s.Name)
		}
	}
	return nil
}
