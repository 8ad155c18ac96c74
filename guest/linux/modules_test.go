package linux

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
)

// moduleTypes are the structures that modules are read from, as they were until 6.3 or
// are since.
func moduleTypes(old bool) []btf.Type {
	counted := []any{"state", tInt, "list", tList, "name", array(tChar, 56), "num_ftrace_callsites", tInt, "ftrace_callsites", tPtr,
		"num_exentries", tInt, "extable", tPtr, "noinstr_text_start", tPtr, "noinstr_text_size", tInt, "bug_table", tPtr, "num_bugs", tInt, "kallsyms", tPtr,
		"arch", structOf("mod_arch_specific", "num_orcs", tInt, "orc_unwind_ip", tPtr, "orc_unwind", tPtr)}
	types := []btf.Type{
		structOf("mod_kallsyms", "symtab", tPtr, "num_symtab", tInt, "strtab", tPtr),
		structOf("btf_module", "list", tList, "module", tPtr, "btf", tPtr),
		structOf("btf", "data", tPtr, "data_size", tInt),
		structOf("bug_entry", "bug_addr_disp", tInt, "line", tShort, "flags", tShort),
		structOf("mod_tree_root", "root", structOf("latch_tree_root", "seq", structOf("seqcount_t", "sequence", tInt))),
	}
	if old {
		in := structOf("module_layout", "base", tPtr, "size", tInt, "text_size", tInt)
		return append(types, structOf("module", append(counted, "core_layout", in, "init_layout", in)...))
	}
	in := structOf("module_memory", "base", tPtr, "size", tInt)
	kinds := &btf.Enum{Name: "mod_mem_type", Size: 4, Signed: true, Values: []btf.EnumValue{{Name: "MOD_RODATA", Value: 0}, {Name: "MOD_TEXT", Value: 1},
		{Name: "MOD_INIT_TEXT", Value: 2}, {Name: "MOD_MEM_NUM_TYPES", Value: 3}, {Name: "MOD_INVALID", Value: ^uint64(0)}}}
	return append(types, kinds, structOf("module", append(counted, "mem", array(in, 3))...))
}

// Where the synthetic modules are.
const (
	modBase  = guest.GVA(0xffffffffc0000000)
	modHead  = modBase + 0x10
	treeAt   = modBase + 0x20
	typeHead = modBase + 0x30
	modAt    = modBase + 0x1000 // struct module, each 0x200
	textAt   = modBase + 0x2000
	dataAt   = modBase + 0x2100
	initAt   = modBase + 0x3000
	typesAt  = modBase + 0x4000
)

// moduleMemory has the modules one, which is live, two, whose init function runs, and
// one that is not formed.
func moduleMemory(t testing.TB, old bool) (*memory, Lookup) {
	m := &memory{t: t, types: typesOf(t, moduleTypes(old)...), base: modBase, b: make([]byte, 0x8000)}
	one, two, three := modAt, modAt+0x200, modAt+0x400
	m.link(modHead, "module.list", two, one, three)
	m.set(three, "module.state", 3)
	m.set(two, "module.state", 1, "module.name", "two")
	m.set(one, "module.name", "one", "module.ftrace_callsites", dataAt, "module.num_ftrace_callsites", 2,
		"module.extable", dataAt+0x10, "module.num_exentries", 1, "module.bug_table", dataAt+0x20, "module.num_bugs", 2,
		"module.arch.orc_unwind_ip", dataAt-4, "module.arch.num_orcs", 1, // not in its data
		"module.noinstr_text_start", textAt+0x40, "module.noinstr_text_size", 0x10, "module.kallsyms", typesAt+0x1000)
	if old {
		m.set(one, "module.core_layout.base", textAt, "module.core_layout.size", 0x200, "module.core_layout.text_size", 0x100)
		m.set(two, "module.core_layout.base", textAt+0x400, "module.core_layout.size", 0x100, "module.core_layout.text_size", 0x100,
			"module.init_layout.base", initAt, "module.init_layout.size", 0x80, "module.init_layout.text_size", 0x80)
	} else {
		mem, _ := m.types.field("module.mem")
		set := func(mod guest.GVA, kind int, base guest.GVA, size int) {
			m.set(mod+guest.GVA(int(mem.Off)+kind*12), "module_memory.base", base, "module_memory.size", size)
		}
		set(one, 1, textAt, 0x100)
		set(one, 0, dataAt, 0x100)
		set(two, 1, textAt+0x400, 0x100)
		set(two, 2, initAt, 0x80)
	}
	for i := range 0x100 {
		m.put(textAt+guest.GVA(i), []byte{byte(i)})
	}
	m.put(dataAt, words(uint32(textAt&0xffffffff), uint32(textAt>>32), uint32(textAt&0xffffffff)+0x20, uint32(textAt>>32)))
	m.put(dataAt+0x10, words(^uint32(dataAt+0x10-(textAt+0x24))+1, 0, 0))
	// A bug in text that is gone, and one that is there.
	m.put(dataAt+0x20, words(0x10000, 0, ^uint32(dataAt+0x28-(textAt+0x60))+1, 0))
	// Two names of its own, one of another module, one that is not in the strings.
	m.set(typesAt+0x1000, "mod_kallsyms.symtab", dataAt+0x40, "mod_kallsyms.num_symtab", 5, "mod_kallsyms.strtab", dataAt+0xe0)
	m.put(dataAt+0x40, words(0, 0, 0, 0, 0, 0))
	m.put(dataAt+0x58, words(1, 1<<16, uint32(textAt&0xffffffff)+0x20, uint32(textAt>>32), 7, 0))
	m.put(dataAt+0x70, words(4, 2<<16, uint32(dataAt&0xffffffff), uint32(dataAt>>32), 8, 0))
	m.put(dataAt+0x88, words(1, 0, uint32(textAt&0xffffffff), uint32(textAt>>32), 7, 0))
	m.put(dataAt+0xa0, words(0x21, 1<<16, uint32(textAt&0xffffffff), uint32(textAt>>32), 7, 0))
	m.put(dataAt+0xe0, []byte("\x00fn\x00var\x00"))

	raw := marshal(t, moduleTypes(old)...)
	split := rawTypes(words(le.Uint32(raw[20:]), 4<<24, 24), []byte("mine\x00"))
	m.link(typeHead, "btf_module.list", typesAt, typesAt+0x40)
	m.set(typesAt, "btf_module.module", two)
	m.set(typesAt+0x40, "btf_module.module", one, "btf_module.btf", typesAt+0x80)
	m.set(typesAt+0x80, "btf.data", typesAt+0x100, "btf.data_size", len(split))
	m.put(typesAt+0x100, split)
	return m, symbols(map[string]guest.GVA{"modules": modHead, "mod_tree": treeAt, "btf_modules": typeHead})
}

