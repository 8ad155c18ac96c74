package probe_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// detourOf returns where the jump at an optimized site leads to, and where the
// jump there does when that is a board.
func detourOf(t *testing.T, f *probetest.Fake, site guest.GVA) (addr, entry guest.GVA) {
	t.Helper()
	addr = jumpAt(t, f, site)
	var b [1]byte
	if err := f.Read(addr, b[:]); err != nil {
		t.Fatal(err)
	}
	if b[0] == x86.JmpOp {
		return addr, jumpAt(t, f, addr)
	}
	return addr, addr
}

func jumpAt(t *testing.T, f *probetest.Fake, at guest.GVA) guest.GVA {
	t.Helper()
	var b [x86.JmpLen]byte
	if err := f.Read(at, b[:]); err != nil || b[0] != x86.JmpOp {
		t.Fatalf("no jump at %v: % x, %v", at, b, err)
	}
	return at + x86.JmpLen + guest.GVA(int64(int32(binary.LittleEndian.Uint32(b[1:]))))
}

// optimize registers probes without a post handler and gives their sites jumps.
func optimize(t *testing.T, e *probe.Engine, ps ...*probe.Kprobe) {
	t.Helper()
	if err := e.Register(probe.Probes(ps)...); err != nil {
		t.Fatal(err)
	}
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		if i, _ := e.Info(p); !i.Optimized {
			t.Fatalf("%s: %+v", p.Symbol, i.Unoptimized)
		}
	}
}

// TestWaitingWithoutAStop: a site that may have its jump after all, but finds
// the world not to be stopped, waits, and says so.
func TestWaitingWithoutAStop(t *testing.T) {
	f, e := newFaulty(t)
	f.several = "two of them"
	p := &probe.Kprobe{Symbol: "f_emulate", Pre: emptyHandler}
	if err := e.Register(p); err != nil {
		t.Fatal(err)
	}
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	if i, _ := e.Info(p); i.Unoptimized != (probe.Unoptimized{Reason: "shared_text", Detail: "two of them"}) {
		t.Errorf("not refused: %+v", i.Unoptimized)
	}
	f.several, f.stopErr = "", errBroken
	if err := e.Optimize(); !errors.Is(err, errBroken) {
		t.Errorf("got %v, want %v", err, errBroken)
	}
	if i, _ := e.Info(p); i.Unoptimized != (probe.Unoptimized{Reason: "waiting"}) {
		t.Errorf("not waiting: %+v", i.Unoptimized)
	}
	f.stopErr = nil
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	if i, _ := e.Info(p); !i.Optimized {
		t.Errorf("no jump: %+v", i.Unoptimized)
	}
}

