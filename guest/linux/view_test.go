package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
	"github.com/guestprobe/guestprobe/probe"
)

// A View is what the engine asks of a kernel.
var (
	_ probe.Symbols = (*View)(nil)
	_ probe.Image   = (*View)(nil)
	_ probe.Kernel  = (*View)(nil)
)

// booted is a small kernel in memory, before its first instruction.
type booted struct {
	*View
	t     testing.TB
	ram   []byte
	slide guest.GVA
}

func boot1(t testing.TB, slide uint64, cmdline string) *booted {
	t.Helper()
	k, err := Parse(kerneltest.BzImage(kerneltest.Kernel(kerneltest.Layouts[3])))
	if err != nil {
		t.Fatal(err)
	}
	mem := ram(t, minRAM)
	st, err := Boot(mem, k, BootOptions{RAM: minRAM, Slide: &slide, Cmdline: cmdline})
	if err != nil {
		t.Fatal(err)
	}
	b := &booted{t: t, slide: guest.GVA(slide)}
	b.ram, _ = mem.Slice(0, minRAM)
	if b.View, err = NewView(k, st, b.readAt); err != nil {
		t.Fatal(err)
	}
	return b
}

// readAt reads memory at an address of the kernel's.
func (b *booted) readAt(addr guest.GVA, p []byte) error {
	off := uint64(addr-b.slide) - KernelMap
	if off >= uint64(len(b.ram)) || copy(p, b.ram[off:]) != len(p) {
		return errors.New("not mapped")
	}
	return nil
}

// fn is the address of function n.
func (b *booted) fn(n int) guest.GVA { return kerneltest.Base + guest.GVA(n)*16 + b.slide }

// setState makes the kernel say how far it is.
func (b *booted) setState(s SystemState) {
	binary.LittleEndian.PutUint32(b.ram[kerneltest.State-KernelMap:], uint32(s))
}

func TestView(t *testing.T) {
	for _, slide := range []uint64{0, 0x1460_0000} {
		b := boot1(t, slide, "")
		if got := b.MissingFeatures(); len(got) != 2 || !strings.HasPrefix(got[0], "stacks: the kernel has no ORC tables") || !strings.HasPrefix(got[1], "types, tasks, modules and files: the kernel has no BTF") {
			t.Errorf("missing: %q", got)
		}
		init := guest.GVA(kerneltest.InitText) + b.slide
		for name, want := range map[string]guest.Symbol{
			"traced":      {Name: "traced", Addr: b.fn(0), Size: 16, Kind: guest.SymFunc, Global: true, Section: ".text"},
			"hidden.cold": {Name: "hidden.cold", Addr: b.fn(7), Size: 16, Kind: guest.SymFunc, Global: true, Section: ".text"},
			"init_plain":  {Name: "init_plain", Addr: init + 16, Size: 16, Kind: guest.SymFunc, Global: true, Section: ".init.text"},
		} {
			got, err := b.Lookup(name)
			if err != nil || got != want {
				t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
			}
			if at, ok := b.Find(got.Addr + 15); !ok || at.Name != name {
				t.Errorf("%v is in %q", got.Addr+15, at.Name)
			}
		}
		if _, err := b.Lookup("none"); !errors.Is(err, guest.ErrSymbolNotFound) {
			t.Errorf("none: %v", err)
		}
		if _, ok := b.Find(b.fn(0) - 1); ok {
			t.Error("something is before the kernel")
		}
		if got := b.Match("hidd*"); len(got) != 2 || got[1].Name != "hidden.cold" {
			t.Errorf("hidd*: %+v", got)
		}
		if all := b.Symbols(); len(all) < 614 || !slices.IsSortedFunc(all, func(a, b guest.Symbol) int { return int(int64(a.Addr) - int64(b.Addr)) }) {
			t.Errorf("%d symbols, or not sorted", len(all))
		}
		// Bytes are the guest's, structure the image's.
		b.ram[uint64(b.fn(20)-b.slide)-KernelMap] = 0x40
		if c := b.Code(b.fn(20), 3); !bytes.Equal(c, []byte{0x40, 0x90, 0x90}) {
			t.Errorf("code % x", c)
		}
		if c := b.Code(b.fn(599)+14, 100); len(c) != 2 {
			t.Errorf("%d bytes at the end of the text", len(c))
		}
		if c := b.Code(kerneltest.Rodata+b.slide, 4); c != nil {
			t.Errorf("code of read-only data: % x", c)
		}
		word := binary.LittleEndian.AppendUint64(nil, uint64(b.fn(4)))
		if c := b.Constant(kerneltest.Black+b.slide, 8); !bytes.Equal(c, word) {
			t.Errorf("a relocated constant is % x, want % x", c, word)
		}
		if c := b.Constant(kerneltest.Black+b.slide+4, 4); slide != 0 && c != nil {
			t.Errorf("half of a relocated constant is % x", c)
		}
		if c := b.Constant(b.fn(0), 4); c != nil {
			t.Errorf("text as a constant: % x", c)
		}
	}
}

