package linux

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/guest/types"
)

// maxModule bounds the bytes of one of a module's ranges, and the bytes that are read of
// a module. Linux keeps all modules within 1.5 GB; the largest have 20 MB.
const maxModule = 64 << 20

// maxLoaded bounds the bytes that are read of all modules together, and nameCost is
// the cost of a name, including its entries in tables. By this count a machine's
// modules have some 100 MB.
const (
	maxLoaded = 256 << 20
	nameCost  = 384
)

// moduleTable is a table that a module keeps: a section of its file, whose address
// and number of entries are in struct module.
type moduleTable struct {
	section    string
	at, number string // members of struct module
	entry      uint64 // bytes of an entry

	f struct{ at, number field }
}

// moduleTables are the tables that are read. A kernel built without one of them lacks
// its members.
var moduleTables = []moduleTable{
	{section: "__mcount_loc", at: "ftrace_callsites", number: "num_ftrace_callsites", entry: 8},
	{section: "__jump_table", at: "jump_entries", number: "num_jump_entries", entry: 16},
	{section: ".static_call_sites", at: "static_call_sites", number: "num_static_call_sites", entry: 8},
	{section: "__ex_table", at: "extable", number: "num_exentries", entry: 12},
	{section: "__bug_table", at: "bug_table", number: "num_bugs"},
	{section: "_kprobe_blacklist", at: "kprobe_blacklist", number: "num_kprobe_blacklist", entry: 8},
	{section: ".orc_unwind_ip", at: "arch.orc_unwind_ip", number: "arch.num_orcs", entry: 4},
	{section: ".orc_unwind", at: "arch.orc_unwind", number: "arch.num_orcs", entry: 6},
	{section: ".noinstr.text", at: "noinstr_text_start", number: "noinstr_text_size", entry: 1},
	{section: ".kprobes.text", at: "kprobes_text_start", number: "kprobes_text_size", entry: 1},
}

// findTables finds the tables, the types and the names of modules.
func (m *Modules) findTables(f *finder) {
	for _, t := range moduleTables {
		at, err := f.types.field("module." + t.at)
		number, err2 := f.types.field("module." + t.number)
		if err != nil || err2 != nil {
			continue
		}
		if t.entry == 0 {
			bug, err := f.types.field("bug_entry")
			if err != nil {
				continue
			}
			t.entry, m.bugEntry = uint64(bug.Size), int(bug.Size)
		}
		t.f.at, t.f.number = at, number
		m.tables = append(m.tables, t)
	}
	s := &m.symbols
	m.names = f.fields("the names of modules", need{&s.in, "module.kallsyms"}, need{&s.tab, "mod_kallsyms.symtab"}, need{&s.num, "mod_kallsyms.num_symtab"},
		need{&s.strings, "mod_kallsyms.strtab"})
	b := &m.btf
	if f.fields("the types of modules", need{&b.list, "btf_module.list"}, need{&b.module, "btf_module.module"}, need{&b.btf, "btf_module.btf"},
		need{&b.data, "btf.data"}, need{&b.size, "btf.data_size"}) {
		m.types, _ = f.symbol("the types of modules", "btf_modules")
	}
}

// Read reads a module's memory as if it were an image of a kernel: its text, its
// names, and its tables under the names of their sections. The tables contain
// addresses of the running kernel. Data that contradicts itself is left out. It
// subtracts the module's cost, in bytes, from left, and fails if the cost is more.
func (m *Modules) Read(x Module, left *uint64, read Read) (*Kernel, error) {
	limit := min(maxModule, *left)
	r := moduleReader{read: read, module: x, mem: &elf.Memory{}, left: limit}
	defer func() { *left -= limit - r.left }()
	for _, t := range m.tables {
		at, n := read.valueOrZero(x.Addr, t.f.at), read.valueOrZero(x.Addr, t.f.number)
		if n == 0 || n > maxModule {
			continue
		}
		text := t.entry == 1
		r.add(t.section, guest.GVA(at), n*t.entry, text)
	}
	for _, mem := range x.Memory {
		if !mem.Text {
			continue
		}
		name := ".text"
		if mem.Init {
			name = ".init.text"
		}
		// Around the sections with names of their own.
		at := mem.Start
		for _, p := range slices.Clone(r.mem.Sections) {
			if p.X && guest.GVA(p.Addr) >= at && guest.GVA(p.Addr) < mem.End {
				r.add(name, at, uint64(guest.GVA(p.Addr)-at), true)
				at = guest.GVA(p.Addr) + guest.GVA(len(p.Data))
			}
		}
		r.add(name, at, uint64(mem.End-at), true)
	}
	if r.err != nil {
		return nil, fmt.Errorf("read module %s: %w", x.Name, r.err)
	}
	if m.names {
		names, err := m.readNames(&r)
		if err != nil {
			return nil, fmt.Errorf("read the names of module %s: %w", x.Name, err)
		}
		r.mem.SetNames(names)
	}
	return &Kernel{mem: r.mem, Embeds: m.names, bugEntry: m.bugEntry}, nil
}

