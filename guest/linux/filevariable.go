package linux

import (
	debugelf "debug/elf"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
)

// FileVariable is a variable of a file of the guest, which each process has at an address of its own.
type FileVariable struct {
	// Move is the address of the variable in a process, minus that of any code of the file there, plus the View's address of that code.
	Move guest.GVA
	Size uint64 // 0: the file does not say it
}

// Variable finds a variable, or a function, by its name in the table of symbols of the file at path: its own table, or that of the separate
// debug information that was given. It fails if the file cannot be read, or if the name is missing or has several meanings.
func (v Programs) Variable(path, name string) (x FileVariable, err error) {
	f, err := v.open(path)
	if err != nil {
		return x, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.have {
		f.fill(v.View, uint64(i))
	}
	if debug := f.debug.Load(); debug != nil {
		if x, err = f.variable(debug, name, func(off, n uint64) bool { return debug.Bytes(off, n) != nil }); err == nil {
			return x, nil
		}
	}
	file, err := elf.Parse(f.data)
	if err != nil {
		return x, fmt.Errorf("%s: %w", f.path, err)
	}
	return f.variable(file, name, f.has)
}

// variable finds a symbol in file, which is f or has its debug information. has reports which parts of it are available.
func (f *userFile) variable(file *elf.File, name string, has func(off, n uint64) bool) (x FileVariable, err error) {
	if len(f.segments) == 0 {
		return x, fmt.Errorf("%s has no code", f.path)
	}
	// Code is as far from the variables in a process as the program headers say, and as far from its place in the View.
	code := f.segments[0]
	for _, g := range f.segments {
		if g.off-g.addr != code.off-code.addr {
			return x, fmt.Errorf("%s: parts of its code are moved by different distances", f.path)
		}
	}
	missing := false
	for _, table := range []debugelf.SectionType{debugelf.SHT_SYMTAB, debugelf.SHT_DYNSYM} {
		i := slices.IndexFunc(file.Sections, func(s elf.Section) bool { return s.Is(table) })
		if i < 0 {
			continue
		}
		s := &file.Sections[i]
		if int(s.Link) >= len(file.Sections) || !has(s.Off, s.Size) || !has(file.Sections[s.Link].Off, file.Sections[s.Link].Size) {
			missing = true
			continue
		}
		all, err := file.Symbols(table, MaxNames)
		if err != nil {
			return x, fmt.Errorf("%s: %w", f.path, err)
		}
		var found *elf.Symbol
		for i := range all {
			es := &all[i]
			if t := es.Type(); es.Name != name || es.Section == debugelf.SHN_UNDEF || t != debugelf.STT_OBJECT && t != debugelf.STT_FUNC && t != debugelf.STT_NOTYPE {
				continue
			}
			if found != nil && found.Value != es.Value && found.Global() == es.Global() {
				return x, fmt.Errorf("%s has several symbols %q", f.path, name)
			}
			if found == nil || es.Global() {
				found = es
			}
		}
		if found != nil {
			return FileVariable{Move: f.base + guest.GVA(code.off-code.addr+found.Value), Size: found.Size}, nil
		}
	}
	if missing {
		return x, fmt.Errorf("%s: its table of names is not in the guest's memory", f.path)
	}
	return x, fmt.Errorf("%s has no symbol %q", f.path, name)
}
