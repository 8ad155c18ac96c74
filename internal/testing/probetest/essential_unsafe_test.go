package probetest

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// TestEssentialNested: an essential probe is not missed while a handler has the guest run a function, and the outer handler keeps its context.
func TestEssentialNested(t *testing.T) {
	v := bootGS(t, FakeOptions{})
	var nested, plain, after int
	needed := &probe.Kprobe{Symbol: "f_emulate", Essential: true, Pre: func(c *probe.Context) int {
		nested++
		back, err := c.Caller()
		if err != nil {
			t.Error(err)
		}
		c.ReturnTo(back, 4711)
		return 1
	}}
	other := &probe.Kprobe{Symbol: "hot", Pre: func(*probe.Context) int { plain++; return 0 }}
	outer := &probe.Kprobe{Symbol: "work", Pre: func(c *probe.Context) int {
		was := *c.Regs
		got, err := c.Call(v.addr("f_emulate"), 1)
		if err != nil || got != 4711 {
			t.Errorf("%d, %v", got, err)
		}
		if _, err := c.Call(v.addr("hot")); err != nil {
			t.Error(err)
		}
		if *c.Regs != was || c.Probe.Symbol != "work" {
			t.Errorf("the context is %+v of %s, was %+v", *c.Regs, c.Probe.Symbol, was)
		}
		after++
		return 0
	}}
	v.register(needed, other, outer)
	equal(v, "work", v.call("work", 2), 16)
	if nested != 1 || after != 1 || plain != 2 {
		t.Errorf("%d hits of the essential probe, %d of the other, %d of the outer", nested, plain, after)
	}
	if s := v.stats(needed); s.Handled != 1 || s.Missed != 0 {
		t.Errorf("essential: %+v", s)
	}
	if s := v.stats(other); s.Missed != 1 {
		t.Errorf("other: %+v", s)
	}
	for _, p := range []*probe.Kprobe{needed, other, outer} {
		v.unregister(p)
	}
}

// TestEssentialProbe: DisarmAll leaves an essential probe until no vCPU is in a stage that may fault.
func TestEssentialProbe(t *testing.T) {
	v := bootGS(t, FakeOptions{CPUs: 2, Faults: &guest.FaultProfile{CountOff: 0x60, StackOff: 0x68}})
	stage, host, err := v.fake().AllocShared(3*64, false)
	if err != nil {
		t.Fatal(err)
	}
	word := func(i int) *uint64 { return (*uint64)(unsafe.Pointer(&host[8*i])) } // of vCPU 0: it is there; it may go
	s := &probe.Stage{NoStrings: true, Stack: 8, Block: stage, Stride: 64, Counts: func(int) (a, b, c uint64) { return }}
	s.Code = x86.Assemble(func(a *x86.Asm) {
		a.Mov(8, x86.At(x86.RSI, 0), x86.Imm(1))
		again := a.LabelHere()
		a.Cmp(8, x86.At(x86.RSI, 8), x86.Imm(0))
		a.Jcc(x86.CondE, again)
		s.Fixups = []probe.Fixup{{Fault: a.Len(), Resume: a.Len()}}
		a.Ret()
	})
	p := &probe.Kprobe{Symbol: "hot", Pre: nop, Stage: s}
	needed := &probe.Kprobe{Symbol: "f_emulate", Pre: nop, Post: func(*probe.Context) {}, Essential: true}
	text := func(p *probe.Kprobe) byte { return v.bytes(p.Addr, 1)[0] }
	hot, other := v.bytes(v.addr("hot"), 1)[0], v.bytes(v.addr("f_emulate"), 1)[0]
	v.register(p, needed)
	v.optimize()
	if i := v.info(p); !i.InGuest || text(needed) != x86.Int3 {
		t.Fatalf("%+v", i)
	}
	called, disarmed := make(chan bool, 1), make(chan error, 1)
	go func() {
		_, err := v.h.Call(0, v.addr("work"), 1)
		called <- err == nil
	}()
	for atomic.LoadUint64(word(0)) == 0 {
		time.Sleep(time.Millisecond)
	}
	go func() { disarmed <- v.e.DisarmAll() }()
	for v.e.Armed() {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-disarmed:
		t.Fatalf("disarmed while a vCPU is in the stage: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if text(p) != hot || text(needed) != x86.Int3 {
		t.Errorf("the jump is %#x, the essential probe %#x", text(p), text(needed))
	}
	atomic.StoreUint64(word(1), 1)
	if err := <-disarmed; err != nil || !<-called {
		t.Fatal(err)
	}
	if text(needed) != other {
		t.Errorf("the essential probe is still there: %#x", text(needed))
	}
	if err := v.e.ArmAll(); err != nil || text(needed) != x86.Int3 {
		t.Errorf("armed again: %v, %#x", err, text(needed))
	}
	if err := v.e.DisarmAll(); err != nil || text(needed) != other {
		t.Errorf("disarmed again: %v, %#x", err, text(needed))
	}
	v.unregister(p)
	v.unregister(needed)
}
