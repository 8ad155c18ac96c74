package linux

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
)

// maxModules bounds the modules that are read. Distributions have 6,000, of which a
// machine loads about 200.
const maxModules = 1 << 12

// ModuleState is the state of a module (enum module_state).
type ModuleState uint8

// The states.
const (
	moduleLive     ModuleState = iota
	moduleComing               // formed, its init function runs or is about to
	moduleGoing                // its exit function runs
	moduleUnformed             // not yet loaded, or no longer: unusable
)

// Module is a module of a running kernel.
type Module struct {
	Addr   guest.GVA // of its struct module
	Name   string
	State  ModuleState
	Memory []ModuleMemory
}

// ModuleMemory is a range of a module's memory.
type ModuleMemory struct {
	guest.Range
	Text bool
	Init bool // freed when the module is live
}

// text reports whether addr is in the module's text.
func (x *Module) text(addr guest.GVA) bool {
	return slices.ContainsFunc(x.Memory, func(m ModuleMemory) bool { return m.Text && addr >= m.Start && addr < m.End })
}

// Modules reads the modules of a running kernel. Its methods may be called from any
// goroutine, and while the guest runs: the results are then not of a single moment.
type Modules struct {
	missing []string

	head guest.GVA // modules; 0 = not known
	f    struct{ list, state, name field }

	layouts []layout
	tree    guest.GVA // the number of changes of the tree of all modules' memory; 0 = not known
	changes field

	tables   []moduleTable
	bugEntry int // bytes
	names    bool
	symbols  struct{ in, tab, num, strings field }
	types    guest.GVA // btf_modules; 0 = not known
	btf      struct{ list, module, btf, data, size field }
}

// layout is the place of a module's memory in its struct.
type layout struct {
	base, size field // size of all, or of the text at the beginning
	text, init bool
	skip       field // size of the part at the beginning that is not included; not used if 0 wide
}

// newModules determines how to read the modules of a kernel with these types, which
// may be nil, and these symbols.
func newModules(types *Types, lookup Lookup) *Modules {
	f := &finder{types: types, lookup: lookup}
	m := &Modules{}
	if f.fields("modules", need{&m.f.list, "module.list"}, need{&m.f.state, "module.state"}, need{&m.f.name, "module.name"}) && m.findMemory(f) {
		m.head, _ = f.symbol("modules", "modules")
	}
	if m.head != 0 {
		m.findTables(f)
		// Without it a module that replaces another at its address, in the same
		// state, is not noticed.
		if m.tree, _ = f.lookup("mod_tree"); m.tree != 0 &&
			!f.fields("changes of modules", need{&m.changes, "mod_tree_root.root.seq.seqcount.sequence|mod_tree_root.root.seq.sequence"}) {
			m.tree = 0
		}
	}
	m.missing = f.missing
	return m
}

// findMemory determines where a module's memory is described: in core_layout and
// init_layout, or since 6.4 in mem, by enum mod_mem_type.
func (m *Modules) findMemory(f *finder) bool {
	if _, err := f.types.field("module.mem"); err != nil {
		for _, in := range []string{"init", "core"} {
			var base, size, text field
			if !f.fields("modules", need{&base, "module." + in + "_layout.base"}, need{&size, "module." + in + "_layout.size"},
				need{&text, "module." + in + "_layout.text_size"}) {
				return false
			}
			m.layouts = append(m.layouts, layout{base: base, size: text, text: true, init: in == "init"}, layout{base: base, size: size, skip: text, init: in == "init"})
		}
		return true
	}
	var mem, one, base, size field
	if !f.fields("modules", need{&mem, "module.mem"}, need{&one, "module_memory"}, need{&base, "module_memory.base"}, need{&size, "module_memory.size"}) {
		return false
	}
	var kinds *btf.Enum
	if err := f.types.Spec.TypeByName("mod_mem_type", &kinds); err != nil {
		f.missing = append(f.missing, "modules: the kernel's types have no enum mod_mem_type")
		return false
	}
	for _, k := range kinds.Values {
		if k.Value >= uint64(mem.Size/max(1, one.Size)) {
			continue // MOD_MEM_NUM_TYPES, MOD_INVALID
		}
		at := mem.Off + uint32(k.Value)*one.Size
		l := layout{base: base, size: size, text: strings.HasSuffix(k.Name, "_TEXT"), init: strings.HasPrefix(k.Name, "MOD_INIT_")}
		l.base.Off += at
		l.size.Off += at
		m.layouts = append(m.layouts, l)
	}
	return true
}

