package probe_test

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestPending: probes on MODULE:SYMBOL wait for their module, are attached each time
// it is loaded, also after a reset, and are gone with it, without any write to its
// memory; counts continue.
func TestPending(t *testing.T) {
	f, k := newPatchingFake(t, nil)
	e, plain := f.Engine(), symbol(t, f, "plain")
	last, err := k.Lookup("push")
	if err != nil {
		t.Fatal(err)
	}
	text := guest.Range{Start: plain, End: last.Addr + guest.GVA(last.Size)}
	loaded, other := make([]byte, text.End-text.Start), bytes.Repeat([]byte{0xcc}, int(text.End-text.Start))
	if err := f.Read(plain, loaded); err != nil {
		t.Fatal(err)
	}
	k.Module = "mod"
	module := func(there bool) {
		t.Helper()
		now := loaded
		k.Absent, k.Freed = !there, guest.Range{}
		if !there {
			k.Freed, now = text, other
		}
		if err := f.Poke(plain, now); err != nil {
			t.Fatal(err)
		}
	}
	tell := func() {
		t.Helper()
		if err := e.TargetChanged(); err != nil {
			t.Error(err)
		}
	}

	module(false)
	returns := 0
	on := &probe.Kprobe{Name: "on", Symbol: "mod:plain", Pre: emptyHandler}
	off := &probe.Kprobe{Name: "off", Symbol: "mod:plain", Offset: 5, Pre: emptyHandler, Disabled: true}
	ret := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: "ret", Symbol: "mod:plain"}, Return: func(*probe.Context) { returns++ }}
	none := &probe.Kprobe{Name: "none", Symbol: "mod:nosuch", Pre: emptyHandler}
	var placed []guest.GVA
	off.Stage = &probe.Stage{Code: []byte{0xc3}}
	off.Stage.Placed = func(at guest.GVA) { placed = append(placed, at-plain) }
	alone := &probe.Kprobe{Name: "alone", Symbol: "traced", Pre: emptyHandler}
	if addr, _, entry, err := e.Resolve(on); err != nil || addr != 0 || !entry {
		t.Errorf("resolved to %v, entry %v, %v", addr, entry, err)
	}
	if err := e.Register(on, off, ret, none, alone); err != nil {
		t.Fatal(err)
	}
	check := func(what string, there, enabled bool, hits uint64) {
		t.Helper()
		for _, p := range []*probe.Kprobe{on, &ret.Kprobe, off} {
			i, ok := e.Info(p)
			wantHits, armed, addr := hits, there && (p != off || enabled), plain
			if p == off {
				addr += 5
			}
			if p == off && !enabled {
				wantHits = 0
			}
			if !there {
				addr = 0
			}
			if !ok || i.Pending == there || i.Gone || p != off && i.Armed != armed || i.Disabled != (p == off && !enabled) || i.Addr != addr || i.Stats.Hits != wantHits && p != off {
				t.Errorf("%s: %+v", what, i)
			}
			if flags := i.Flags(); !there && !i.Disabled && flags != "[PENDING]" || !there && i.Symbol+map[bool]string{true: "+5"}[i.Offset == 5] != map[bool]string{true: "mod:plain+5", false: "mod:plain"}[p == off] {
				t.Errorf("%s: %s of %s+%d", what, flags, i.Symbol, i.Offset)
			}
		}
		if returns != int(hits) {
			t.Errorf("%s: %d returns, want %d", what, returns, hits)
		}
		if i, _ := e.Info(none); i.Pending == there || i.Gone != there || i.Armed {
			t.Errorf("%s: %+v", what, i)
		}
		if i, _ := e.Info(alone); i.Pending || i.Gone || !i.Armed {
			t.Errorf("%s: %+v", what, i)
		}
		if there {
			return
		}
		now := make([]byte, len(other))
		if err := f.Read(plain, now); err != nil || !bytes.Equal(now, other) {
			t.Errorf("%s: the freed memory is % x, %v", what, now, err)
		}
	}
	call := func() {
		t.Helper()
		if got, err := f.Call(0, plain, 1); err != nil || got != 3 {
			t.Errorf("plain gives %d, %v", got, err)
		}
	}
	check("at first", false, false, 0)
	wantCode(t, e.Register(&probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "mod:plain"}}), probe.CodeSymbolNotFound, syscall.ENOENT, nil)
	wantCode(t, e.Watch(&probe.Watch{Symbol: "mod:plain", Len: 8, Access: probe.AccessWrite}), probe.CodeSymbolNotFound, syscall.ENOENT, nil)
	tell()
	check("before it comes", false, false, 0)

	module(true)
	tell()
	check("loaded", true, false, 0)
	call()
	check("called", true, false, 1)
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	call()
	check("by a jump", true, false, 2)
	wantCode(t, e.Enable(none), probe.CodeGone, syscall.EINVAL, nil)

	module(false)
	tell()
	check("gone", false, false, 2)
	if err := e.Enable(off, none); err != nil {
		t.Error(err)
	}
	check("enabled meanwhile", false, true, 2)
	if err := e.Disable(off); err != nil {
		t.Error(err)
	}

	module(true)
	tell()
	call()
	check("back", true, false, 3)

	module(false)
	if err := f.Reset(k.Image); err != nil {
		t.Fatal(err)
	}
	module(false)
	check("reset", false, false, 3)
	module(true)
	tell()
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	call()
	check("back behind the reset", true, false, 4)

	// It was unloaded and loaded again, at other addresses, before the engine is
	// notified.
	k.Elsewhere = map[string]string{"plain": "there"}
	if err := f.Poke(plain, loaded); err != nil {
		t.Fatal(err)
	}
	tell()
	for _, p := range []*probe.Kprobe{on, &ret.Kprobe} {
		if i, _ := e.Info(p); i.Addr != symbol(t, f, "there") || !i.Armed || i.Stats.Hits != 4 {
			t.Errorf("elsewhere: %+v", i)
		}
	}
	call()
	if got, err := f.Call(0, symbol(t, f, "there"), 1); err != nil || got != 3 {
		t.Errorf("there gives %d, %v", got, err)
	}
	for _, p := range []*probe.Kprobe{on, &ret.Kprobe} {
		if i, _ := e.Info(p); i.Stats.Hits != 5 {
			t.Errorf("elsewhere: %+v", i)
		}
	}
	// And the same, back at the first ones.
	k.Elsewhere = nil
	if err := f.Poke(symbol(t, f, "there"), loaded[symbol(t, f, "there")-plain:]); err != nil {
		t.Fatal(err)
	}
	tell()
	call()
	check("back from there", true, false, 6)

	if want := []guest.GVA{5, 5, 5, 5}; !slices.Equal(placed, want) {
		t.Errorf("its stage was told of %v, want %v", placed, want)
	}

	// Unregistered before the engine is notified that its module was unloaded.
	module(false)
	if err := e.Unregister(on); err != nil {
		t.Error(err)
	}
	tell()
	if err := e.Unregister(&ret.Kprobe, off, none, alone); err != nil {
		t.Error(err)
	}
	now := make([]byte, len(other))
	if err := f.Read(plain, now); err != nil || !bytes.Equal(now, other) || len(e.List()) != 0 {
		t.Errorf("the freed memory is % x, %v; %+v", now, err, e.List())
	}
}

