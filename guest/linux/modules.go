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
// machine loads 200.
const maxModules = 1 << 12

// ModuleState is where a module is in its life (enum module_state).
type ModuleState uint8

// The states.
const (
	ModuleLive     ModuleState = iota
	ModuleComing               // formed, its init function runs or is about to
	ModuleGoing                // its exit function runs
	ModuleUnformed             // not yet loaded, or no longer: nothing of it can be used
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
	Init bool // gone when the module is live
}

// text reports whether addr is text of the module's.
func (x *Module) text(addr guest.GVA) bool {
	return slices.ContainsFunc(x.Memory, func(m ModuleMemory) bool { return m.Text && addr >= m.Start && addr < m.End })
}

// Modules reads the modules of a running kernel. Its methods may be called from any
// goroutine, and while the guest runs: what they return is then of several moments.
type Modules struct {
	missing []string

	head guest.GVA // modules; 0 = not known
	f    struct{ list, state, name Field }

	layouts []layout
	tree    guest.GVA // the number of changes of the tree of all modules' memory; 0 = none
	changes Field

	tables   []moduleTable
	bugEntry int // bytes
	names    bool
	symbols  struct{ in, tab, num, strings Field }
	types    guest.GVA // btf_modules; 0 = not known
	btf      struct{ list, module, btf, data, size Field }
}

// layout is where a module says that it has memory.
type layout struct {
	base, size Field // size of all, or of the text at the beginning
	text, init bool
	skip       Field // size of what at the beginning is not this; none if 0 wide
}

// NewModules finds out how to read the modules of a kernel with these types, which may
// be nil, and these symbols.
func NewModules(types *Types, lookup Lookup) *Modules {
	f := &finder{types: types, lookup: lookup}
	m := &Modules{}
	if f.fields("modules", need{&m.f.list, "module.list"}, need{&m.f.state, "module.state"}, need{&m.f.name, "module.name"}) && m.findMemory(f) {
		m.head, _ = f.symbol("modules", "modules")
	}
	if m.head != 0 {
		m.findTables(f)
		// Without it a module that is replaced by another at its address, with its state,
		// is not noticed.
		if m.tree, _ = f.lookup("mod_tree"); m.tree != 0 &&
			!f.fields("changes of modules", need{&m.changes, "mod_tree_root.root.seq.seqcount.sequence|mod_tree_root.root.seq.sequence"}) {
			m.tree = 0
		}
	}
	m.missing = f.missing
	return m
}

// findMemory finds where a module's memory is: in core_layout and init_layout, or since
// 6.4 in mem, by enum mod_mem_type.
func (m *Modules) findMemory(f *finder) bool {
	if _, err := f.types.Field("module.mem"); err != nil {
		for _, in := range []string{"init", "core"} {
			var base, size, text Field
			if !f.fields("modules", need{&base, "module." + in + "_layout.base"}, need{&size, "module." + in + "_layout.size"},
				need{&text, "module." + in + "_layout.text_size"}) {
				return false
			}
			m.layouts = append(m.layouts, layout{base: base, size: text, text: true, init: in == "init"}, layout{base: base, size: size, skip: text, init: in == "init"})
		}
		return true
	}
	var mem, one, base, size Field
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

// Missing returns a sentence for each feature that this kernel does not have, with the
// reason.
func (m *Modules) Missing() []string { return m.missing }

// each calls f with each module's address and state.
func (m *Modules) each(read Read, f func(addr guest.GVA, state ModuleState) error) error {
	if m.head == 0 {
		return fmt.Errorf("modules are not known: %s", strings.Join(m.missing, "; "))
	}
	left := maxModules
	err := read.list(m.head, m.f.list, &left, func(addr guest.GVA) error {
		state, err := read.value(addr, m.f.state)
		if err != nil {
			return err
		}
		return f(addr, ModuleState(min(state, uint64(ModuleUnformed))))
	})
	if err != nil {
		return fmt.Errorf("read the list of modules: %w", err)
	}
	return nil
}

// Generation returns a number that is another one when modules have come, have gone,
// or are in another state. It costs two reads for each module.
func (m *Modules) Generation(read Read) (uint64, error) {
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
	err := m.each(read, func(addr guest.GVA, state ModuleState) error {
		g = (g ^ uint64(addr) ^ uint64(state)) * prime
		return nil
	})
	return g, err
}

// All returns the modules that are formed, in the order of the kernel's list, newest
// first.
func (m *Modules) All(read Read) (all []Module, err error) {
	err = m.each(read, func(addr guest.GVA, state ModuleState) error {
		if state == ModuleUnformed {
			return nil
		}
		x, err := m.Module(addr, read)
		if err == nil {
			all = append(all, x)
		}
		return err
	})
	return all, err
}

// Module reads the struct module at addr.
func (m *Modules) Module(addr guest.GVA, read Read) (Module, error) {
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
	x := Module{Addr: addr, Name: string(name), State: ModuleState(min(state, uint64(ModuleUnformed)))}
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
