package bpf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
)

// ErrNoSection is the cause when an object has no programs in the section asked for.
var ErrNoSection = errors.New("no such section")

// prepare checks the sections of a file before anything else reads it. With a section
// given it returns a copy in which those of other programs, and the names that a kernel
// would fill in, are hidden: nothing in them is then looked at.
func prepare(b []byte, section string) ([]byte, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	if err := checkSizes(f, len(b)); err != nil {
		return nil, err
	}
	var have []string
	hidden := make([]bool, len(f.Sections))
	for i, s := range f.Sections {
		code := s.Type == elf.SHT_PROGBITS && s.Flags&elf.SHF_EXECINSTR != 0 && s.Size > 0
		if code && s.Name != ".text" {
			have = append(have, s.Name)
		}
		hidden[i] = section != "" && s.Name != section && (code && s.Name != ".text" || strings.HasPrefix(s.Name, ".struct_ops"))
	}
	if section != "" && !slices.Contains(have, section) {
		return nil, fmt.Errorf("%w %q: it has %q", ErrNoSection, section, slices.Compact(have))
	}
	if err := checkExterns(f, hidden); err != nil {
		return nil, err
	}
	if section == "" {
		return b, nil
	}
	return hide(b, f, hidden)
}

// checkSizes refuses files whose sections are larger than they can be: what
// compressed ones unpack to, and how large ones without bytes in the file are,
// has no limit but what we give it.
func checkSizes(f *elf.File, size int) error {
	for _, s := range f.Sections {
		limit := uint64(size)
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

// relSize is the size of an Elf64_Rel: offset, type and symbol.
const relSize = 16

// checkExterns refuses code that refers to what the file does not define.
func checkExterns(f *elf.File, hidden []bool) error {
	if f.Class != elf.ELFCLASS64 || f.ByteOrder != binary.LittleEndian {
		return nil // who parses the file says what is wrong with it
	}
	symbols, err := f.Symbols()
	if errors.Is(err, elf.ErrNoSymbols) {
		return nil
	} else if err != nil {
		return err
	}
	for _, rel := range f.Sections {
		if rel.Type != elf.SHT_REL || int(rel.Info) >= len(f.Sections) {
			continue
		}
		code := f.Sections[rel.Info]
		if hidden[rel.Info] || code.Flags&elf.SHF_EXECINSTR == 0 {
			continue
		}
		data, err := rel.Data()
		if err != nil {
			return err
		}
		for ; len(data) >= relSize; data = data[relSize:] {
			at, n := f.ByteOrder.Uint64(data), int(f.ByteOrder.Uint32(data[12:]))
			// Symbols leaves out the first one, which is none.
			if n == 0 || n > len(symbols) || symbols[n-1].Section != elf.SHN_UNDEF || symbols[n-1].Name == "" {
				continue
			}
			return fmt.Errorf("section %q, instruction %d: %q is extern and defined nowhere (there is no kernel whose configuration, symbols or functions could be used)", code.Name, at/asm.InstructionSize, symbols[n-1].Name)
		}
	}
	return nil
}

// hide returns a copy of the file in which sections are of no kind that anybody
// reads, and in which no type describes externs.
func hide(b []byte, f *elf.File, hidden []bool) ([]byte, error) {
	const shoff, shentsize, typeOff = 40, 58, 4 // in Elf64_Ehdr, and in Elf64_Shdr
	b = bytes.Clone(b)
	le := binary.LittleEndian
	for i, s := range f.Sections {
		if hidden[i] {
			at := le.Uint64(b[shoff:]) + uint64(i)*uint64(le.Uint16(b[shentsize:])) + typeOff
			if at > uint64(len(b)-4) {
				return nil, fmt.Errorf("header of section %q is outside the file", s.Name)
			}
			le.PutUint32(b[at:], uint32(elf.SHT_NOTE))
		}
		if s.Name != ".BTF" || s.Type == elf.SHT_NOBITS || s.Offset > uint64(len(b)) || s.Size > uint64(len(b))-s.Offset {
			continue
		}
		types := b[s.Offset:][:s.Size]
		for _, name := range []string{"\x00.kconfig\x00", "\x00.ksyms\x00"} {
			if at := bytes.Index(types, []byte(name)); at >= 0 {
				types[at+1] = '_'
			}
		}
	}
	return b, nil
}
