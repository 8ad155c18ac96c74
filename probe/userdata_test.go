package probe_test

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// loader is a target with user code in files that tells of protection keys and of the guest's own
// debug registers.
type loader struct {
	filed
	keyed   guest.GVA // a byte of the page with a key
	missing guest.GVA // an address that is not mapped
	debugs  bool
	watches int
}

func (l *loader) Keyed(_ guest.GPA, a guest.GVA) bool { return a&^0xfff == l.keyed&^0xfff }

func (l *loader) ReadUser(root guest.GPA, a guest.GVA, p []byte) error {
	if a == l.missing {
		return &guest.PageFaultError{VA: a, Level: 1, Reason: guest.FaultNotPresent}
	}
	return l.filed.ReadUser(root, a, p)
}

func (l *loader) NoWatchReason(probe.Access, bool, bool) string { return "" }

func (l *loader) GuestDebugs(int) (bool, error) { return l.debugs, nil }

func (l *loader) ImplicitAccesses(p []probe.WatchedPage) []string { return make([]string, len(p)) }

func (l *loader) SetWatches(_ probe.DebugRegisters, p []probe.WatchedPage) error {
	l.watches++
	return nil
}

// TestUserData: a load or store of user code in a file is emulated, so that nothing else of the guest stops, unless
// the access could trap, or the processor decides whether it may be done.
func TestUserData(t *testing.T) {
	const root, data = 0x1000, 0x7000_1ff8
	img, err := probetest.BuildImage(userBase, true,
		probetest.Func{Name: "load", Code: []byte("\x48\x8b\x07\xc3")},
		probetest.Func{Name: "store", Code: []byte("\x48\x89\x1f\xc3")},
		probetest.Func{Name: "add", Code: []byte("\x48\x01\x1f\xc3")})
	if err != nil {
		t.Fatal(err)
	}
	l := &loader{filed: filed{&stacks{Fake: newFake(t, 1, img), words: map[guest.GPA]map[guest.GVA]uint64{root: {data: 7}, 0: {data: 7}}}}}
	e, err := probe.New(l, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	post := uint64(0)
	for _, name := range []string{"load", "store", "add"} {
		if err := e.Register(&probe.Kprobe{Symbol: name, Post: func(c *probe.Context) { post = c.Regs.RAX }}); err != nil {
			t.Fatal(err)
		}
	}
	hit := func(what, name string, at uint64, want probe.Verdict, rax uint64) {
		t.Helper()
		sym, _ := img.Lookup(name)
		regs := probe.Regs{RIP: uint64(sym.Addr), RDI: at, RAX: 1, RBX: 2}
		post = 0
		before := e.Totals(-1)
		v := e.Hit(0, probe.State{Regs: &regs, Root: root, CPL: 3}, probe.Trap{Kind: probe.TrapBreakpoint})
		after := e.Totals(-1)
		emulated := rax != 1
		next := uint64(sym.Addr)
		if emulated {
			next += 3
		}
		if v != want || regs.RAX != rax || regs.RIP != next || emulated && post != rax || (after.Emulated-before.Emulated == 1) != emulated {
			t.Errorf("%s: %+v, registers %+v, the post handler saw %d, %d emulated; want %+v, RAX %d, RIP %#x", what, v, regs, post, after.Emulated-before.Emulated, want, rax, next)
		}
	}
	resume, step := probe.Verdict{Action: probe.Resume}, probe.Verdict{Action: probe.StepInPlace}
	stored := func(what string, at uint64, want bool) {
		t.Helper()
		sym, _ := img.Lookup("store")
		regs := probe.Regs{RIP: uint64(sym.Addr), RDI: at, RBX: 9}
		l.words[root][guest.GVA(at)] = 1
		v := e.Hit(0, probe.State{Regs: &regs, Root: root, CPL: 3}, probe.Trap{Kind: probe.TrapBreakpoint})
		verdict, word := step, uint64(1)
		if want {
			verdict, word = resume, 9
		}
		if got := l.words[root][guest.GVA(at)]; v != verdict || got != word {
			t.Errorf("%s: %+v, memory %d; want %+v and %d", what, v, got, verdict, word)
		}
		l.words[root][guest.GVA(at)] = 7
	}
	hit("a load", "load", data, resume, 7)
	hit("an addition to memory", "add", data, step, 1)
	stored("a store", data, true)
	l.missing = data + 8
	hit("a page that is not there", "load", data+8, probe.Verdict{Action: probe.Inject, Fault: probe.Trap{Kind: probe.TrapFault, Vector: x86.VectorPF, Code: 4, CR2: data + 8}}, 1)
	l.missing = 0
	hit("not canonical", "load", 1<<47, step, 1)
	hit("half not canonical", "load", 1<<47-4, step, 1)

	l.keyed = data
	hit("a page with a key", "load", data, step, 1)
	stored("a page with a key", data, false)
	l.keyed = data + 8
	hit("the next page has a key", "load", data, resume, 7)
	hit("half in a page with a key", "load", data+1, step, 1)
	l.keyed = 0

	l.debugs = true
	hit("the guest has breakpoints", "load", data, step, 1)
	stored("the guest has breakpoints", data, false)
	l.debugs = false

	for _, access := range []probe.Access{probe.AccessWrite, probe.AccessReadWrite} {
		w := &probe.Watch{Addr: data, Len: 8, Access: access}
		if err := e.Watch(w); err != nil {
			t.Fatal(err)
		}
		if access == probe.AccessWrite {
			hit("writes are watched", "load", data, resume, 7)
			stored("writes are watched", data, false)
		} else {
			hit("reads are watched", "load", data, step, 1)
		}
		if err := e.Unwatch(w); err != nil {
			t.Fatal(err)
		}
	}
	page := &probe.Watch{Addr: data, Len: 8, Access: probe.AccessWrite, Emulate: true}
	if err := e.Watch(page); err != nil {
		t.Fatal(err)
	}
	hit("a page is watched", "load", data, step, 1)
	stored("a page is watched", data, false)
	if err := e.Unwatch(page); err != nil {
		t.Fatal(err)
	}
	hit("nothing is watched any more", "load", data, resume, 7)

	sym, _ := img.Lookup("load")
	var regs probe.Regs
	s := probe.State{Regs: &regs, Root: root, CPL: 3}
	if n := testing.AllocsPerRun(100, func() {
		regs = probe.Regs{RIP: uint64(sym.Addr), RDI: data}
		e.Hit(0, s, probe.Trap{Kind: probe.TrapBreakpoint})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