func TestModules(t *testing.T) {
	for _, old := range []bool{true, false} {
		m, lookup := moduleMemory(t, old)
		ms := newModules(m.types, lookup)
		if ms.MissingFeatures() != nil {
			t.Error(ms.MissingFeatures())
		}
		all, err := ms.readAll(m.read)
		want := []Module{
			{Addr: modAt + 0x200, Name: "two", State: moduleComing, Memory: []ModuleMemory{
				{Range: guest.Range{Start: textAt + 0x400, End: textAt + 0x500}, Text: true},
				{Range: guest.Range{Start: initAt, End: initAt + 0x80}, Text: true, Init: true},
			}},
			{Addr: modAt, Name: "one", State: moduleLive, Memory: []ModuleMemory{
				{Range: guest.Range{Start: textAt, End: textAt + 0x100}, Text: true}, {Range: guest.Range{Start: dataAt, End: dataAt + 0x100}}}},
		}
		if err != nil || !reflect.DeepEqual(all, want) {
			t.Fatalf("old %v: %v\ngot  %+v\nwant %+v", old, err, all, want)
		}
		left := uint64(maxLoaded)
		k, err := ms.Read(all[1], &left, m.read)
		if err != nil {
			t.Fatal(err)
		}
		var sections []elf.Part
		for _, p := range k.mem.Sections {
			if p.X && p.Data[0] != byte(p.Addr) {
				t.Errorf("text %s at %#x begins with %#x", p.Name, p.Addr, p.Data[0])
			}
			sections = append(sections, elf.Part{Name: p.Name, Addr: uint64(len(p.Data))<<48 | p.Addr&0xffff, X: p.X})
		}
		if want := []elf.Part{{Name: ".text", Addr: 0x0040_0000_0000_2000, X: true}, {Name: ".noinstr.text", Addr: 0x0010_0000_0000_2040, X: true},
			{Name: ".text", Addr: 0x00b0_0000_0000_2050, X: true}, {Name: "__mcount_loc", Addr: 0x0010_0000_0000_2100}, {Name: "__ex_table", Addr: 0x000c_0000_0000_2110}, {Name: "__bug_table", Addr: 0x0010_0000_0000_2120}}; !reflect.DeepEqual(sections, want) {
			t.Errorf("got  %+v\nwant %+v", sections, want)
		}
		if want := []elf.Name{{Name: "fn", Addr: uint64(textAt + 0x20), Size: 7, Func: true}, {Name: "var", Addr: uint64(dataAt), Size: 8}}; !slices.Equal(k.mem.Names, want) {
			t.Errorf("got  %+v\nwant %+v", k.mem.Names, want)
		}
		s, err := k.Sites()
		if err != nil {
			t.Fatal(err)
		}
		if want := []site{{uint64(textAt), 5, Ftrace}, {uint64(textAt + 0x20), 5, Ftrace}, {uint64(textAt + 0x60), 5, Bug}}; !slices.Equal(s.sites, want) {
			t.Errorf("got  %+v\nwant %+v", s.sites, want)
		}
		if x := s.exceptions; len(x) != 1 || !s.Exception(uint64(textAt+0x24)) {
			t.Errorf("exceptions %v", x)
		}
		types, err := ms.Types(all[1], m.types, m.read)
		if err != nil {
			t.Fatal(err)
		}
		if f, err := types.field("mine"); err != nil || f.Size != 24 {
			t.Errorf("%+v, %v", f, err)
		}
		if _, err := ms.Types(all[0], m.types, m.read); err == nil {
			t.Error("module two has types")
		}
	}
}