// TestFixed: the places that the kernel rewrites, during and after boot.
func TestFixed(t *testing.T) {
	for _, tt := range []struct {
		name        string
		cmdline     string
		fn, at, n   int
		early, late string
	}{
		{"ftrace", "", 0, 0, 1, "ftrace", "ftrace"},
		{"the end of ftrace", "", 0, 4, 1, "ftrace", "ftrace"},
		{"behind ftrace", "", 0, 5, 11, "", ""},
		{"before and into it", "", 2, -3, 4, "jump_label", "jump_label"},
		{"jump label", "", 2, 0, 5, "jump_label", "jump_label"},
		{"static call", "", 3, 2, 1, "static_call", "static_call"},
		{"bug", "", 13, 0, 1, "bug", "bug"},
		{"alternative", "", 9, 2, 1, "alternative", ""},
		{"behind it", "", 9, 3, 8, "", ""},
		{"lock", "", 11, 0, 1, "smp_lock", ""},
		{"lock, CPUs come later", "quiet maxcpus=1", 11, 0, 1, "smp_lock", "smp_lock"},
		{"lock, no SMP", "nosmp", 11, 0, 1, "smp_lock", "smp_lock"},
		{"constant", "", 14, 9, 1, "runtime_const", "runtime_const"},
		{"return", "", 12, 8, 2, "return", ""},
		{"nothing", "", 15, 0, 16, "", ""},
	} {
		b := boot1(t, 0x40_0000, tt.cmdline)
		lo := b.fn(tt.fn) + guest.GVA(tt.at)
		hi := lo + guest.GVA(tt.n)
		if got := b.FixedReason(lo, hi); got != tt.early {
			t.Errorf("%s: %q while it starts, want %q", tt.name, got, tt.early)
		}
		b.setState(StateScheduling)
		changed, again := b.Refresh(), b.Refresh()
		if s, known := b.System(); !changed || again || s != StateScheduling || !known {
			t.Errorf("%s: state %v, changed %v, again %v", tt.name, s, changed, again)
		}
		if got := b.FixedReason(lo, hi); got != tt.late {
			t.Errorf("%s: %q when it has started, want %q", tt.name, got, tt.late)
		}
		b.setState(StateBooting)
		if b.Refresh() {
			t.Errorf("%s: it has gone back", tt.name)
		}
		if tt.late != "runtime_const" {
			continue
		}
		b.setState(StateFreeing)
		if got := b.FixedReason(lo, hi); !b.Refresh() || b.FixedReason(lo, hi) != "" {
			t.Errorf("%s: %q when its initcalls have run", tt.name, got)
		}
	}
}

// TestFreedText: text that only runs at boot is not text afterwards.
func TestFreedText(t *testing.T) {
	b := boot1(t, 0x20_0000, "")
	s, err := b.Lookup("init_plain")
	if err != nil {
		t.Fatal(err)
	}
	inText := func() bool {
		return slices.ContainsFunc(b.Text(false), func(r guest.Range) bool { return s.Addr >= r.Start && s.Addr < r.End })
	}
	if !b.IsText(s.Addr) || !inText() || b.Code(s.Addr, 1) == nil || b.BlacklistReason(s.Addr) != "" {
		t.Error("it is no text at the start")
	}
	b.setState(StateFreeing)
	if b.IsText(s.Addr) || b.Refresh() || inText() || b.Code(s.Addr, 1) != nil || !strings.HasPrefix(b.BlacklistReason(s.Addr), "its memory was given back") {
		t.Error("it is still text")
	}
	if !b.IsText(b.fn(0)) || b.Text(true) != nil || b.IsUserText(b.fn(0)) {
		t.Error("the rest of the text")
	}
}