// TestRewrittenJump is a table of events that make the engine remove a jump, for
// guests that have rewritten one byte of the region: that byte stays, and all others
// are restored. If it was a byte of the jump, the error says so, or the log, if the
// call itself succeeded. The engine continues.
func TestRewrittenJump(t *testing.T) {
	ops := []struct {
		name string
		logs bool // it says so in the log alone
		do   func(e *probe.Engine, p *probe.Kprobe) error
	}{
		{"unregister", false, func(e *probe.Engine, p *probe.Kprobe) error { return e.Unregister(p) }},
		{"disable", false, func(e *probe.Engine, p *probe.Kprobe) error { return e.Disable(p) }},
		{"disarm all", false, func(e *probe.Engine, _ *probe.Kprobe) error { return e.DisarmAll() }},
		{"optimization off", false, func(e *probe.Engine, _ *probe.Kprobe) error { return e.SetOptimization(false) }},
		{"post handler", true, func(e *probe.Engine, p *probe.Kprobe) error {
			return e.Register(&probe.Kprobe{Symbol: p.Symbol, Post: func(*probe.Context) {}})
		}},
		{"close", false, func(e *probe.Engine, _ *probe.Kprobe) error { return e.Close() }},
	}
	image := probetest.Image()
	for _, op := range ops {
		for _, off := range []int{0, 1, x86.JmpLen - 1, x86.JmpLen} {
			what := fmt.Sprintf("%s, byte %d", op.name, off)
			var log bytes.Buffer
			f, err := probetest.NewFake(probetest.FakeOptions{Probe: probe.Options{OptimizeDelay: -1, Log: slog.New(slog.NewTextHandler(&log, nil))}})
			if err != nil {
				t.Fatal(err)
			}
			e := f.Engine()
			p, other := &probe.Kprobe{Symbol: "f_emulate", Pre: emptyHandler}, &probe.Kprobe{Symbol: "work", Pre: emptyHandler}
			optimize(t, e, p)
			at := p.Addr
			if i, _ := e.Info(p); i.Region <= x86.JmpLen {
				t.Fatalf("a region of %d bytes", i.Region)
			}
			var was, now [16]byte
			if err := f.Read(at, was[:]); err != nil {
				t.Fatal(err)
			}
			was[off] ^= 0x5a
			if err := f.Poke(at+guest.GVA(off), was[off:off+1]); err != nil {
				t.Fatal(err)
			}
			theirs := was[off]
			copy(was[:], image.Code(at, x86.JmpLen))
			err = op.do(e, p)
			var mismatch *guest.TextMismatchError
			switch ours := off >= x86.JmpLen; {
			case ours:
				if err != nil || log.Len() != 0 {
					t.Errorf("%s: %v, log %q", what, err, &log)
				}
			case op.logs && err == nil && strings.Contains(log.String(), at.String()):
			case !errors.As(err, &mismatch) || mismatch.Addr != at || !strings.Contains(err.Error(), at.String()):
				t.Errorf("%s: %v", what, err)
			}
			if i, ok := e.Info(p); ok && i.Armed {
				was[0] = x86.Int3
			}
			was[off] = theirs
			if err := f.Read(at, now[:]); err != nil || now != was {
				t.Errorf("%s: text is % x, want % x", what, now, was)
			}
			if i, ok := e.Info(p); ok && i.Optimized {
				t.Errorf("%s: %+v", what, i)
			}
			if s := e.OptimizerStats(); s.Now != 0 || s.Optimized != s.Unoptimized {
				t.Errorf("%s: %+v", what, s)
			}
			if op.name != "close" {
				// The optimizer does not touch code that differs from the analyzed
				// code, and everything else works.
				if err := errors.Join(e.Optimize(), e.Register(other), e.Optimize(), e.Unregister(other)); err != nil {
					t.Errorf("%s: another probe: %v", what, err)
				}
				if i, ok := e.Info(p); ok && i.Optimized {
					t.Errorf("%s: %+v", what, i)
				}
			}
			if err := f.Read(at, now[:]); err != nil || now != was {
				t.Errorf("%s: text is % x behind a pass, want % x", what, now, was)
			}
			_ = f.Close() // it has said all that there is to say
		}
	}
}

// halting is a fake guest that cannot be stopped, or not to the end, and whose
// detours have no place.
type halting struct {
	*probetest.Fake
	before, after error // of Stop
	mapErr        error
	maps          int
}

func (f *halting) Stop(do func(probe.World) error) error {
	if f.before != nil {
		return f.before
	}
	if err := f.Fake.Stop(do); err != nil {
		return err
	}
	return f.after
}

func (f *halting) MapExec(near, addr guest.GVA, n int) error {
	f.maps++
	if f.mapErr != nil {
		return f.mapErr
	}
	return f.Fake.MapExec(near, addr, n)
}

func newHalting(t *testing.T, o probe.Options) (*halting, *probe.Engine) {
	t.Helper()
	f := &halting{Fake: newFake(t, 1, probetest.Image())}
	e, err := probe.New(f, o)
	if err != nil {
		t.Fatal(err)
	}
	return f, e
}

// manual leaves the passes to Engine.Optimize.
var manual = probe.Options{OptimizeDelay: -1}