// MissingFeatures returns a sentence for each feature that this kernel lacks, with
// the reason.
func (m *Modules) MissingFeatures() []string { return m.missing }

// forEach calls f with each module's address and state.
func (m *Modules) forEach(read Read, f func(addr guest.GVA, state ModuleState) error) error {
	if m.head == 0 {
		return fmt.Errorf("modules are not known: %s", strings.Join(m.missing, "; "))
	}
	left := maxModules
	err := read.list(m.head, m.f.list, &left, func(addr guest.GVA) error {
		state, err := read.value(addr, m.f.state)
		if err != nil {
			return err
		}
		return f(addr, ModuleState(min(state, uint64(moduleUnformed))))
	})
	if err != nil {
		return fmt.Errorf("read the list of modules: %w", err)
	}
	return nil
}

// generation returns a number that changes when modules are loaded, are unloaded, or
// change their state. It costs two reads for each module.
func (m *Modules) generation(read Read) (uint64, error) {
	// FNV-1a, over words.
	const prime = 0x100000001b3
	g := uint64(0xcbf29ce484222325)
	if m.tree != 0 {
		n, err := read.value(m.tree, m.changes)
		if err != nil {
			return 0, err
		}
		g = (g ^ n) * prime
	}
	err := m.forEach(read, func(addr guest.GVA, state ModuleState) error {
		g = (g ^ uint64(addr) ^ uint64(state)) * prime
		return nil
	})
	return g, err
}

// readAll returns the modules that are formed, in the order of the kernel's list,
// newest first.
func (m *Modules) readAll(read Read) (all []Module, err error) {
	err = m.forEach(read, func(addr guest.GVA, state ModuleState) error {
		if state == moduleUnformed {
			return nil
		}
		x, err := m.module(addr, read)
		if err == nil {
			all = append(all, x)
		}
		return err
	})
	return all, err
}

// module reads the struct module at addr.
func (m *Modules) module(addr guest.GVA, read Read) (Module, error) {
	if m.head == 0 {
		return Module{}, fmt.Errorf("modules are not known: %s", strings.Join(m.missing, "; "))
	}
	state, err := read.value(addr, m.f.state)
	if err != nil {
		return Module{}, err
	}
	name := make([]byte, min(m.f.name.Size, maxName))
	if err := read(addr+guest.GVA(m.f.name.Off), name); err != nil {
		return Module{}, err
	}
	name, _, _ = bytes.Cut(name, []byte{0})
	x := Module{Addr: addr, Name: string(name), State: ModuleState(min(state, uint64(moduleUnformed)))}
	for i := range m.layouts {
		l := &m.layouts[i]
		base, err := read.value(addr, l.base)
		if err != nil {
			return x, err
		}
		size, err := read.value(addr, l.size)
		if err != nil {
			return x, err
		}
		skip := read.valueOrZero(addr, l.skip)
		r := guest.Range{Start: guest.GVA(base + skip), End: guest.GVA(base + size)}
		if base != 0 && r.Start < r.End && r.End-r.Start <= maxModule {
			x.Memory = append(x.Memory, ModuleMemory{Range: r, Text: l.text, Init: l.init})
		}
	}
	slices.SortFunc(x.Memory, func(a, b ModuleMemory) int { return cmp.Compare(a.Start, b.Start) })
	return x, nil
}