// TestModulesGeneration: another number for each change, and only then.
func TestModulesGeneration(t *testing.T) {
	m, lookup := moduleMemory(t, false)
	ms := newModules(m.types, lookup)
	seen := map[uint64]string{}
	look := func(what string) {
		t.Helper()
		g, err := ms.generation(m.read)
		if again, err := ms.generation(m.read); err != nil || again != g {
			t.Errorf("%s: %d, then %d, %v", what, g, again, err)
		}
		if err != nil || seen[g] != "" {
			t.Errorf("%s: as %q, %v", what, seen[g], err)
		}
		seen[g] = what
	}
	look("three")
	m.set(modAt+0x200, "module.state", 0)
	look("two is live")
	m.link(modHead, "module.list", modAt+0x200, modAt)
	look("three is gone")
	m.link(modHead, "module.list", modAt)
	look("two is gone")
	m.set(treeAt, "mod_tree_root.root.seq.sequence", 2)
	look("another one at its place")
	m.set(modAt, "module.list.next", 8)
	if _, err := ms.generation(m.read); !errors.Is(err, errNoMemory) {
		t.Errorf("a broken list: %v", err)
	}
}

// TestModulesMissing: what a kernel lacks switches off what needs it.
func TestModulesMissing(t *testing.T) {
	m, _ := moduleMemory(t, true)
	for _, c := range []struct {
		types   *Types
		symbols map[string]guest.GVA
		want    []string
	}{
		{nil, map[string]guest.GVA{"modules": modHead}, []string{"modules: the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"}},
		{m.types, nil, []string{"modules: the kernel has no symbol modules"}},
		{m.types, map[string]guest.GVA{"modules": modHead}, []string{"the types of modules: the kernel has no symbol btf_modules"}},
		{typesOf(t, structOf("module", "list", tList, "state", tInt, "name", tInt)), map[string]guest.GVA{"modules": modHead},
			[]string{"modules: the kernel's types have no module.init_layout.base: no member init_layout"}},
	} {
		ms := newModules(c.types, symbols(c.symbols))
		if !slices.Equal(ms.MissingFeatures(), c.want) {
			t.Errorf("got  %q\nwant %q", ms.MissingFeatures(), c.want)
		}
		if _, err := ms.readAll(m.read); (err == nil) != (ms.head != 0) {
			t.Errorf("%q: %v", c.want, err)
		}
		if _, err := ms.Types(Module{}, c.types, m.read); err == nil {
			t.Errorf("%q: types", c.want)
		}
	}
}

// FuzzModules: whatever is in memory, reads stay within the module.
func FuzzModules(f *testing.F) {
	f.Add(uint16(0x1000), []byte{1, 2, 3, 4, 5, 6, 7, 8}, uint16(0x1100), []byte{0})
	f.Add(uint16(0x1060), []byte{0xff, 0xff, 0xff, 0xff}, uint16(0x2158), []byte{0, 1, 2, 3})
	m, lookup := moduleMemory(f, false)
	ms := newModules(m.types, lookup)
	f.Fuzz(func(t *testing.T, at uint16, b []byte, at2 uint16, b2 []byte) {
		x := &memory{t: t, types: m.types, base: m.base, b: slices.Clone(m.b)}
		copy(x.b[int(at)%len(x.b):], b)
		copy(x.b[int(at2)%len(x.b):], b2)
		ms.generation(x.read)
		all, _ := ms.readAll(x.read)
		for _, mod := range all {
			ms.Types(mod, m.types, x.read)
			left := uint64(maxLoaded)
			k, err := ms.Read(mod, &left, x.read)
			if err != nil {
				continue
			}
			end := uint64(0)
			for _, p := range k.mem.Sections {
				if p.Addr < end || !slices.ContainsFunc(mod.Memory, func(r ModuleMemory) bool {
					return uint64(r.Start) <= p.Addr && p.Addr+uint64(len(p.Data)) <= uint64(r.End)
				}) {
					t.Errorf("%s at %#x, %d bytes, of %+v", p.Name, p.Addr, len(p.Data), mod)
				}
				end = p.Addr + uint64(len(p.Data))
			}
			_, _ = k.Sites()
		}
	})
}
