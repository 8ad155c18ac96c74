package probe_test

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestFreedText: probes on text that the guest has freed are gone, and nothing is written
// to that memory any more, by int3s or jumps.
func TestFreedText(t *testing.T) {
	f, k := newPatchingFake(t, nil)
	e := f.Engine()
	on, ret, off := &probe.Kprobe{Symbol: "plain", Pre: emptyHandler}, &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "plain"}}, &probe.Kprobe{Symbol: "traced", Pre: emptyHandler}
	if err := e.Register(on, ret, off); err != nil {
		t.Fatal(err)
	}
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	early := &probe.Kprobe{Symbol: "push", Pre: emptyHandler} // of one byte, and without a jump
	if err := e.Register(early); err != nil {
		t.Fatal(err)
	}
	s, err := k.Lookup("plain")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Call(0, s.Addr, 1); err != nil {
		t.Fatal(err)
	}
	// The guest has the memory for something else, which looks like a breakpoint.
	last, err := k.Lookup("push")
	if err != nil {
		t.Fatal(err)
	}
	k.Freed = guest.Range{Start: s.Addr, End: last.Addr + guest.GVA(last.Size)}
	other := bytes.Repeat([]byte{0xcc}, int(k.Freed.End-k.Freed.Start))
	if err := f.Poke(s.Addr, other); err != nil {
		t.Fatal(err)
	}
	// Even before the engine is notified: unregister this one, and look at the
	// others.
	if err := e.Unregister(early); err != nil {
		t.Fatal(err)
	}
	if err := e.Reconcile(); err != nil {
		t.Fatal(err)
	}
	if err := e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	gone := 0
	for _, i := range e.List() {
		if i.Gone && !i.Armed && i.Stats.Hits == 1 {
			gone++
		}
	}
	if gone != 2 {
		t.Errorf("%d probes are gone: %+v", gone, e.List())
	}
	wantCode(t, e.Enable(on), probe.CodeGone, syscall.EINVAL, nil)
	if i, _ := e.Info(off); i.Gone || !i.Armed {
		t.Errorf("%+v", i)
	}
	wantCode(t, e.Register(&probe.Kprobe{Symbol: "plain", Pre: emptyHandler}), probe.CodeNotText, syscall.EINVAL, nil)
	if err := e.Unregister(on, &ret.Kprobe); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(other))
	if err := f.Read(s.Addr, got); err != nil || !bytes.Equal(got, other) {
		t.Errorf("% x, %v", got, err)
	}
	if err := e.Unregister(off); err != nil {
		t.Error(err)
	}
}

// asked is a kernel whose profile's caller is heard of.
type asked struct {
	*probetest.Kernel
	profile func()
}

func (a asked) Profile() (guest.Profile, error) {
	a.profile()
	return a.Kernel.Profile()
}

// TestFreedReturns: the counts of a kretprobe in the guest outlive the text that it was
// on, and the guest's memory; and while a target that has changed is asked for its
// profile, hits have the one from before.
func TestFreedReturns(t *testing.T) {
	k := &probetest.Kernel{}
	var e *probe.Engine
	none := false
	f, err := probetest.NewFake(probetest.FakeOptions{Probe: probe.Options{OptimizeDelay: -1},
		Symbols: func(img *guest.Image) probe.Symbols {
			k.Image = img
			return asked{k, func() { none = none || e != nil && e.Profile() == nil }}
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	e = f.Engine()
	s := &staged{t, f, e}
	returns := 0
	r := s.registerOn("recurse", 10, &returns)
	s.register(true, r)
	s.call("recurse", 3, 2)
	s.counts(r, 3, 0, 0, 3, 0, 0)
	sym, err := f.Symbol("recurse")
	if err != nil {
		t.Fatal(err)
	}
	k.Freed = guest.Range{Start: sym.Addr, End: sym.Addr + guest.GVA(sym.Size)}
	if err := e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	if none {
		t.Error("the engine had no profile meanwhile")
	}
	s.counts(r, 3, 0, 0, 3, 0, 0)
	for range 2 {
		if err := f.Reset(k.Image); err != nil {
			t.Fatal(err)
		}
		s.counts(r, 3, 0, 0, 3, 0, 0)
	}
	k.Freed = guest.Range{}
	if err := f.Reset(k.Image); err != nil {
		t.Fatal(err)
	}
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	s.call("recurse", 3, 2)
	s.counts(r, 6, 0, 0, 6, 0, 0)
}

// TestReadmitted: probes that a reset rejects because the engine has no memory yet
// are put back once it has, and counts continue; probes that are gone for another
// reason stay gone.
func TestReadmitted(t *testing.T) {
	early := false
	f, k := newPatchingFake(t, func(bool) probe.Capabilities {
		can := probe.Capabilities{InPlace: !early}
		if early {
			can.NoExec = "the kernel has not set up its memory"
		}
		return can
	})
	k.Faulting = nil
	e, plain := f.Engine(), symbol(t, f, "plain")
	load := func() {
		t.Helper()
		if err := f.Write(0x7000_1000, []byte{42}); err != nil {
			t.Fatal(err)
		}
	}
	load()
	returns := 0
	ret := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "plain"}, Return: func(*probe.Context) { returns++ }}
	off := &probe.Kretprobe{Kprobe: probe.Kprobe{Addr: plain, Disabled: true}}
	on := &probe.Kprobe{Symbol: "plain", Pre: emptyHandler}   // lea, emulated: it is never gone
	slot := &probe.Kprobe{Symbol: "fault", Pre: emptyHandler} // a load: it wants a slot
	freed := &probe.Kprobe{Symbol: "push", Pre: emptyHandler}
	if err := e.Register(ret, off, on, slot, freed); err != nil {
		t.Fatal(err)
	}
	check := func(what string, gone bool, handled, always uint64) {
		t.Helper()
		for _, c := range []struct {
			name      string
			arg, want uint64
		}{{"plain", 10, 12}, {"fault", 0x7000_1000, 42}} {
			if got, err := f.Call(0, symbol(t, f, c.name), c.arg); err != nil || got != c.want {
				t.Errorf("%s: %s gives %d, %v", what, c.name, got, err)
			}
		}
		for _, c := range []struct {
			p       *probe.Kprobe
			gone    bool
			handled uint64
		}{{&ret.Kprobe, gone, handled}, {&off.Kprobe, gone, 0}, {slot, gone, handled}, {on, false, always}, {freed, always != 1, 0}} {
			i, ok := e.Info(c.p)
			if !ok || i.Gone != c.gone || i.Armed == c.gone || i.Stats.Hits != c.handled || i.Stats.Handled != c.handled {
				t.Errorf("%s: gone %v, armed %v, %+v, want gone %v, handled %d", what, i.Gone, i.Armed, i.Stats, c.gone, c.handled)
			}
		}
		if returns != int(handled) {
			t.Errorf("%s: %d returns, want %d", what, returns, handled)
		}
	}
	check("at first", false, 1, 1)
	s, err := k.Lookup("push")
	if err != nil {
		t.Fatal(err)
	}
	early, k.Freed = true, guest.Range{Start: s.Addr, End: s.Addr + guest.GVA(s.Size)}
	if err := f.Reset(k.Image); err != nil {
		t.Fatal(err)
	}
	load()
	check("early", true, 1, 2)
	if err := e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	check("another phase", true, 1, 3)
	early = false
	if err := e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	check("late", false, 2, 4)
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	check("by a jump", false, 3, 5)
	if err := e.Unregister(&ret.Kprobe, &off.Kprobe, on, slot, freed); err != nil {
		t.Fatal(err)
	}
}
