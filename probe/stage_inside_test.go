package probe_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestStageInsideHandler: a stage does not know of a handler on the host that is
// under way on its vCPU. A hit inside it is handled; by an exit it is missed.
func TestStageInsideHandler(t *testing.T) {
	f, err := probetest.NewFake(probetest.FakeOptions{Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	e := f.Engine()
	block, host, err := f.AllocShared(64, false)
	if err != nil {
		t.Fatal(err)
	}
	onHost := 0
	in := &probe.Kprobe{Name: "in", Symbol: "f_emulate", Pre: func(*probe.Context) int { onHost++; return 0 }, Stage: &probe.Stage{
		Code:  []byte{0xf0, 0x48, 0xff, 0x06, 0xc3}, // lock incq (%rsi); ret
		Block: block, NoStrings: true, Stack: 8,
		Counts: func(int) (handled, filtered, missed uint64) {
			return binary.LittleEndian.Uint64(host), 0, 0
		},
	}}
	inner, err := f.Symbol("f_emulate")
	if err != nil {
		t.Fatal(err)
	}
	target, err := f.Symbol("kprobe_target")
	if err != nil {
		t.Fatal(err)
	}
	out := &probe.Kprobe{Name: "out", Symbol: "kprobe_target", Pre: func(c *probe.Context) int {
		if got, err := c.Call(inner.Addr, 1, 3); err != nil || got != 2 {
			t.Errorf("called from a handler: %d, %v", got, err)
		}
		return 0
	}}
	if err := e.Register(in, out); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		jump                     bool
		handled, missed, inGuest uint64 // of both rounds together
	}{{true, 1, 0, 1}, {false, 1, 1, 1}} {
		if err := e.SetOptimization(tc.jump); err != nil {
			t.Fatal(err)
		}
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
		if i, _ := e.Info(in); i.InGuest != tc.jump {
			t.Fatalf("in the guest: %v, want %v: %+v", i.InGuest, tc.jump, i.Unoptimized)
		}
		if got, err := f.Call(0, target.Addr, 33); err != nil || got != 11 {
			t.Fatalf("call: %d, %v", got, err)
		}
		s, _, _ := e.Stats(in)
		if s.Handled != tc.handled || s.Missed != tc.missed || s.InGuest != tc.inGuest || s.Hits != s.Handled+s.Missed {
			t.Errorf("with a jump %v: %+v", tc.jump, s)
		}
	}
	if onHost != 0 {
		t.Errorf("the handler ran %d times", onHost)
	}
}

// TestReturnStageDeep: what a kretprobe's stages use of the stack is bounded as that of
// others is, together with the engine's own code at entry and return.
func TestReturnStageDeep(t *testing.T) {
	const most = probe.MaxStageStack
	for _, tc := range []struct {
		name      string
		entry, at int // stack of the stages; no entry stage when negative
		reads     uint32
		in        bool
	}{
		{"return", -1, most - 8, 0, true},
		{"return too deep", -1, most - 7, 0, false},
		{"return with 2 words of data", -1, most - 8 - 16, 1 << 22, true},
		{"return too deep with 2 words of data", -1, most - 8 - 15, 1 << 22, false},
		{"entry", most - 48, 8, 0, true},
		{"entry too deep", most - 47, 8, 0, false},
	} {
		s := newStaged(t, false)
		calls := 0
		r := s.registerOn("co_body", 4, &calls)
		r.ReturnStage.Stack, r.ReturnStage.Reads = tc.at, tc.reads
		if tc.entry >= 0 {
			r.Stage = newReturnStage(0x31, 0xc0) // xor %eax,%eax
			r.Stage.Stack = tc.entry
		}
		s.register(tc.in, r)
		if i, _ := s.e.Info(&r.Kprobe); tc.in != (i.NoStage == "") || !tc.in && !strings.Contains(i.NoStage, "bytes of the interrupted stack") {
			t.Errorf("%s: %q", tc.name, i.NoStage)
		}
	}
}
