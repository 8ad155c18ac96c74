package probetest

import (
	"encoding/binary"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// newForeign boots a fake that others run: no exit is seen.
func newForeign(t *testing.T) (*env, *Fake) {
	t.Helper()
	f, err := NewFake(FakeOptions{CPUs: 2, Foreign: true, Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		t.Fatal(err)
	}
	v := &env{T: t, h: f, e: f.Engine()}
	t.Cleanup(func() {
		v.checkText()
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return v, f
}

// countingStage returns a stage that adds to a word.
func (f *Fake) countingStage(v *env) *probe.Stage {
	v.Helper()
	block, host, err := f.AllocShared(64, false)
	if err != nil {
		v.Fatal(err)
	}
	return &probe.Stage{
		Code:  []byte{0xf0, 0x48, 0xff, 0x06, 0xc3}, // lock incq (%rsi); ret
		Block: block, NoStrings: true, Stack: 8,
		Counts: func(cpu int) (handled, filtered, missed uint64) {
			if cpu != 0 {
				return 0, 0, 0 // all vCPUs add to one word
			}
			n := binary.LittleEndian.Uint64(host)
			return n, 0, 0
		},
	}
}

// TestForeign: a target that sees no exits is served by jumps and programs alone.
// The first instruction of hot_load has 7 bytes, that of hot 4.
func TestForeign(t *testing.T) {
	v, f := newForeign(t)
	p := &probe.Kprobe{Name: "p", Symbol: "hot_load", Stage: f.countingStage(v)}
	q := &probe.Kprobe{Name: "q", Symbol: "hot_load", Stage: f.countingStage(v)}
	state := func(what string, k *probe.Kprobe, inGuest bool) {
		t.Helper()
		if i, ok := v.e.Info(k); !ok || i.Optimized != inGuest || i.InGuest != inGuest || i.Armed != inGuest {
			t.Errorf("%s: %+v, want a jump: %v", what, i, inGuest)
		}
	}
	hits := func(what string, n int, want ...uint64) {
		t.Helper()
		v.runOnAll(2, func(cpu int) error {
			for range n {
				if r, err := v.h.Call(cpu, v.addr("hot_load"), 1); err != nil || r != 8 {
					t.Errorf("%s: hot_load(1) = %d, %v", what, r, err)
				}
			}
			return nil
		})
		if got := []uint64{v.stats(p).InGuest, v.stats(q).InGuest}; !slices.Equal(got, want) {
			t.Errorf("%s: hits %v, want %v", what, got, want)
		}
	}
	if i, err := v.e.Check(p); err != nil || i.Symbol != "hot_load" {
		t.Errorf("check: %+v, %v", i, err)
	}
	v.register(p)
	state("registered", p, true) // at once: there is no int3 to wait with
	v.register(q)
	hits("both", 10, 20, 20)
	if err := v.e.Disable(p); err != nil {
		t.Error(err)
	}
	hits("one disabled", 10, 20, 40)
	if err := v.e.Enable(p); err != nil {
		t.Error(err)
	}
	if err := v.e.SetOptimization(false); err != nil {
		t.Error(err)
	}
	state("with the knob off", p, true)
	hits("with the knob off", 10, 40, 60)
	if err := v.e.DisarmAll(); err != nil {
		t.Error(err)
	}
	state("disarmed", p, false)
	hits("disarmed", 10, 40, 60)
	v.checkText()
	if err := v.e.ArmAll(); err != nil {
		t.Error(err)
	}
	v.unregister(p)
	hits("one gone", 10, 40, 80)
	if err := f.Reset(Image()); err != nil {
		t.Error(err)
	}
	state("behind a reset", q, true)
	v.unregister(q)
	if x := v.e.Totals(-1); x != (probe.EngineStats{}) {
		t.Errorf("the engine has seen %+v", x)
	}
}

// TestForeignRefuses: everything else is refused, with the reason, and leaves no
// trace.
func TestForeignRefuses(t *testing.T) {
	v, f := newForeign(t)
	stage := f.countingStage(v)
	faulting := *stage
	faulting.Fixups = []probe.Fixup{{Fault: 0, Resume: 4}}
	walking := *stage
	walking.Walk = 3
	at := func(symbol string, k probe.Kprobe) probe.Kprobe {
		k.Symbol = symbol
		return k
	}
	loads := v.offsets("hot_load")
	for _, c := range []struct {
		name string
		p    probe.Probe
		want string
	}{
		{"a handler in Go", &probe.Kprobe{Symbol: "hot_load", Pre: nop}, "must run in the guest"},
		{"no handler", &probe.Kprobe{Symbol: "hot_load"}, "must run in the guest"},
		{"a post handler", &probe.Kprobe{Symbol: "hot_load", Stage: stage, Post: func(*probe.Context) {}}, "after a breakpoint"},
		{"a fault handler", &probe.Kprobe{Symbol: "hot_load", Stage: stage, Fault: func(*probe.Context, probe.Trap) bool { return false }}, "after a breakpoint"},
		{"a program that may fault", &probe.Kprobe{Symbol: "hot_load", Stage: &faulting}, "nothing sees a fault"},
		{"a program that takes the stack", &probe.Kprobe{Symbol: "hot_load", Stage: &walking}, "nothing sees that"},
		{"one address space", &probe.Kprobe{Symbol: "hot_load", Stage: stage, Space: 0x1000}, "all address spaces"},
		{"a short instruction", &probe.Kprobe{Symbol: "hot", Stage: stage}, "displaces the next one"},
		{"a site that has no jump", &probe.Kprobe{Symbol: "r_hlt", Stage: stage}, "it has no jump: not_boostable"},
		{"an instruction that is stepped in its place", &probe.Kprobe{Symbol: "r_far", Offset: 10, Stage: stage}, "cannot step in place"},
		{"a kretprobe", &probe.Kretprobe{Kprobe: at("hot_load", probe.Kprobe{Stage: stage}), ReturnStage: stage}, "only a kprobe"},
		{"a jprobe", &probe.Jprobe{Kprobe: at("hot_load", probe.Kprobe{}), Entry: func(*probe.Context, probe.Args) {}}, "only a kprobe"},
		{"a jprobe with a mirror", &probe.Jprobe{Kprobe: at("many_args", probe.Kprobe{}), Mirror: "mirror_many"}, "only a kprobe"},
	} {
		_, checked := v.e.Check(c.p)
		for _, err := range []error{checked, v.e.Register(c.p)} {
			v.checkRefused(c.name, err, probe.CodeHostCannot, syscall.ENODEV)
			if err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v does not say %q", c.name, err, c.want)
			}
		}
	}
	for _, w := range []*probe.Watch{
		{Symbol: "scratch", Access: probe.AccessWrite},
		{Symbol: "scratch", Access: probe.AccessWrite, Emulate: true},
		{Symbol: "hot_load", Access: probe.AccessExec},
		{Symbol: "hot_load", Access: probe.AccessExec, Emulate: true},
	} {
		v.checkRefused("a watch", v.e.Watch(w), probe.CodeHostCannot, syscall.ENODEV)
	}
	v.checkText()

	// What is there stays when something that is refused comes to it.
	p := &probe.Kprobe{Symbol: "hot_load", Stage: f.countingStage(v)}
	v.register(p)
	inside := &probe.Kprobe{Addr: p.Addr + guest.GVA(loads[1]), Stage: stage}
	if loads[1] < 5 {
		t.Fatalf("hot_load begins with %d bytes", loads[1])
	}
	for _, c := range []struct {
		name string
		ps   []probe.Probe
	}{
		{"a handler in Go beside a program", []probe.Probe{&probe.Kprobe{Symbol: "hot_load", Pre: nop}}},
		{"a batch of which the last is refused", []probe.Probe{&probe.Kprobe{Symbol: "hot_load", Stage: f.countingStage(v)}, &probe.Kprobe{Symbol: "hot", Stage: stage}}},
		{"a short instruction behind it", []probe.Probe{inside}},
	} {
		v.checkRefused(c.name, v.e.Register(c.ps...), probe.CodeHostCannot, syscall.ENODEV)
		before := v.stats(p).InGuest
		if r, err := f.Call(0, v.addr("hot_load"), 1); err != nil || r != 8 {
			t.Errorf("%s: hot_load(1) = %d, %v", c.name, r, err)
		}
		if n := v.stats(p).InGuest - before; n != 1 {
			t.Errorf("%s: %d hits of 1", c.name, n)
		}
	}
	v.unregister(p)
}
