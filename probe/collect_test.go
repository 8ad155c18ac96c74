package probe_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestCollect takes probes off whose code a task is in, or is to return to, by each way
// in which it may be: nothing of it is used again before the task has left, and all of
// it is then.
func TestCollect(t *testing.T) {
	for _, in := range []bool{true, false} { // where the call begins
		s := newStaged(t, true)
		collect := func(what string, free bool) {
			t.Helper()
			if err := s.e.Collect(); err != nil {
				t.Fatal(err)
			}
			if x := s.e.CollectorStats(); (x.Used == 0) != free {
				t.Errorf("in guest %v, %s: %+v", in, what, x)
			}
		}
		s.setStack(0, 100)
		var sp guest.GVA
		k := &probe.Kprobe{Symbol: "co_body", Pre: func(c *probe.Context) int { sp = guest.GVA(c.Regs.RSP); return 0 }}
		if err := s.e.Register(k); err != nil {
			t.Fatal(err)
		}
		s.begin(0)
		s.resume(0)
		if err := s.e.Unregister(k); err != nil {
			t.Fatal(err)
		}
		n, unused := 0, false
		r := s.registerOn("co_body", 2, &n)
		s.register(in, r)
		collect("registered", false)
		s.begin(0)
		if err := s.e.Unregister(&r.Kprobe); err != nil {
			t.Fatal(err)
		}
		if err := s.e.NotifyUnused(func() { unused = true }, r.ReturnStage); err != nil {
			t.Fatal(err)
		}
		collect("a call is under way", false)
		if unused {
			t.Error("the stage is in use")
		}
		s.resume(0)
		if err := s.f.Poke(sp-1024, make([]byte, 1024)); err != nil { // the remains of the frame on the stack
			t.Fatal(err)
		}
		collect("behind it", true)
		if !unused {
			t.Error("the stage is not in use any more")
		}
	}
}

// TestCollectWords: an address of the engine's code in a word of the guest keeps that
// code, wherever in it; elsewhere it keeps nothing.
func TestCollectWords(t *testing.T) {
	f := newFake(t, 1, probetest.Image())
	e := f.Engine()
	prof, _ := f.Profile(false)
	var stack guest.GVA
	at := &probe.Kprobe{Symbol: "kprobe_target", Pre: func(c *probe.Context) int {
		stack = guest.GVA(c.Regs.RSP & prof.StackMask)
		return 0
	}}
	if err := e.Register(at); err != nil {
		t.Fatal(err)
	}
	sym := symbol(t, f, "kprobe_target")
	if _, err := f.Call(0, sym, 1); err != nil || stack == 0 {
		t.Fatal(stack, err)
	}
	if err := e.Unregister(at); err != nil {
		t.Fatal(err)
	}
	p := &probe.Kprobe{Symbol: "hot_load", Pre: emptyHandler}
	optimize(t, e, p)
	jump := make([]byte, 5)
	if err := f.Read(p.Addr, jump); err != nil || jump[0] != 0xe9 {
		t.Fatalf("% x, %v", jump, err)
	}
	to := p.Addr + 5 + guest.GVA(int32(binary.LittleEndian.Uint32(jump[1:])))
	if err := e.Unregister(p); err != nil {
		t.Fatal(err)
	}
	word := stack + 64
	put := func(a guest.GVA) {
		t.Helper()
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], uint64(a))
		if err := f.Poke(word, b[:]); err != nil {
			t.Fatal(err)
		}
	}
	used := func() int {
		t.Helper()
		if err := e.Collect(); err != nil {
			t.Fatal(err)
		}
		return e.CollectorStats().Used
	}
	put(to)
	for _, a := range []guest.GVA{to, to + 1, to + 4} {
		if put(a); used() == 0 {
			t.Fatalf("%v in a word does not keep %v", a, to)
		}
	}
	code := make([]byte, 8)
	if err := f.Read(to, code); err != nil || bytes.Equal(code, bytes.Repeat([]byte{0xcc}, 8)) {
		t.Errorf("% x, %v", code, err)
	}
	put(0)
	if used() != 0 {
		t.Errorf("%d bytes are in use", used())
	}
	if err := f.Read(to, code); err != nil || !bytes.Equal(code, bytes.Repeat([]byte{0xcc}, 8)) {
		t.Errorf("% x is left, %v", code, err)
	}
}
