package probe_test

import (
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// activation makes vCPU 0 enter the function at addr and come back from it.
type activation struct {
	e    *probe.Engine
	f    *probetest.Fake
	addr guest.GVA
	regs probe.Regs
	word [8]byte
}

const (
	actSP  = guest.GVA(0x7000_8000)
	actRet = textBase + 8
)

func (a *activation) run(tb testing.TB) {
	binary.LittleEndian.PutUint64(a.word[:], uint64(actRet))
	if err := a.f.Write(actSP, a.word[:]); err != nil {
		tb.Fatal(err)
	}
	a.regs.RSP = uint64(actSP)
	hitOnce(a.e, 0, &a.regs, a.addr, 0)
	if err := a.f.Read(actSP, a.word[:]); err != nil {
		tb.Fatal(err)
	}
	if to := guest.GVA(binary.LittleEndian.Uint64(a.word[:])); to != actRet {
		a.regs.RSP = uint64(actSP) + 8
		hitOnce(a.e, 0, &a.regs, to, 0)
	}
}

func returnProbe() *probe.Kretprobe {
	return &probe.Kretprobe{
		Kprobe: probe.Kprobe{Symbol: "f0"}, DataSize: 8,
		Entry:  func(c *probe.Context) int { c.Data[0]++; return 0 },
		Return: func(*probe.Context) {},
	}
}

// TestReturnAllocates: no allocation per activation, with a kretprobe, with
// three, with one that has no instance left, with a stack walk and with a
// jprobe.
func TestReturnAllocates(t *testing.T) {
	f := newFake(t, 1, functionsImage(t, 1))
	e := f.Engine()
	a := &activation{e: e, f: f, addr: textBase}
	pcs := make([]guest.GVA, 16)
	walk := returnProbe()
	walk.Return = func(c *probe.Context) { c.Stack(pcs) }
	full := returnProbe()
	full.MaxActive = 1
	args := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "f0"}, Entry: func(_ *probe.Context, a probe.Args) { a.Uint64(7) }}
	for _, c := range []struct {
		name string
		ps   []probe.Probe
	}{
		{"one", []probe.Probe{returnProbe()}},
		{"three", []probe.Probe{returnProbe(), returnProbe(), returnProbe()}},
		{"with a kprobe", []probe.Probe{returnProbe(), &probe.Kprobe{Symbol: "f0", Pre: emptyHandler}}},
		{"stack", []probe.Probe{walk}},
		{"jprobe", []probe.Probe{args}},
	} {
		if err := e.Register(c.ps...); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(200, func() { a.run(t) }); n > ceiling {
			t.Errorf("%s: %v allocations per activation", c.name, n)
		}
		unregisterAll(t, e)
	}
	if err := e.Register(full); err != nil {
		t.Fatal(err)
	}
	miss := func() {
		binary.LittleEndian.PutUint64(a.word[:], uint64(actRet))
		if err := f.Write(actSP-64, a.word[:]); err != nil {
			t.Fatal(err)
		}
		a.regs.RSP = uint64(actSP - 64)
		hitOnce(e, 0, &a.regs, a.addr, 0)
	}
	a.regs.RSP = uint64(actSP)
	hitOnce(e, 0, &a.regs, a.addr, 0)
	if n := testing.AllocsPerRun(200, miss); n > ceiling {
		t.Errorf("missed: %v allocations per activation", n)
	}
	if s, _, _ := e.Stats(&full.Kprobe); s.Missed < 200 || s.Handled != 1 {
		t.Errorf("%+v", s)
	}
}

func unregisterAll(tb testing.TB, e *probe.Engine) {
	tb.Helper()
	for _, i := range e.List() {
		if err := e.Unregister(i.Probe); err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkReturn is the engine's own work for one activation: both traps, and
// the test's two accesses to the stack.
func BenchmarkReturn(b *testing.B) {
	f := newFake(b, 1, functionsImage(b, 1))
	a := &activation{e: f.Engine(), f: f, addr: textBase}
	if err := f.Engine().Register(returnProbe()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		a.run(b)
	}
}
