package linux

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// running1 is a small kernel that runs, with the synthetic modules and tasks.
func running1(t *testing.T, m *memory, lookup Lookup) *booted {
	b := boot1(t, 0, "")
	b.read = func(addr guest.GVA, p []byte) error {
		if err := b.readAt(addr, p); err == nil {
			return nil
		}
		return m.read(addr, p)
	}
	b.running = &running{types: m.types, tasks: newTasks(m.types, lookup), modules: newModules(m.types, lookup), kprobes: newKprobes(m.types, lookup)}
	return b
}

// TestRefreshModules: modules come, change and go.
func TestRefreshModules(t *testing.T) {
	m, lookup := moduleMemory(t, false)
	v := running1(t, m, lookup)
	refresh := func(what string, want bool) {
		t.Helper()
		if changed, err := v.RefreshModules(); err != nil || changed != want {
			t.Errorf("%s: changed %v, %v", what, changed, err)
		}
	}
	refresh("before there are any", false)
	v.setState(StateRunning)
	v.Refresh()
	refresh("at first", true)
	fn := textAt + guest.GVA(0x20)
	s, err := v.Lookup("one:fn")
	if err != nil || s.Addr != fn || s.Size != 7 || s.Kind != guest.SymFunc {
		t.Errorf("one:fn: %+v, %v", s, err)
	}
	if v.Module(fn) != "one" || !v.IsText(fn) || v.IsText(dataAt) || v.FixedReason(fn, fn+1) != "ftrace" || v.Entry(fn) != fn+5 {
		t.Errorf("fn is in module %q, text %v and %v, %q, entry %v", v.Module(fn), v.IsText(fn), v.IsText(dataAt), v.FixedReason(fn, fn+1), v.Entry(fn))
	}
	if !v.IsText(initAt) {
		t.Error("what module two starts with is no text")
	}
	if types, err := v.moduleTypes("one"); err != nil || types == nil {
		t.Errorf("types: %v", err)
	}
	if _, err := v.moduleTypes("three"); !errors.Is(err, guest.ErrSymbolNotFound) {
		t.Errorf("types of no module: %v", err)
	}
	refresh("again", false)

	one := v.now.Load().piece(fn)
	mem, _ := m.types.field("module.mem")
	m.set(modAt+0x200, "module.state", 0)
	refresh("two is live", true)
	refresh("two is live and has what it started with", false)
	if !v.IsText(initAt) {
		t.Error("what module two starts with is no text before it is freed")
	}
	m.set(modAt+0x200+guest.GVA(mem.Off+2*12), "module_memory.base", 0, "module_memory.size", 0)
	refresh("two has freed what it started with", true)
	refresh("nothing more happens", false)
	if v.IsText(initAt) {
		t.Error("what module two started with is still text")
	}
	if v.now.Load().piece(fn) != one {
		t.Error("module one was read again")
	}

	// What the tables of before say is not asked when memory may be written.
	freed := func(what string, want bool) {
		t.Helper()
		if got := v.FreedText(fn); got != want || !v.IsText(fn) {
			t.Errorf("%s: freed %v", what, got)
		}
	}
	freed("at first", false)
	m.set(treeAt, "mod_tree_root.root.seq.sequence", 2)
	freed("another came or went", false)
	m.set(modAt, "module.state", 3)
	freed("one is being freed", true)
	m.set(modAt, "module.state", 2)
	freed("one ends", false)
	m.set(modAt+guest.GVA(mem.Off+12), "module_memory.base", textAt+0x1000)
	freed("another one is there", true)
	m.set(modAt+guest.GVA(mem.Off+12), "module_memory.base", textAt)
	m.link(modHead, "module.list", modAt+0x200)
	freed("it is not in the list", true)
	if v.FreedText(textAt + 0x400) {
		t.Error("module two is there")
	}
	// In the middle of RefreshModules: the list is new, but the names are still the
	// old ones.
	known := v.running.known.Load()
	v.running.known.Store(&moduleList{all: slices.DeleteFunc(slices.Clone(known.all), func(x Module) bool { return x.Addr == modAt }), changes: 2})
	freed("its names are still known", true)
	v.running.known.Store(known)
	refresh("one is gone", true)
	if _, err := v.Lookup("one:fn"); !errors.Is(err, guest.ErrModuleNotFound) || v.IsText(fn) || !v.FreedText(fn) {
		t.Errorf("one:fn: %v", err)
	}
	if _, err := v.Lookup("two:fn"); !errors.Is(err, guest.ErrSymbolNotFound) || errors.Is(err, guest.ErrModuleNotFound) {
		t.Errorf("two:fn: %v", err)
	}
	for name, want := range map[string]string{
		"traced:fn": "traced is a function of the kernel", "fork.c:fn": "fork.c is no module's name", "o*:fn": "o* is no module's name", "three:fn": "",
	} {
		_, err := v.Lookup(name)
		if !strings.HasPrefix(guest.Advice(err), want) || errors.Is(err, guest.ErrModuleNotFound) != (want == "") || !errors.Is(err, guest.ErrSymbolNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"traced": "traced is a function of the kernel", "fork.c": "fork.c is no module's name", "one": "",
	} {
		if loaded, why := HasModule(v.View, name); loaded || !strings.HasPrefix(why, want) || (why == "") != (want == "") {
			t.Errorf("module %s: %v, %s", name, loaded, why)
		}
	}
	if loaded, why := HasModule(v.View, "two"); !loaded || why != "" {
		t.Errorf("module two: %v, %s", loaded, why)
	}
	m.set(modAt+0x200, "module.list.next", 8)
	if _, err := v.RefreshModules(); !errors.Is(err, errNoMemory) {
		t.Errorf("a broken list: %v", err)
	}
	if !v.IsText(textAt + 0x400) {
		t.Error("module two is gone with the list")
	}
}

// TestManyModules: modules that all have the same memory are read as far as all of them
// together may be.
func TestManyModules(t *testing.T) {
	m, lookup := moduleMemory(t, false)
	v := running1(t, m, lookup)
	v.setState(StateRunning)
	v.Refresh()
	const size = 50 << 20
	read, bytes := v.read, uint64(0)
	v.read = func(addr guest.GVA, p []byte) error {
		if len(p) == size {
			bytes += size
			return nil
		}
		return read(addr, p)
	}
	mem, _ := m.types.field("module.mem")
	text := mem.Off + 12
	var at []guest.GVA
	for i := range 8 {
		a := modBase + 0x5000 + guest.GVA(i)*0x200
		m.set(a, "module.name", string(rune('a'+i)))
		m.set(a+guest.GVA(text), "module_memory.base", guest.GVA(0xffffffffc8000000), "module_memory.size", size)
		at = append(at, a)
	}
	m.link(modHead, "module.list", at...)
	if changed, err := v.RefreshModules(); !changed || !errors.Is(err, errFull) || bytes != maxLoaded/size*size {
		t.Errorf("changed %v, %v: %d bytes were read", changed, err, bytes)
	}
	// Those that are there count when others come.
	m.set(treeAt, "mod_tree_root.root.seq.sequence", 2)
	if _, err := v.RefreshModules(); !errors.Is(err, errFull) || bytes != maxLoaded/size*size || len(v.running.loaded) != maxLoaded/size {
		t.Errorf("again: %v: %d bytes were read, of %d modules", err, bytes, len(v.running.loaded))
	}
}

// TestViewTasks: the list of tasks, including one that is longer than the limit, or
// broken.
func TestViewTasks(t *testing.T) {
	m, lookup := taskMemory(t)
	v := running1(t, m, lookup)
	for limit, more := range map[int]bool{2: true, 3: false} {
		if tasks, got, err := v.Tasks(limit); err != nil || len(tasks) != limit || got != more {
			t.Errorf("of at most %d: %d, more %v, %v", limit, len(tasks), got, err)
		}
	}
	if p, err := v.Profile(); err != nil || p.TaskOff != hotAt {
		t.Errorf("%+v, %v", p, err)
	}
	m.set(initTask, "task_struct.tasks.next", 0)
	if _, _, err := v.Tasks(10); !errors.Is(err, errNoMemory) {
		t.Errorf("a broken list: %v", err)
	}
}

// TestModuleKprobes: kprobes of the kernel's own that have waited for a module are in its text before the module is seen; its code is
// known without them, and so is code whose kprobes came without a word.
func TestModuleKprobes(t *testing.T) {
	m, lookup := moduleMemory(t, false)
	v := running1(t, m, lookup)
	const table, first = modBase + 0x6000, modBase + 0x6800
	v.running.kprobes = &kprobes{table: table, link: field{Off: 0, Size: 8}, addr: field{Off: 16, Size: 8}, code: field{Off: 24, Size: 1}}
	fn := textAt + guest.GVA(0x20)
	arm := func(n int, at guest.GVA) {
		k := first + guest.GVA(n*0x40)
		m.put(k, words(0, 0, 0, 0, uint32(at&0xffffffff), uint32(at>>32), uint32(at-textAt), 0)) // the text's bytes are their offsets
		m.put(table+guest.GVA(8*n), words(uint32(k&0xffffffff), uint32(k>>32)))
		m.put(at, []byte{0xcc})
	}
	v.setState(StateRunning)
	v.Refresh()
	if b := v.Code(fn, 1); b != nil {
		t.Fatalf("there is code: % x", b)
	}
	v.restoreDisplaced(fn, []byte{0}) // kprobes are read before there are any
	arm(0, fn)
	arm(1, fn+3)
	if _, err := v.RefreshModules(); err != nil {
		t.Fatal(err)
	}
	want := []byte{0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26}
	if b := v.now.Load().piece(fn).initialBytes(fn, 7); !bytes.Equal(b, want) {
		t.Errorf("the module began with % x, want % x", b, want)
	}
	arm(2, fn+5)
	if b := v.Code(fn, 7); !bytes.Equal(b, want) {
		t.Errorf("its code is % x, want % x", b, want)
	}
	m.put(fn+3, []byte{0x23}) // switched off
	if b := v.Code(fn+3, 4); !bytes.Equal(b, want[3:]) {
		t.Errorf("its code is % x, want % x", b, want[3:])
	}
}