func TestEntry(t *testing.T) {
	b := boot1(t, 0x20_0000, "")
	init := guest.GVA(kerneltest.InitText) + b.slide
	for addr, want := range map[guest.GVA]guest.GVA{b.fn(0): 5, b.fn(1): 0, b.fn(2): 0, init: 0, init + 4: 5, 0x1000: 0} {
		if got := b.Entry(addr); got != addr+want {
			t.Errorf("%v: the entry is at %v", addr, got)
		}
	}
	for addr, want := range map[guest.GVA]string{b.fn(4): "listed in _kprobe_blacklist", b.fn(7): "part of hidden, listed in _kprobe_blacklist", b.fn(5): "", 0x1000: "",
		b.fn(15): tracerCode, b.fn(16): tracerCode, b.fn(17): "the kernel copies it to where it runs (kexec)"} {
		if got := b.BlacklistReason(addr); got != want {
			t.Errorf("%v: %q, want %q", addr, got, want)
		}
	}
	if !b.Exception(b.fn(1)) || b.Exception(b.fn(1)+1) || b.Exception(b.fn(2)) {
		t.Error("exception table")
	}
	// The exception, the static branch, the alternative.
	for lo, want := range map[guest.GVA]guest.GVA{b.fn(1): b.fn(1) + 9, b.fn(2): b.fn(2) + 12, b.fn(10): b.fn(10), b.fn(11): 0} {
		if got := b.Edges(lo, lo+16); len(got) != 1 && want != 0 || len(got) > 0 && got[0] != want {
			t.Errorf("edges of %v: %v, want %v", lo, got, want)
		}
	}
}

// TestViewOfModules: modules come and go.
func TestViewOfModules(t *testing.T) {
	b := boot1(t, 0, "")
	const at = 0xffff_ffff_c000_0000
	module := func(addr uint64, name string) *Kernel {
		m := &elf.Memory{Sections: []elf.Part{
			{Name: ".text", Addr: addr, Data: bytes.Repeat([]byte{0x90}, 64), X: true},
			{Name: mCount, Addr: addr + 0x1000, Data: binary.LittleEndian.AppendUint64(nil, addr+32)},
		}}
		m.SetNames([]elf.Name{{Name: name, Addr: addr, Func: true}, {Name: "both", Addr: addr + 32, Func: true}, {Name: "traced", Addr: addr + 48, Func: true}})
		return &Kernel{mem: m}
	}
	one, two := module(at, "one"), module(at+0x10_0000, "two")
	// Since 6.4 the parts of a module are apart: another one's may be between.
	one.mem.Sections[1].Addr = at + 0x20_0000
	if err := b.setModules(map[string]*Kernel{"m1": one, "m2": two}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]guest.GVA{"one": at, "m1:one": at, "m2:both": at + 0x10_0020, "traced": b.fn(0), "m1:traced": at + 48} {
		if s, err := b.Lookup(name); err != nil || s.Addr != want {
			t.Errorf("%s: %v, %v, want %v", name, s.Addr, err, want)
		}
	}
	if _, err := b.Lookup("both"); !errors.As(err, new(*guest.AmbiguousSymbolError)) {
		t.Errorf("both: %v", err)
	}
	if _, err := b.Lookup("m3:one"); !errors.Is(err, guest.ErrSymbolNotFound) {
		t.Errorf("m3:one: %v", err)
	}
	if got := b.Match("m*:bo*"); len(got) != 2 || got[0].Addr != at+32 || got[1].Addr != at+0x10_0020 {
		t.Errorf("m*:bo*: %v", got)
	}
	if !b.IsText(at+63) || b.IsText(at+64) || b.FixedReason(at+33, at+34) != "ftrace" || b.Entry(at+32) != at+37 || b.Module(at) != "m1" || b.Module(b.fn(0)) != "" {
		t.Error("what is known of m1")
	}
	if f, _ := b.Find(at + 0x10_0021); f.Name != "both" || b.FixedReason(at+0x10_0021, at+0x10_0022) != "ftrace" || b.Module(at+0x10_0000) != "m2" {
		t.Error("what is known of m2")
	}
	n := len(b.Symbols())
	if err := b.setModules(map[string]*Kernel{"m2": two}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Lookup("one"); err == nil || b.IsText(at) || !b.IsText(at+0x10_0000) || b.FixedReason(at+33, at+34) != "" || len(b.Symbols()) != n-3 {
		t.Errorf("m1 is still there: %v", err)
	}
}

// FuzzSites: tables of any bytes give sites in text, found as they were read.
func FuzzSites(f *testing.F) {
	k, err := Parse(kerneltest.Kernel(kerneltest.Layouts[3]))
	if err != nil {
		f.Fatal(err)
	}
	names := []string{mCount, jumpTable, staticCallSites, bugs, Exceptions, alternatives, lockPrefixes, Returns, retpolines, Calls, paravirt, endbrSeals, "runtime_ptr_x", "runtime_mask_x", "runtime_shift_x"}
	for i, name := range names {
		f.Add(byte(i), k.table(name).Data)
	}
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		name := names[int(which)%len(names)]
		text, table := k.mem.Section(".text"), k.table(name)
		x := &Kernel{mem: &elf.Memory{Sections: []elf.Part{*text, {Name: name, Addr: table.Addr, Data: data}}}}
		s, err := x.Sites()
		if err != nil {
			return
		}
		for _, x := range s.sites {
			if !k.isText(x.addr) {
				t.Errorf("%+v is not in text", x)
			}
			if _, ok := s.PatchAt(x.addr, x.addr+1, 1<<x.what); !ok && x.size > 0 {
				t.Errorf("%+v is not found", x)
			}
			if _, ok := s.Begins(x.addr, x.what); !ok {
				t.Errorf("%+v does not begin there", x)
			}
		}
		for _, e := range s.edges {
			if at := s.Edges(e.to, e.to+1); len(at) != 1 && e.to != ^uint64(0) {
				t.Errorf("edge to %#x is not found", e.to)
			}
		}
	})
}