// TestModuleReady: while there are probes on modules by name the engine hears of each
// module that is ready, by a probe that no listing has, is not in the way of another one
// there, and is gone with the last of them.
func TestModuleReady(t *testing.T) {
	f, k := newPatchingFake(t, nil)
	e, ready := f.Engine(), symbol(t, f, "fault")
	if err := f.Write(0x7000_1000, []byte{42}); err != nil {
		t.Fatal(err)
	}
	var cpus []int
	k.Module, k.Ready, k.Comes = "mod", "fault", func(cpu int, _ probe.Milestone) { cpus = append(cpus, cpu) }
	call := func(what string, probed bool, comes int) {
		t.Helper()
		b := make([]byte, 1)
		if err := f.Read(ready, b); err != nil || (b[0] == 0xcc || b[0] == 0xe9) != probed {
			t.Errorf("%s: text % x, %v; probed %v", what, b, err, probed)
		}
		if got, err := f.Call(0, ready, 0x7000_1000); err != nil || got != 42 || len(cpus) != comes {
			t.Errorf("%s: %d, %v; %d modules came, want %d", what, got, err, len(cpus), comes)
		}
	}
	register := func(ps ...probe.Probe) {
		t.Helper()
		if err := e.Register(ps...); err != nil {
			t.Fatal(err)
		}
	}
	unregister := func(ps ...*probe.Kprobe) {
		t.Helper()
		if err := e.Unregister(ps...); err != nil {
			t.Error(err)
		}
	}
	call("without any", false, 0)
	other := &probe.Kprobe{Symbol: "plain", Pre: emptyHandler}
	register(other)
	call("a probe on no module", false, 0)
	k.Absent = true
	a, b := &probe.Kprobe{Symbol: "mod:plain", Pre: emptyHandler}, &probe.Kprobe{Symbol: "mod:push", Pre: emptyHandler}
	register(a, b)
	call("pending", true, 1)
	k.Absent = false
	if err := e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	call("loaded", true, 2)
	if list := e.List(); len(list) != 3 || list[0].Symbol != "plain" || list[2].Symbol != "push" {
		t.Errorf("%+v", list)
	}
	user := &probe.Kprobe{Symbol: "fault", Pre: emptyHandler}
	register(user)
	call("beside another", true, 3)
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	call("by a jump", true, 4)
	if s, _, _ := e.Stats(user); s.Hits != 2 {
		t.Errorf("the other one has %d hits", s.Hits)
	}
	unregister(user)
	if err := e.DisarmAll(); err != nil {
		t.Fatal(err)
	}
	call("disarmed", false, 4)
	if err := e.ArmAll(); err != nil {
		t.Fatal(err)
	}
	unregister(a)
	call("one is left", true, 5)
	if err := f.Reset(k.Image); err != nil {
		t.Fatal(err)
	}
	if err := f.Write(0x7000_1000, []byte{42}); err != nil {
		t.Fatal(err)
	}
	call("reset", true, 6)
	unregister(b)
	call("none is left", false, 6)
	// It cannot be probed: modules are seen later.
	k.Ready, b.Addr = "nosuch", 0
	register(b)
	k.Ready = "fault"
	if err := e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	call("not at once", true, 7)
	unregister(b, other)
}