// TestStopFails is a table of failures of an optimizer pass, or of the knob: the text
// agrees with the reported state of the sites, and the next try succeeds.
func TestStopFails(t *testing.T) {
	for _, tt := range []struct {
		name          string
		before, after error
		optimized     bool // after the failure
	}{
		{"it does not stop", errBroken, nil, false},
		{"it does not go on", nil, errBroken, true},
	} {
		f, e := newHalting(t, manual)
		p := &probe.Kprobe{Symbol: "f_emulate", Pre: emptyHandler}
		if err := e.Register(p); err != nil {
			t.Fatal(err)
		}
		text := func(what string, jump bool) {
			t.Helper()
			var b [1]byte
			i, _ := e.Info(p)
			if err := f.Read(p.Addr, b[:]); err != nil || i.Optimized != jump || (b[0] == x86.JmpOp) != jump || (b[0] == x86.Int3) == jump {
				t.Errorf("%s, %s: optimized %v, byte %#x, %v", tt.name, what, i.Optimized, b[0], err)
			}
		}
		f.before, f.after = tt.before, tt.after
		if err := e.Optimize(); !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", tt.name, err)
		}
		text("pass", tt.optimized)
		f.before, f.after = nil, nil
		if err := e.Optimize(); err != nil {
			t.Errorf("%s: the next pass: %v", tt.name, err)
		}
		text("next pass", true)
		f.before, f.after = tt.before, tt.after
		if err := e.SetOptimization(false); !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", tt.name, err)
		}
		text("knob", !tt.optimized)
		if on := e.Optimization(); on == tt.optimized {
			t.Errorf("%s: the knob says %v", tt.name, on)
		}
		f.before, f.after = nil, nil
		if err := e.SetOptimization(false); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		text("knob again", false)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestStopFailsForAWhile: sites whose pass failed still wait, and get their jumps
// with the first pass that can stop the target.
func TestStopFailsForAWhile(t *testing.T) {
	f, e := newHalting(t, manual)
	p := &probe.Kprobe{Symbol: "f_emulate", Pre: emptyHandler}
	if err := e.Register(p); err != nil {
		t.Fatal(err)
	}
	f.before = errBroken
	for range 3 {
		if err := e.Optimize(); !errors.Is(err, errBroken) {
			t.Errorf("%v", err)
		}
		if i, _ := e.Info(p); i.Optimized || i.Unoptimized.Reason != "waiting" {
			t.Errorf("%+v", i.Unoptimized)
		}
	}
	f.before = nil
	if err := e.Optimize(); err != nil {
		t.Error(err)
	}
	if i, _ := e.Info(p); !i.Optimized {
		t.Errorf("%+v", i.Unoptimized)
	}
}