// Types returns the types that a module adds to the kernel's, which the kernel keeps
// outside of the module (kernel/bpf/btf.c). If it has none the error is ErrNoTypes.
func (m *Modules) Types(x Module, kernel *Types, read Read) (*Types, error) {
	if m.types == 0 {
		return nil, fmt.Errorf("the types of modules are not known: %s", strings.Join(m.missing, "; "))
	}
	data, size, left := guest.GVA(0), uint64(0), maxModules
	err := read.list(m.types, m.btf.list, &left, func(at guest.GVA) error {
		if guest.GVA(read.valueOrZero(at, m.btf.module)) != x.Addr {
			return nil
		}
		btf, err := read.follow(at, m.btf.btf)
		if err != nil {
			return err
		}
		data, size = guest.GVA(read.valueOrZero(btf, m.btf.data)), read.valueOrZero(btf, m.btf.size)
		return nil
	})
	switch {
	case err != nil:
	case size == 0:
		return nil, ErrNoTypes
	case size > types.MaxBTF:
		err = fmt.Errorf("%d bytes", size)
	default:
		b := make([]byte, size)
		if err = read(data, b); err == nil {
			return readTypes(b, kernel)
		}
	}
	return nil, fmt.Errorf("read the types of module %s: %w", x.Name, err)
}

// moduleReader reads only from a module's memory.
type moduleReader struct {
	read   Read
	module Module
	mem    *elf.Memory
	left   uint64 // bytes that may be read
	err    error
}

// errOutside is returned for data that a module claims to have outside of its own
// memory.
var errOutside = errors.New("it is not in the module's memory, or too much")

// errFull is returned when the limit of bytes to read is exceeded.
var errFull = fmt.Errorf("a module of more than %d MiB, or modules that together have more than %d MiB", maxModule>>20, maxLoaded>>20)

// bytesLeft returns how many bytes from addr on are in one range of the module's
// text, or of its data.
func (r *moduleReader) bytesLeft(addr guest.GVA, text bool) uint64 {
	for _, m := range r.module.Memory {
		if addr >= m.Start && addr < m.End && m.Text == text {
			return uint64(m.End - addr)
		}
	}
	return 0
}

// bytes reads n bytes at addr.
func (r *moduleReader) bytes(addr guest.GVA, n uint64, text bool) ([]byte, error) {
	if n > r.bytesLeft(addr, text) {
		return nil, errOutside
	}
	if n > r.left {
		return nil, errFull
	}
	r.left -= n
	b := make([]byte, n)
	return b, r.read(addr, b)
}

// add reads a section. If it overlaps another one it is left out.
func (r *moduleReader) add(name string, addr guest.GVA, n uint64, text bool) {
	if n == 0 || r.err != nil {
		return
	}
	b, err := r.bytes(addr, n, text)
	if errors.Is(err, errOutside) {
		return
	}
	r.err = err
	s := &r.mem.Sections
	i, _ := slices.BinarySearchFunc(*s, uint64(addr), func(p elf.Part, at uint64) int { return cmp.Compare(p.Addr, at) })
	if i > 0 && (*s)[i-1].Addr+uint64(len((*s)[i-1].Data)) > uint64(addr) || i < len(*s) && (*s)[i].Addr < uint64(addr)+n {
		return
	}
	*s = slices.Insert(*s, i, elf.Part{Name: name, Addr: uint64(addr), Data: b, X: text})
}

// readNames reads a module's kallsyms (struct mod_kallsyms): Elf64_Sym, 24 bytes each,
// and their strings.
func (m *Modules) readNames(r *moduleReader) ([]elf.Name, error) {
	in, err := r.read.follow(r.module.Addr, m.symbols.in)
	if errors.Is(err, errNull) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	tab, num, str := guest.GVA(r.read.valueOrZero(in, m.symbols.tab)), r.read.valueOrZero(in, m.symbols.num), guest.GVA(r.read.valueOrZero(in, m.symbols.strings))
	if num > MaxNames {
		return nil, errOutside
	}
	if 24*num <= r.bytesLeft(tab, false) && num*nameCost > r.left {
		return nil, errFull
	}
	syms, err := r.bytes(tab, 24*num, false)
	if err != nil {
		return nil, err
	}
	text, err := r.bytes(str, min(r.bytesLeft(str, false), r.left), false)
	if err != nil {
		return nil, err
	}
	r.left -= min(r.left, num*nameCost)
	// Names share the string, thus a large number of names within one long name costs no more.
	all := string(text)
	var names []elf.Name
	for ; len(syms) > 0; syms = syms[24:] {
		name, section, at := le32(syms), uint16(syms[6])|uint16(syms[7])<<8, le64(syms[8:])
		if uint64(name) >= uint64(len(text)) || section == 0 {
			continue // SHN_UNDEF: another module's
		}
		b := text[name:]
		n := bytes.IndexByte(b[:min(len(b), maxName)], 0)
		if n <= 0 {
			continue
		}
		p := r.mem.PartAt(at)
		names = append(names, elf.Name{Name: all[name:][:n], Addr: at, Size: le64(syms[16:]), Func: p != nil && p.X})
	}
	return names, nil
}

// HasModule reports whether a module of that name is loaded. If it is not, why may say
// that it cannot be.
func HasModule(v *View, name string) (loaded bool, why string) {
	for _, p := range v.now.Load().pieces[1:] {
		if p.name == name {
			return true, ""
		}
	}
	if why = v.noModuleReason(name); why == "" && v.running.modules.head == 0 {
		why = "the modules of this kernel are not known"
	}
	return false, why
}

// ModuleNames returns the names of the modules that are loaded, sorted.
func ModuleNames(v *View) (names []string) {
	for _, p := range v.now.Load().pieces[1:] {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