// TestModuleReloaded: a module is unloaded and loaded again at its addresses before the
// engine is notified, and a probe on it is looked at, or text next to it is written,
// in between: once the engine is notified the probe is on the new text.
func TestModuleReloaded(t *testing.T) {
	for _, optimized := range []bool{false, true} {
		f, k := newPatchingFake(t, nil)
		e, plain := f.Engine(), symbol(t, f, "plain")
		last, err := k.Lookup("push")
		if err != nil {
			t.Fatal(err)
		}
		loaded := make([]byte, last.Addr+guest.GVA(last.Size)-plain)
		if err := f.Read(plain, loaded); err != nil {
			t.Fatal(err)
		}
		k.Module = "mod"
		returns := uint64(0)
		on := &probe.Kprobe{Name: "on", Symbol: "mod:plain", Pre: emptyHandler}
		ret := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: "ret", Symbol: "mod:plain"}, Return: func(*probe.Context) { returns++ }}
		near := &probe.Kprobe{Name: "near", Symbol: "mod:plain", Offset: 9, Pre: emptyHandler, Disabled: true}
		if err := e.Register(on, ret, near); err != nil {
			t.Fatal(err)
		}
		half := bytes.Clone(loaded)
		copy(half, make([]byte, 16))
		hits := uint64(0)
		for _, tt := range []struct {
			name  string
			there []byte // of the module, when it is looked at
			do    func() error
		}{
			{"nothing", loaded, func() error { return nil }},
			{"the place of the tracer is written", loaded, func() error {
				_, err := e.WriteText(plain, loaded[:5], func() bool { return true }, nil)
				return err
			}},
			{"that of half a module", half, func() error {
				_, err := e.WriteText(plain, loaded[:5], func() bool { return true }, nil)
				return err
			}},
			{"one beside it", loaded, func() error { return errors.Join(e.Enable(near), e.Disable(near)) }},
			{"one beside it, of half a module", half, func() error { _ = e.Enable(near); return e.Disable(near) }},
			{"switched off and on", loaded, func() error { return errors.Join(e.Disable(on), e.Enable(on)) }},
			{"the text is compared", half, e.Reconcile},
			{"no jumps meanwhile", loaded, func() error { return errors.Join(e.SetOptimization(false), e.SetOptimization(true)) }},
		} {
			if optimized {
				if err := e.Optimize(); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.Poke(plain, tt.there); err != nil {
				t.Fatal(err)
			}
			_ = tt.do() // text that has changed is an error
			now := make([]byte, len(loaded))
			if err := f.Read(plain, now); err != nil {
				t.Fatal(err)
			}
			if err := f.Poke(plain, loaded); err != nil {
				t.Fatal(err)
			}
			_ = e.TargetChanged()
			hits++
			if got, err := f.Call(0, plain, 1); err != nil || got != 3 {
				t.Errorf("%s: plain gives %d, %v", tt.name, got, err)
			}
			for _, p := range []*probe.Kprobe{on, &ret.Kprobe} {
				if i, _ := e.Info(p); !i.Armed || i.Changed || i.Stats.Hits != hits || returns != hits {
					t.Errorf("%s, optimized %v: %d returns, want %d hits: %+v", tt.name, optimized, returns, hits, i)
					hits, returns = i.Stats.Hits, i.Stats.Hits
				}
			}
		}
	}
}
