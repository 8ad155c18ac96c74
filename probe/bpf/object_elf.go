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

// ErrNoSection is the cause if an object has no programs in the requested section.
var ErrNoSection = errors.New("no such section")

// prepare checks the sections of a file before anything else reads it, and finds the
// references that it does not define. It returns a copy that hides the names that a
// kernel would fill in, and the sections of programs that are not selected: these are
// then ignored.
func prepare(b []byte, sel Selection) ([]byte, *externs, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, nil, err
	}
	if err := checkSizes(f, len(b)); err != nil {
		return nil, nil, err
	}
	var have []string
	some := false
	hidden := make([]bool, len(f.Sections))
	for i, s := range f.Sections {
		code := s.Type == elf.SHT_PROGBITS && s.Flags&elf.SHF_EXECINSTR != 0 && s.Size > 0
		selected := sel.wants(s.Name)
		if code && s.Name != ".text" {
			have = append(have, s.Name)
			some = some || selected
		}
		hidden[i] = !selected && (code && s.Name != ".text" || strings.HasPrefix(s.Name, ".struct_ops"))
	}
	if sel.Section != "" && !some {
		return nil, nil, fmt.Errorf("%w %q: it has %q", ErrNoSection, sel.Section, slices.Compact(have))
	}
	refs, err := findExterns(f, hidden)
	if err != nil {
		return nil, nil, err
	}
	if b, err = hide(b, f, hidden); err != nil {
		return nil, nil, err
	}
	correctSymbols(b, f)
	correctMapTypes(typesOf(b, f))
	x, err := newExterns(refs, typesOf(b, f), sel.Kernel)
	if err == nil {
		x.unselected = hideValues(b, f, hidden)
		x.addresses, err = findAddresses(f)
	}
	return b, x, err
}

// findAddresses finds the data sections that contain addresses, such as tables of
// texts, with the variable that has the first one: no loader fills them in, so a
// program would find 0 there.
func findAddresses(f *elf.File) (map[string]string, error) {
	out := map[string]string{}
	symbols, err := f.Symbols()
	if err != nil {
		return out, nil // the parser of the file will report the error
	}
	for _, rel := range f.Sections {
		if rel.Type != elf.SHT_REL && rel.Type != elf.SHT_RELA || rel.Info == 0 || int(rel.Info) >= len(f.Sections) {
			continue
		}
		data := f.Sections[rel.Info]
		if data.Flags&elf.SHF_EXECINSTR != 0 || data.Flags&elf.SHF_ALLOC == 0 || data.Type != elf.SHT_PROGBITS || !isData(data.Name) {
			continue
		}
		b, err := rel.Data()
		if err != nil {
			return nil, err
		}
		if len(b) < 8 {
			continue
		}
		at, name := f.ByteOrder.Uint64(b), "its target"
		for _, s := range symbols {
			if elf.ST_TYPE(s.Info) == elf.STT_OBJECT && s.Section == elf.SectionIndex(rel.Info) && at-s.Value < s.Size {
				name = fmt.Sprintf("%q", s.Name)
			}
		}
		out[data.Name] = name
	}
	return out, nil
}

// isData reports whether a section becomes the value of a map.
func isData(name string) bool {
	for _, p := range []string{".data", ".rodata", ".bss"} {
		if name == p || strings.HasPrefix(name, p+".") {
			return true
		}
	}
	return false
}

// isConstants reports whether a section has the constants of an object. No loader lets
// anything change them after the programs were loaded.
func isConstants(name string) bool { return name == ".rodata" || strings.HasPrefix(name, ".rodata.") }

// checkSizes rejects files whose sections are implausibly large: nothing else limits
// the size that compressed sections unpack to, or that sections without bytes in the
// file have.
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

// arenaSection is the section in which clang puts variables of an arena (address
// space 1).
const arenaSection = ".addr_space.1"

// relSize is the size of an Elf64_Rel: offset, type and symbol.
const relSize = 16

// findExterns finds the names that code refers to and the file does not define.
func findExterns(f *elf.File, hidden []bool) (map[string]externRef, error) {
	refs := map[string]externRef{}
	if f.Class != elf.ELFCLASS64 || f.ByteOrder != binary.LittleEndian {
		return refs, nil // the parser of the file will report the error
	}
	symbols, err := f.Symbols()
	if errors.Is(err, elf.ErrNoSymbols) {
		return refs, nil
	} else if err != nil {
		return nil, err
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
			return nil, err
		}
		for ; len(data) >= relSize; data = data[relSize:] {
			at, n := f.ByteOrder.Uint64(data), int(f.ByteOrder.Uint32(data[12:]))
			// Symbols omits the first one, the null symbol.
			if n == 0 || n > len(symbols) {
				continue
			}
			sym := symbols[n-1]
			if int(sym.Section) < len(f.Sections) && f.Sections[sym.Section].Name == arenaSection {
				return nil, fmt.Errorf("section %q, instruction %d: %q is in an arena, which is not supported: write a global variable without __arena, or a map", code.Name, at/asm.InstructionSize, sym.Name)
			}
			if _, known := refs[sym.Name]; known || sym.Section != elf.SHN_UNDEF || sym.Name == "" {
				continue
			}
			refs[sym.Name] = externRef{weak: elf.ST_BIND(sym.Info) == elf.STB_WEAK}
		}
	}
	return refs, nil
}

// hide returns a copy of the file in which hidden sections have a type that readers
// ignore, and in which no type describes externs.
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
	}
	types := typesOf(b, f)
	for _, name := range []string{kconfigHidden, ksymsHidden} {
		if at := bytes.Index(types, []byte("\x00."+name[1:]+"\x00")); at >= 0 {
			types[at+1] = '_'
		}
	}
	return b, nil
}

// typesOf returns the BTF bytes of a file, nil if it has none.
func typesOf(b []byte, f *elf.File) []byte {
	s := f.Section(".BTF")
	if s == nil || s.Type == elf.SHT_NOBITS || s.Offset > uint64(len(b)) || s.Size > uint64(len(b))-s.Offset {
		return nil
	}
	return b[s.Offset:][:s.Size]
}