// TestEnd: a kernel that panics, and one that is about to start another, say so in their memory;
// when the other is there nothing is text, whatever the first one's memory says.
func TestEnd(t *testing.T) {
	b := boot1(t, 0x1460_0000, "")
	put := func(off int, v byte) { b.ram[kerneltest.State-KernelMap+uint64(off)] = v }
	state := func(panicked, leaving bool) {
		t.Helper()
		if b.Panicked() != panicked || b.Leaving() != leaving {
			t.Errorf("panicked %v, leaving %v", b.Panicked(), b.Leaving())
		}
	}
	state(false, false)
	for i, v := range []byte{1, 0, 0, 0} {
		put(4+i, v)
	}
	state(true, false)
	put(8, 1)
	state(true, true)

	if !b.IsText(b.fn(10)) || len(b.Text(false)) == 0 || b.BlacklistReason(b.fn(10)) != "" {
		t.Fatal("it is not there yet")
	}
	b.MarkGone(ReplacedText)
	b.setState(StateScheduling)
	if !b.Refresh() {
		t.Error("nothing has changed")
	}
	if err := b.setModules(nil); err != nil {
		t.Error(err)
	}
	if b.IsText(b.fn(10)) || len(b.Text(false)) != 0 || b.Code(b.fn(10), 1) != nil || b.BlacklistReason(b.fn(10)) != ReplacedText {
		t.Error("there is text still")
	}
	if _, _, err := b.Tasks(1); err == nil || err.Error() != ReplacedText {
		t.Errorf("tasks: %v", err)
	}
}

// TestViewCopy: a copy knows what the view knew, and neither hears of the other's changes.
func TestViewCopy(t *testing.T) {
	const at = 0xffff_ffff_c000_0000
	b := boot1(t, 0x1460_0000, "")
	m := &elf.Memory{Sections: []elf.Part{{Name: ".text", Addr: at, Data: bytes.Repeat([]byte{0x90}, 64), X: true}}}
	m.SetNames([]elf.Name{{Name: "one", Addr: at, Func: true}})
	first := b.Copy()
	b.setState(StateRunning)
	if !b.Refresh() {
		t.Fatal("the kernel has not started")
	}
	if err := b.setModules(map[string]*Kernel{"m1": {mem: m}}); err != nil {
		t.Fatal(err)
	}
	later := b.Copy()
	b.MarkGone(ReplacedText)
	for what, c := range map[string]struct {
		*View
		system SystemState
		text   int // whether there is any, and the module's
		why    string
	}{
		"before": {first, StateBooting, 1, ""}, "later": {later, StateRunning, 2, ""}, "gone": {b.View, StateRunning, 0, ReplacedText},
	} {
		text := 0
		if c.IsText(b.fn(0)) {
			text++
		}
		if c.IsText(at) {
			text++
		}
		if s, _ := c.System(); c.GoneReason() != c.why || text != c.text || what != "before" && s != c.system {
			t.Errorf("%s: %v, %d of two are text, %q", what, s, text, c.GoneReason())
		}
		if s, err := c.Lookup("traced"); err != nil || s.Addr != b.fn(0) || c.ID() != b.ID() || c.Slide() != b.slide {
			t.Errorf("%s: %+v, %v", what, s, err)
		}
	}
	if !first.Refresh() || first.Refresh() {
		t.Error("the first one has not looked for itself")
	}
}