// TestNoFarPages: if there is no page for a board, the site keeps its int3 and
// reports why, and pages that are already mapped can still be used.
func TestNoFarPages(t *testing.T) {
	f, e := newHalting(t, manual)
	f.mapErr = errors.New("all 4096 pages are in use")
	boarded := &probe.Kprobe{Symbol: "f_emulate", Pre: emptyHandler} // there are boundaries in the jump
	if err := errors.Join(e.Register(boarded), e.Optimize()); err != nil {
		t.Fatal(err)
	}
	if i, _ := e.Info(boarded); i.Optimized || i.Unoptimized.Reason != "no_place" || !strings.Contains(i.Unoptimized.Detail, "cc") {
		t.Errorf("%+v", i.Unoptimized)
	}
	var b [16]byte
	orig := probetest.Image().Code(boarded.Addr, 16)
	if err := f.Read(boarded.Addr, b[:]); err != nil || b[0] != x86.Int3 || !bytes.Equal(b[1:], orig[1:]) {
		t.Errorf("text is % x, %v", b, err)
	}
	if f.maps == 0 || f.maps > 512 {
		t.Errorf("%d tries", f.maps)
	}
	// Refused is refused: it is not tried with each pass.
	tries := f.maps
	if err := e.Optimize(); err != nil || f.maps != tries {
		t.Errorf("%d more tries, %v", f.maps-tries, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestOptimizeInHandler is a table of what a handler may not do.
func TestOptimizeInHandler(t *testing.T) {
	f := newFake(t, 1, probetest.Image())
	e := f.Engine()
	for name, do := range map[string]func() error{
		"Optimize":              e.Optimize,
		"SetOptimization(off)":  func() error { return e.SetOptimization(false) },
		"SetOptimization(same)": func() error { return e.SetOptimization(true) },
		"Close":                 e.Close,
	} {
		var err error
		p := &probe.Kprobe{Symbol: "f_emulate", Pre: func(*probe.Context) int { err = do(); return 0 }}
		optimize(t, e, p) // the handler runs at the exit of the detour
		if _, cerr := f.Call(0, symbol(t, f, "f_emulate"), 1, 2); cerr != nil {
			t.Fatal(cerr)
		}
		if !errors.Is(err, probe.ErrInHandler) {
			t.Errorf("%s in a handler: %v", name, err)
		}
		// What only looks may be asked there.
		p2 := &probe.Kprobe{Symbol: "work", Pre: func(*probe.Context) int {
			e.OptimizerStats()
			e.Optimization()
			e.Info(p)
			return 0
		}}
		if err := e.Register(p2); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Call(0, symbol(t, f, "work"), 1); err != nil {
			t.Fatal(err)
		}
		if err := e.Unregister(p, p2); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCloseWhileAPassWaits: an engine that is closed with sites that wait leaves the
// text alone for ever, also when the pass comes due.
func TestCloseWhileAPassWaits(t *testing.T) {
	for _, delay := range []time.Duration{time.Microsecond, time.Millisecond, time.Hour} {
		f, e := newHalting(t, probe.Options{OptimizeDelay: delay})
		p := &probe.Kprobe{Symbol: "f_emulate", Pre: emptyHandler}
		if err := e.Register(p); err != nil {
			t.Fatal(err)
		}
		var wait sync.WaitGroup
		for range 2 {
			wait.Go(func() {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
			wait.Go(func() {
				if err := e.Optimize(); err != nil && !errors.Is(err, probe.ErrClosed) {
					t.Error(err)
				}
				e.OptimizerStats()
			})
		}
		wait.Wait()
		if err := e.Optimize(); !errors.Is(err, probe.ErrClosed) {
			t.Errorf("pass of a closed engine: %v", err)
		}
		if err := e.SetOptimization(false); !errors.Is(err, probe.ErrClosed) {
			t.Errorf("knob of a closed engine: %v", err)
		}
		var b [16]byte
		at := symbol(t, f.Fake, "f_emulate")
		if err := f.Read(at, b[:]); err != nil || !bytes.Equal(b[:], probetest.Image().Code(at, 16)) {
			t.Errorf("text is % x, %v", b, err)
		}
		if s := e.OptimizerStats(); s.Now != 0 || s.Waiting != 0 || s.Optimized != s.Unoptimized {
			t.Errorf("%+v", s)
		}
	}
}

// TestOptimizerStatsRace asks for what the optimizer has done while it does it.
func TestOptimizerStatsRace(t *testing.T) {
	f := newFake(t, 1, probetest.Image())
	e := f.Engine()
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				e.OptimizerStats()
				e.List()
			}
		}
	})
	names := []string{"f_emulate", "f_boost", "work", "hot_load"}
	for range 50 {
		var ps []*probe.Kprobe
		for _, n := range names {
			ps = append(ps, &probe.Kprobe{Symbol: n, Pre: emptyHandler})
		}
		if err := errors.Join(e.Register(probe.Probes(ps)...), e.Optimize()); err != nil {
			t.Fatal(err)
		}
		slices.Reverse(ps)
		if err := e.Unregister(ps...); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	wait.Wait()
}
