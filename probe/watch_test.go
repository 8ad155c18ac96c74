package probe_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// watchFake is a fake with a Watcher: the test makes the traps.
type watchFake struct {
	*probetest.Fake
	cannot string // why the debug registers are of no use
	busy   bool   // the guest debugs itself
	fail   error  // of SetWatches
	dr     probe.DebugRegisters
	pages  []probe.WatchedPage
	own    map[guest.GPA]string // what the processor accesses by itself
}

func (f *watchFake) ImplicitAccesses(pages []probe.WatchedPage) []string {
	var whys []string
	for _, p := range pages {
		whys = append(whys, f.own[p.PA])
	}
	return whys
}

func (f *watchFake) NoWatchReason(_ probe.Access, _, emulate bool) string {
	if emulate {
		return ""
	}
	return f.cannot
}
func (f *watchFake) GuestDebugs(int) (bool, error) { return f.busy, nil }
func (f *watchFake) SetWatches(d probe.DebugRegisters, p []probe.WatchedPage) error {
	if f.fail == nil {
		f.dr, f.pages = d, p
	}
	return f.fail
}
func (f *watchFake) Translate(_ guest.GPA, a guest.GVA) (guest.GPA, bool) {
	return guest.GPA(a & 0xffff_ffff), true
}

func newWatchFake(t *testing.T) (*watchFake, *probe.Engine, guest.GVA) {
	t.Helper()
	f := &watchFake{Fake: newFake(t, 2, probetest.Image())}
	e, err := probe.New(f, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := f.Symbol("scratch")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(s.Addr, make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	return f, e, s.Addr
}

func TestWatchRefusals(t *testing.T) {
	f, e, at := newWatchFake(t)
	w := func(w probe.Watch) error {
		t.Helper()
		check := e.CheckWatch(&w)
		err := e.Watch(&w)
		var a, b *probe.Error
		if !errors.As(check, &a) || !errors.As(err, &b) || a.Code != b.Code || a.Text != b.Text || a.Detail != b.Detail {
			if f.fail == nil { // which only who sets registers can find out
				t.Errorf("%+v: checked with %v, watched with %v", w, check, err)
			}
		}
		return err
	}
	if err := e.CheckWatch(&probe.Watch{Addr: at, Len: 8, Access: probe.AccessWrite}); err != nil || f.dr.Enabled() || len(e.Watches()) != 0 {
		t.Errorf("a sound watch: %v, DR7 %#x, %d watches", err, f.dr.DR7, len(e.Watches()))
	}
	for _, q := range []struct {
		name  string
		err   error
		code  probe.Code
		errno syscall.Errno
	}{
		{"nothing", e.Watch(), probe.CodeEmptyBatch, syscall.EINVAL},
		{"no place", w(probe.Watch{Access: probe.AccessWrite}), probe.CodeBothOrNeither, syscall.EINVAL},
		{"no symbol", w(probe.Watch{Symbol: "nosuch", Access: probe.AccessWrite}), probe.CodeSymbolNotFound, syscall.ENOENT},
		{"length 3", w(probe.Watch{Addr: at, Len: 3, Access: probe.AccessWrite}), probe.CodeWatchLength, syscall.EINVAL},
		{"length 16", w(probe.Watch{Addr: at, Len: 16, Access: probe.AccessWrite}), probe.CodeWatchLength, syscall.EINVAL},
		{"execute 2", w(probe.Watch{Addr: at, Len: 2, Access: probe.AccessExec}), probe.CodeWatchLength, syscall.EINVAL},
		{"unaligned", w(probe.Watch{Addr: at + 2, Len: 4, Access: probe.AccessWrite}), probe.CodeWatchAlignment, syscall.EINVAL},
		{"no access", w(probe.Watch{Addr: at, Len: 1}), probe.CodeWatchAccess, syscall.EINVAL},
		{"read alone", w(probe.Watch{Addr: at, Len: 1, Access: probe.AccessRead}), probe.CodeWatchAccess, syscall.EINVAL},
		{"unmapped", w(probe.Watch{Addr: 0x10_0000_0000, Len: 1, Access: probe.AccessWrite}), probe.CodeUnreadable, syscall.EFAULT},
	} {
		wantCode(t, q.err, q.code, q.errno, nil)
	}
	f.cannot = "calibration: none"
	wantCode(t, w(probe.Watch{Addr: at, Len: 8, Access: probe.AccessWrite}), probe.CodeHostCannot, syscall.ENODEV, nil)
	f.cannot, f.busy = "", true
	wantCode(t, w(probe.Watch{Addr: at, Len: 8, Access: probe.AccessWrite}), probe.CodeDebugRegsInUse, syscall.EBUSY, nil)
	f.busy = false
	f.fail = errors.New("broken")
	wantCode(t, w(probe.Watch{Addr: at, Len: 8, Access: probe.AccessWrite}), probe.CodeTarget, syscall.EIO, nil)
	f.fail = nil
	var four []*probe.Watch
	for i := range 4 {
		four = append(four, &probe.Watch{Addr: at + guest.GVA(i), Len: 1, Access: probe.AccessWrite})
	}
	if err := e.Watch(four...); err != nil {
		t.Fatal(err)
	}
	wantCode(t, w(probe.Watch{Addr: at, Len: 8, Access: probe.AccessWrite}), probe.CodeWatchRegisters, syscall.ENOSPC, nil)
	wantCode(t, e.Watch(four[0]), probe.CodeRegistered, syscall.EINVAL, nil)
	// One that is off takes no register.
	off := &probe.Watch{Addr: at, Len: 8, Access: probe.AccessWrite, Disabled: true}
	if err := e.Watch(off); err != nil {
		t.Fatal(err)
	}
	wantCode(t, e.EnableWatch(off), probe.CodeWatchRegisters, syscall.ENOSPC, nil)
	if err := errors.Join(e.DisableWatch(four[3]), e.EnableWatch(off)); err != nil {
		t.Error(err)
	}
	if err := e.Unwatch(append(four, off)...); err != nil {
		t.Error(err)
	}
	wantCode(t, e.Unwatch(off), probe.CodeNotRegistered, syscall.EINVAL, nil)
	if f.dr.Enabled() || len(f.pages) != 0 || len(e.Watches()) != 0 {
		t.Errorf("left: DR7 %#x, pages %v", f.dr.DR7, f.pages)
	}
}

// TestWatchTraps: the bits of DR6 say which watches have fired; the counts close,
// and a handler sees the values from before and after.
func TestWatchTraps(t *testing.T) {
	f, e, at := newWatchFake(t)
	var seen []probe.Watched
	handler := func(c *probe.Context) {
		seen = append(seen, c.Watched)
		c.Regs.RAX = 99 // has no effect
		if c.Watched.New == 13 {
			panic("a handler's own bug")
		}
	}
	a := &probe.Watch{Name: "a", Addr: at, Len: 8, Access: probe.AccessWrite, Handler: handler}
	b := &probe.Watch{Name: "b", Symbol: "scratch", Len: 1, Access: probe.AccessReadWrite, Handler: handler}
	x := &probe.Watch{Name: "x", Symbol: "hot_load", Access: probe.AccessExec, Handler: handler}
	if err := e.Watch(a, b, x); err != nil {
		t.Fatal(err)
	}
	hit := func(cpu int, dr6, value uint64) (probe.Verdict, probe.Regs) {
		var p [8]byte
		binary.LittleEndian.PutUint64(p[:], value)
		if err := f.Write(at, p[:]); err != nil {
			t.Fatal(err)
		}
		r := probe.Regs{RIP: uint64(x.Addr), RAX: 1}
		return e.Hit(cpu, probe.State{Regs: &r}, probe.Trap{Kind: probe.TrapWatch, DR6: 0xffff0ff0 | dr6}), r
	}
	if v, r := hit(0, 0b11, 0x105); v.Action != probe.Resume || r.RAX != 1 || r.RFLAGS != 0 || len(seen) != 2 ||
		seen[0] != (probe.Watched{Watch: a, Write: true, Old: 0, New: 0x105, Exact: seen[0].Exact}) || seen[1].New != 5 {
		t.Errorf("write: %+v, %+v, %+v", v, r, seen)
	}
	if _, _ = hit(1, 0b10, 0x105); len(seen) != 3 || seen[2].Write || seen[2].Old != 5 || seen[2].New != 5 {
		t.Errorf("read: %+v", seen[2:])
	}
	if v, r := hit(0, 0b100, 0); v.Action != probe.Resume || r.RFLAGS != 1<<16 || len(seen) != 4 {
		t.Errorf("execute: %+v, %+v: want RF set", v, r)
	}
	if v, _ := hit(0, 0b1000, 0); v.Action != probe.NotOurs {
		t.Errorf("not ours: %+v", v)
	}
	hit(0, 0b1, 13)
	for _, q := range []struct {
		w    *probe.Watch
		hits uint64
	}{{a, 2}, {b, 2}, {x, 1}} {
		i, ok := e.WatchInfo(q.w)
		if s := i.Stats; !ok || s.Hits != q.hits || s.Handled+s.Missed != s.Hits || i.By != "debug_register" {
			t.Errorf("%s: %+v, want %d hits", q.w.Name, i, q.hits)
		}
	}
	if i, _ := e.WatchInfo(a); i.Stats.Panics != 1 {
		t.Errorf("panics %d, want 1", i.Stats.Panics)
	}
}

// TestWatchAccessed: of the accesses to a page those to the watched bytes count.
func TestWatchAccessed(t *testing.T) {
	f, e, at := newWatchFake(t)
	var seen []probe.Watched
	handler := func(c *probe.Context) { seen = append(seen, c.Watched) }
	w := &probe.Watch{Addr: at + 4, Len: 4, Access: probe.AccessWrite, Emulate: true, Handler: handler}
	r := &probe.Watch{Addr: at + 8, Len: 2, Access: probe.AccessRead, Emulate: true, Handler: handler}
	if err := e.Watch(w, r); err != nil {
		t.Fatal(err)
	}
	pa, _ := f.Translate(0, at)
	if len(f.pages) != 1 || f.pages[0] != (probe.WatchedPage{PA: pa &^ 4095, Read: true}) || f.dr.Enabled() {
		t.Fatalf("pages %+v, DR7 %#x", f.pages, f.dr.DR7)
	}
	regs := probe.Regs{}
	access := func(off, n int, write bool, old, now uint64) []probe.Watched {
		seen = nil
		a := probe.PageAccess{PA: pa + guest.GPA(off), Len: n, Write: write}
		binary.LittleEndian.PutUint64(a.Old[:], old)
		binary.LittleEndian.PutUint64(a.New[:], now)
		e.Accessed(0, probe.State{Regs: &regs}, a)
		return seen
	}
	for _, q := range []struct {
		off, n   int
		write    bool
		old, now uint64
		want     []probe.Watched
	}{
		{0, 4, true, 0, ^uint64(0), nil},
		{0, 8, true, 0, 0x1122334455667788, []probe.Watched{{Watch: w, Write: true, Old: 0, New: 0x11223344}}},
		{5, 1, true, 0x33, 0xaa, []probe.Watched{{Watch: w, Write: true, Old: 0x11223344, New: 0x1122aa44}}},
		{4, 4, false, 0x1122aa44, 0x1122aa44, nil},
		{8, 2, true, 0, 7, nil},
		{8, 1, false, 7, 7, []probe.Watched{{Watch: r, Old: 7, New: 7, Exact: true}}},
		{10, 8, true, 0, 1, nil},
		{6, 4, true, 0x0007_1122, 0x0009_0000, []probe.Watched{{Watch: w, Write: true, Old: 0x1122aa44, New: 0xaa44}}},
	} {
		got := access(q.off, q.n, q.write, q.old, q.now)
		if len(got) != len(q.want) || len(got) == 1 && got[0] != q.want[0] {
			t.Errorf("%d bytes at +%d, write %v: %+v, want %+v", q.n, q.off, q.write, got, q.want)
		}
	}
	if i, _ := e.WatchInfo(w); i.By != "page" || i.Stats.Hits != 3 {
		t.Errorf("%+v", i)
	}
}

// TestWatchAllocs: a hit allocates nothing.
func TestWatchAllocs(t *testing.T) {
	_, e, at := newWatchFake(t)
	w := &probe.Watch{Addr: at, Len: 8, Access: probe.AccessWrite, Handler: func(*probe.Context) {}}
	if err := e.Watch(w); err != nil {
		t.Fatal(err)
	}
	r := probe.Regs{RIP: uint64(at)}
	s := probe.State{Regs: &r}
	if n := testing.AllocsPerRun(100, func() { e.Hit(0, s, probe.Trap{Kind: probe.TrapWatch, DR6: 1}) }); n != 0 {
		t.Errorf("%v allocations per hit", n)
	}
}

// TestWatchExecuteByBreakpoint: an emulated execute watch is a breakpoint that is not
// in the list of probes, and its counts continue while it is disabled and enabled.
func TestWatchExecuteByBreakpoint(t *testing.T) {
	_, e, _ := newWatchFake(t)
	seen := 0
	w := &probe.Watch{Symbol: "f_boost", Access: probe.AccessExec, Emulate: true, Handler: func(c *probe.Context) {
		seen++
		if c.Regs.RIP != uint64(c.Addr) || !c.Watched.Exact {
			t.Errorf("RIP %#x, %+v; want %v", c.Regs.RIP, c.Watched, c.Addr)
		}
		c.Regs.RAX = 99 // has no effect
	}}
	if err := e.Watch(w); err != nil {
		t.Fatal(err)
	}
	hit := func() probe.Regs {
		r := probe.Regs{RIP: uint64(w.Addr), RAX: 1}
		e.Hit(0, probe.State{Regs: &r}, probe.Trap{Kind: probe.TrapBreakpoint})
		return r
	}
	if r := hit(); r.RAX != 1 {
		t.Errorf("RAX %d after the handler", r.RAX)
	}
	if err := errors.Join(e.DisableWatch(w), e.EnableWatch(w), e.DisarmAll()); err != nil {
		t.Fatal(err)
	}
	if i, _ := e.WatchInfo(w); i.Armed || i.Disabled || i.By != "breakpoint" {
		t.Errorf("while all is disarmed: %+v", i)
	}
	if err := e.ArmAll(); err != nil {
		t.Fatal(err)
	}
	hit()
	if i, _ := e.WatchInfo(w); i.Stats.Hits != 2 || i.Stats.Handled != 2 || seen != 2 || !i.Armed {
		t.Errorf("%+v, seen %d", i, seen)
	}
	if n := len(e.List()); n != 0 {
		t.Errorf("%d probes are listed", n)
	}
	if err := e.Unwatch(w); err != nil {
		t.Fatal(err)
	}
	if i, ok := e.WatchInfo(w); !ok || i.Stats.Hits != 2 {
		t.Errorf("after Unwatch: %+v", i)
	}
}

// TestWatchesOfOwnPages: a watch of a page that the processor accesses by itself is refused, with its index in the batch. One
// whose page becomes such is disabled, by the target at once or by the next change of the watches, which succeeds, and
// to enable it is refused. The page of another one stays.
func TestWatchesOfOwnPages(t *testing.T) {
	f, e, at := newWatchFake(t)
	text, err := f.Symbols().Lookup("f_boost")
	if err != nil {
		t.Fatal(err)
	}
	page := func(a guest.GVA) guest.GPA {
		p, _ := f.Translate(0, a)
		return p &^ (guest.PageSize - 1)
	}
	watch := func(at guest.GVA) *probe.Watch {
		return &probe.Watch{Name: fmt.Sprint(at), Addr: at &^ 7, Len: 8, Access: probe.AccessReadWrite, Emulate: true}
	}
	refused := func(err error, index int) {
		t.Helper()
		var x *probe.Error
		if !errors.As(err, &x) || x.Code != probe.CodeImplicit || x.Errno != syscall.EBUSY || x.Index != index || !strings.Contains(x.Text, "the GDT") || x.Detail == "" {
			t.Errorf("%v, want it refused at index %d", err, index)
		}
	}
	live := func(w *probe.Watch, want bool) {
		t.Helper()
		if i, ok := e.WatchInfo(w); !ok || i.Armed != want || i.Disabled == want {
			t.Errorf("%s: %+v, want it armed: %v", w.Name, i, want)
		}
	}
	gdt := func() { f.own = map[guest.GPA]string{page(at): "the GDT of vCPU 0"} }
	a, b, other := watch(at), watch(at+8), watch(text.Addr)
	gdt()
	refused(e.Watch(other, a), 1)
	if len(e.Watches()) != 0 || len(f.pages) != 0 {
		t.Errorf("%v, %v", e.Watches(), f.pages)
	}
	f.own = nil
	if err := e.Watch(a, b, other); err != nil {
		t.Fatal(err)
	}
	gdt()
	e.WatchEnded(page(at), "the GDT of vCPU 0")
	live(a, false)
	live(b, false)
	live(other, true)
	refused(e.EnableWatch(a), 0)
	live(a, false)
	f.own = nil
	if err := e.EnableWatch(a); err != nil {
		t.Fatal(err)
	}
	live(a, true)
	live(b, false)
	// The next change finds it.
	gdt()
	if err := e.DisableWatch(b); err != nil {
		t.Error(err)
	}
	live(a, false)
	live(other, true)
	if len(f.pages) != 1 || f.pages[0].PA != page(text.Addr) {
		t.Errorf("protected: %v", f.pages)
	}
	if err := e.Unwatch(a, b, other); err != nil {
		t.Error(err)
	}
}

// TestWatchReloaded: watches are put back after a reset.
func TestWatchReloaded(t *testing.T) {
	f, e, at := newWatchFake(t)
	a := &probe.Watch{Symbol: "scratch", Len: 8, Access: probe.AccessWrite}
	b := &probe.Watch{Addr: at, Len: 8, Access: probe.AccessWrite, Emulate: true}
	x := &probe.Watch{Symbol: "f_boost", Access: probe.AccessExec, Emulate: true}
	if err := e.Watch(a, b, x); err != nil {
		t.Fatal(err)
	}
	f.dr, f.pages = probe.DebugRegisters{}, nil
	if err := e.Reload(func(save func()) (bool, error) { return true, f.Reboot(save, probetest.Image()) }); err != nil {
		t.Fatal(err)
	}
	if !f.dr.Enabled() || f.dr.Addr[0] != at || len(f.pages) != 1 {
		t.Errorf("DR7 %#x, addresses %v, pages %v", f.dr.DR7, f.dr.Addr, f.pages)
	}
	for _, w := range []*probe.Watch{a, b, x} {
		if i, ok := e.WatchInfo(w); !ok || i.Gone || !i.Armed {
			t.Errorf("%+v", i)
		}
	}
}
