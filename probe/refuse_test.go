package probe_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// faulty is a fake guest whose services fail on demand.
type faulty struct {
	*probetest.Fake
	stopErr  error
	allocErr error
	writeErr error
	readErr  error
	execAt   guest.GVA // where AllocExec puts everything, 0 = as the fake does
	patchErr map[guest.GVA]error
	several  string // what OneMapping says
	sizes    []int  // asked of AllocExec
	onStop   func()
}

func (f *faulty) Stop(do func(probe.World) error) error {
	if f.stopErr != nil {
		return f.stopErr
	}
	if f.onStop != nil {
		f.onStop()
	}
	return f.Fake.Stop(func(w probe.World) error { return do(faultyWorld{w, f}) })
}

func (f *faulty) OneMapping(bool) string { return f.several }

func (f *faulty) AllocExec(near guest.GVA, size int) (guest.GVA, error) {
	f.sizes = append(f.sizes, size)
	if f.allocErr != nil {
		return 0, f.allocErr
	}
	if f.execAt != 0 {
		return f.execAt, nil
	}
	return f.Fake.AllocExec(near, size)
}

func (f *faulty) WriteExec(addr guest.GVA, p []byte) error {
	if f.writeErr != nil {
		return f.writeErr
	}
	return f.Fake.WriteExec(addr, p)
}

func (f *faulty) ReadMemory(root guest.GPA, addr guest.GVA, p []byte) error {
	if f.readErr != nil {
		return f.readErr
	}
	return f.Fake.ReadMemory(root, addr, p)
}

type faultyWorld struct {
	probe.World
	f *faulty
}

func (w faultyWorld) PatchText(addr guest.GVA, old, new []byte) error {
	if err := w.f.patchErr[addr]; err != nil {
		return err
	}
	return w.World.PatchText(addr, old, new)
}

func newFaulty(t *testing.T) (*faulty, *probe.Engine) {
	t.Helper()
	f := &faulty{Fake: newFake(t, 1, probetest.Image()), patchErr: map[guest.GVA]error{}}
	e, err := probe.New(f, probe.Options{OptimizeDelay: -1})
	if err != nil {
		t.Fatal(err)
	}
	return f, e
}

// wantCode checks that err is a refusal with a code and an errno, and wraps cause.
func wantCode(t *testing.T, err error, code probe.Code, errno syscall.Errno, cause error) {
	t.Helper()
	var e *probe.Error
	if !errors.As(err, &e) || e.Code != code || e.Errno != errno || !errors.Is(err, errno) {
		t.Errorf("got %v, want %s (%s)", err, code, probe.ErrnoName(errno))
		return
	}
	if cause != nil && !errors.Is(err, cause) {
		t.Errorf("%v does not wrap %v", err, cause)
	}
}

var errBroken = errors.New("broken")

func symbol(t *testing.T, f *probetest.Fake, name string) guest.GVA {
	t.Helper()
	s, err := f.Symbol(name)
	if err != nil {
		t.Fatal(err)
	}
	return s.Addr
}

// TestTargetFailures: whatever the target cannot do, the registration is
// refused with a reason, and nothing has changed.
func TestTargetFailures(t *testing.T) {
	pf := &guest.PageFaultError{VA: 1, Reason: guest.FaultNotPresent}
	for _, c := range []struct {
		name  string
		set   func(f *faulty)
		code  probe.Code
		errno syscall.Errno
		cause error
	}{
		{"stop", func(f *faulty) { f.stopErr = errBroken }, probe.CodeTarget, syscall.EIO, errBroken},
		{"stop from a handler", func(f *faulty) { f.stopErr = probe.ErrInHandler }, probe.CodeInHandler, syscall.EDEADLK, nil},
		{"slot memory", func(f *faulty) { f.allocErr = errBroken }, probe.CodeNoSlot, syscall.ENOMEM, errBroken},
		{"slot contents", func(f *faulty) { f.writeErr = errBroken }, probe.CodeNoSlot, syscall.ENOMEM, errBroken},
		{"slot memory out of reach", func(f *faulty) { f.execAt = 0x4000_0000_0000 }, probe.CodeOutOfReach, syscall.EINVAL, nil},
		{"text not mapped", func(f *faulty) { f.readErr = pf }, probe.CodeUnreadable, syscall.EFAULT, pf},
		{"patch", func(f *faulty) { f.patchErr[symbol(t, f.Fake, "hot_load")] = errBroken }, probe.CodeTarget, syscall.EIO, errBroken},
		{"patch of unmapped text", func(f *faulty) { f.patchErr[symbol(t, f.Fake, "hot_load")] = pf }, probe.CodeUnreadable, syscall.EFAULT, pf},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, e := newFaulty(t)
			c.set(f)
			p, q := &probe.Kprobe{Symbol: "hot"}, &probe.Kprobe{Symbol: "hot_load"}
			wantCode(t, e.Register(p, q), c.code, c.errno, c.cause)
			if n := len(e.List()); n != 0 || p.Addr != 0 {
				t.Errorf("%d probes listed, address %v", n, p.Addr)
			}
			if _, ok := e.OriginalByte(symbol(t, f.Fake, "hot")); ok {
				t.Error("a site is left")
			}
			for _, name := range []string{"hot", "hot_load"} {
				at := symbol(t, f.Fake, name)
				var b [1]byte
				if err := f.Read(at, b[:]); err != nil || b[0] == 0xcc {
					t.Errorf("%s: byte %#x, %v", name, b[0], err)
				}
			}
			*f = faulty{Fake: f.Fake}
			if err := e.Register(p, q); err != nil {
				t.Errorf("afterwards: %v", err)
			}
			if r, err := f.Call(0, symbol(t, f.Fake, "hot_load"), 1); err != nil || r != 8 {
				t.Errorf("afterwards: hot_load gives %d, %v", r, err)
			}
		})
	}
}

// TestSmallSlab: if a whole slab is not available, a page will do.
func TestSmallSlab(t *testing.T) {
	f, e := newFaulty(t)
	f.allocErr = errBroken
	err := e.Register(&probe.Kprobe{Symbol: "hot_load"})
	wantCode(t, err, probe.CodeNoSlot, syscall.ENOMEM, errBroken)
	if len(f.sizes) != 2 || f.sizes[1] != 4096 || f.sizes[0] <= 4096 {
		t.Errorf("asked for %v, want a slab and then a page", f.sizes)
	}
}

// TestChangedText: the bytes in memory must be the analyzed ones.
func TestChangedText(t *testing.T) {
	f, e := newFaulty(t)
	at := symbol(t, f.Fake, "hot_load")
	for _, c := range []struct {
		name  string
		off   guest.GVA
		b     byte
		code  probe.Code
		errno syscall.Errno
	}{
		{"foreign int3", 0, 0xcc, probe.CodeForeignInt3, syscall.EILSEQ},
		{"another first byte", 0, 0x90, probe.CodeTextChanged, syscall.EBUSY},
		{"another last byte", 6, 0x77, probe.CodeTextChanged, syscall.EBUSY},
	} {
		var orig [1]byte
		if err := f.Read(at+c.off, orig[:]); err != nil {
			t.Fatal(err)
		}
		if err := f.Poke(at+c.off, []byte{c.b}); err != nil {
			t.Fatal(err)
		}
		err := e.Register(&probe.Kprobe{Symbol: "hot_load"})
		wantCode(t, err, c.code, c.errno, nil)
		var m *guest.TextMismatchError
		if !errors.As(err, &m) || m.Addr != at {
			t.Errorf("%s: %v does not show the bytes", c.name, err)
		}

		// The same when it is not to be armed yet, and when it changes between
		// registration and arming.
		wantCode(t, e.Register(&probe.Kprobe{Symbol: "hot_load", Disabled: true}), c.code, c.errno, nil)
		p := &probe.Kprobe{Symbol: "hot_load", Disabled: true}
		if err := f.Poke(at+c.off, orig[:]); err != nil {
			t.Fatal(err)
		}
		if err := e.Register(p); err != nil {
			t.Fatal(err)
		}
		if err := f.Poke(at+c.off, []byte{c.b}); err != nil {
			t.Fatal(err)
		}
		wantCode(t, e.Enable(p), c.code, c.errno, nil)
		if i, _ := e.Info(p); !i.Disabled || i.Armed || !p.Disabled {
			t.Errorf("%s: after a failed enable: %+v", c.name, i)
		}
		if err := e.Unregister(p); err != nil {
			t.Fatal(err)
		}
		if err := f.Poke(at+c.off, orig[:]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestGuestOverwritesProbe: text that the guest has replaced under a probe is the
// guest's: it stays and is reported, but the probe is gone.
func TestGuestOverwritesProbe(t *testing.T) {
	f, e := newFaulty(t)
	p, q := &probe.Kprobe{Symbol: "hot"}, &probe.Kprobe{Symbol: "hot_load"}
	if err := e.Register(p, q); err != nil {
		t.Fatal(err)
	}
	if err := f.Poke(p.Addr, []byte{0x90}); err != nil {
		t.Fatal(err)
	}
	err := e.Unregister(p, q)
	var m *guest.TextMismatchError
	if !errors.As(err, &m) || m.Addr != p.Addr {
		t.Errorf("unregister: got %v, want a text mismatch at %v", err, p.Addr)
	}
	if n := len(e.List()); n != 0 {
		t.Errorf("%d probes left", n)
	}
	var b [1]byte
	if err := f.Read(p.Addr, b[:]); err != nil || b[0] != 0x90 {
		t.Errorf("the guest's byte: %#x, %v, want 0x90", b[0], err)
	}
	if err := f.Read(q.Addr, b[:]); err != nil || b[0] == 0xcc {
		t.Errorf("the other probe's byte: %#x, %v", b[0], err)
	}
	if err := f.Poke(p.Addr, []byte{0x48}); err != nil {
		t.Fatal(err)
	}
}

// TestPartialArm: when one of several sites cannot be armed, all are put back.
func TestPartialArm(t *testing.T) {
	f, e := newFaulty(t)
	ps := []*probe.Kprobe{{Symbol: "hot"}, {Symbol: "kprobe_target"}, {Symbol: "hot_load"}}
	if err := e.Register(probe.Probes(ps)...); err != nil {
		t.Fatal(err)
	}
	if err := e.DisarmAll(); err != nil {
		t.Fatal(err)
	}
	f.patchErr[ps[1].Addr] = errBroken
	wantCode(t, e.ArmAll(), probe.CodeTarget, syscall.EIO, errBroken)
	for _, i := range e.List() {
		if i.Armed {
			t.Errorf("%s is armed", i.Symbol)
		}
	}
	if e.Armed() {
		t.Error("armed after a failure")
	}
	delete(f.patchErr, ps[1].Addr)
	if err := e.ArmAll(); err != nil {
		t.Fatal(err)
	}
	if err := e.Disable(ps...); err != nil {
		t.Fatal(err)
	}
	f.patchErr[ps[2].Addr] = errBroken
	err := e.Enable(ps...)
	wantCode(t, err, probe.CodeTarget, syscall.EIO, errBroken)
	var x *probe.Error
	if errors.As(err, &x) && x.Index != 2 {
		t.Errorf("index %d, want 2", x.Index)
	}
	for _, i := range e.List() {
		if i.Armed || !i.Disabled {
			t.Errorf("%s: armed %v, disabled %v", i.Symbol, i.Armed, i.Disabled)
		}
	}
}

// TestRollback: a batch that fails at its last probe leaves the sites that it
// would have shared, and probes that were enabled already, as they were.
func TestRollback(t *testing.T) {
	f, e := newFaulty(t)
	there := &probe.Kprobe{Name: "there", Symbol: "hot"}
	if err := e.Register(there); err != nil {
		t.Fatal(err)
	}
	bad := symbol(t, f.Fake, "hot_load")
	f.patchErr[bad] = errBroken
	err := e.Register(&probe.Kprobe{Symbol: "hot"}, &probe.Kprobe{Symbol: "hot"}, &probe.Kprobe{Symbol: "hot_load"})
	wantCode(t, err, probe.CodeTarget, syscall.EIO, errBroken)
	var x *probe.Error
	if errors.As(err, &x) && x.Index != 2 {
		t.Errorf("index %d, want 2", x.Index)
	}
	if list := e.List(); len(list) != 1 || list[0].Probe != there || !list[0].Armed {
		t.Errorf("left: %+v, want the one that was there", list)
	}
	off := &probe.Kprobe{Symbol: "hot_load", Disabled: true}
	if err := e.Register(off); err != nil {
		t.Fatal(err)
	}
	wantCode(t, e.Enable(there, off), probe.CodeTarget, syscall.EIO, errBroken)
	if i, _ := e.Info(there); i.Disabled || !i.Armed {
		t.Errorf("the one that was enabled: %+v", i)
	}
	if i, _ := e.Info(off); !i.Disabled || i.Armed {
		t.Errorf("the one that could not be enabled: %+v", i)
	}
}

// TestLoggedOnce: trouble in a probe's handlers is counted each time, and
// logged once per kind and probe.
func TestLoggedOnce(t *testing.T) {
	f := newFake(t, 1, probetest.Image())
	var log bytes.Buffer
	e, err := probe.New(f, probe.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	bad := func(c *probe.Context) int {
		_ = c.Read(0x10, make([]byte, 8))
		panic("boom")
	}
	p, q := &probe.Kprobe{Name: "p", Symbol: "hot", Pre: bad}, &probe.Kprobe{Name: "q", Symbol: "hot", Pre: bad}
	if err := e.Register(p, q); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r := probe.Regs{RIP: uint64(p.Addr)}
		e.Hit(0, probe.State{Regs: &r}, probe.Trap{Kind: probe.TrapBreakpoint})
	}
	for _, want := range []string{"panicked", "bad guest address"} {
		if n := strings.Count(log.String(), want); n != 2 {
			t.Errorf("%q logged %d times, want once for each of 2 probes:\n%s", want, n, log.String())
		}
	}
	if s, _, _ := e.Stats(p); s.Panics != 3 || s.BadAccesses != 3 {
		t.Errorf("counts: %+v, want 3 of each", s)
	}
}

// limited is a target whose host can do less with kernel code.
type limited struct {
	probe.Target
	kernel probe.Capabilities
}

func (l *limited) Capabilities(user bool) probe.Capabilities {
	if user {
		return probe.Capabilities{}
	}
	return l.kernel
}

// TestHostCannot: what the host's calibration excludes is refused with its
// reason.
func TestHostCannot(t *testing.T) {
	f := newFake(t, 1, probetest.Image())
	e, err := probe.New(&limited{f, probe.Capabilities{NoBreakpoint: "vector 3 goes to the guest, which has no stub"}}, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = e.Register(&probe.Kprobe{Symbol: "hot"})
	wantCode(t, err, probe.CodeHostCannot, syscall.ENODEV, nil)
	if !strings.Contains(err.Error(), "no stub") {
		t.Errorf("%v does not say why", err)
	}
	e, err = probe.New(&limited{Target: f}, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, e.Register(&probe.Kprobe{Symbol: "r_far", Offset: 10}), probe.CodeHostCannot, syscall.ENODEV, nil)
}

type noCPUs struct{ probe.Target }

func (noCPUs) NumCPU() int { return 0 }

func TestNewWithoutCPUs(t *testing.T) {
	if _, err := probe.New(noCPUs{}, probe.Options{}); err == nil {
		t.Error("an engine for a target without vCPUs")
	}
}

func TestErrorText(t *testing.T) {
	e := &probe.Error{Code: probe.CodeNotBoundary, Errno: syscall.EILSEQ, Text: "f+0x1 is inside an instruction"}
	if got, want := e.Error(), "f+0x1 is inside an instruction: EILSEQ [not_boundary]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	e = &probe.Error{Code: probe.CodeTarget, Errno: syscall.EIO, Text: "no", Detail: "at 1", Cause: io.EOF}
	if got, want := e.Error(), "no (at 1): EOF: EIO [target]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := fmt.Errorf("attach: %w", e); !errors.Is(err, syscall.EIO) || !errors.Is(err, io.EOF) {
		t.Errorf("%v loses errno or cause", err)
	}
}

// TestForbid: the API's part of the blacklist.
func TestForbid(t *testing.T) {
	f := newFake(t, 1, probetest.Image())
	e, err := probe.New(f, probe.Options{Blacklist: []string{"hot"}})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, e.Register(&probe.Kprobe{Symbol: "hot"}), probe.CodeBlacklisted, syscall.EINVAL, nil)
	if err := e.Allow("hot", "in_noinstr"); err != nil {
		t.Fatal(err)
	}
	p := &probe.Kprobe{Symbol: "hot"}
	if err := e.Register(p); err != nil {
		t.Error(err)
	}
	wantCode(t, e.Register(&probe.Kprobe{Symbol: "in_noinstr"}), probe.CodeBlacklisted, syscall.EINVAL, nil)
	if err := e.Forbid("hot"); err != nil {
		t.Fatal(err)
	}
	if i, ok := e.Info(p); !ok || !i.Armed {
		t.Error("a probe that was there did not stay")
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	wantCode(t, e.Forbid("hot"), probe.CodeClosed, syscall.ESHUTDOWN, nil)
}

// TestOperandOutOfReach: an operand that no slot can address is refused, and
// asking again and again uses up no memory.
func TestOperandOutOfReach(t *testing.T) {
	img := build(t, probetest.Func{Name: "far", Code: []byte("\x48\x8b\x05\x00\x01\x00\x80\xc3")}) // mov -0x7fffff00(%rip), %rax
	f := &faulty{Fake: newFake(t, 1, img)}
	e, err := probe.New(f, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		wantCode(t, e.Register(&probe.Kprobe{Symbol: "far"}), probe.CodeOutOfReach, syscall.EINVAL, nil)
	}
	if len(f.sizes) != 1 {
		t.Errorf("asked for memory %d times, want once", len(f.sizes))
	}
}

// TestSlotsAreReused: registering the same place again uses up no memory, and
// a slot never changes its owner.
func TestSlotsAreReused(t *testing.T) {
	f, e := newFaulty(t)
	p, q := &probe.Kprobe{Symbol: "hot_load"}, &probe.Kprobe{Symbol: "f_boost"}
	slots := map[*probe.Kprobe]guest.GVA{}
	for i := range 2000 {
		for _, k := range []*probe.Kprobe{p, q} {
			k.Addr = 0
			if err := e.Register(k); err != nil {
				t.Fatal(err)
			}
			at, ok := e.SlotOf(k)
			if !ok || i > 0 && at != slots[k] {
				t.Fatalf("round %d: slot of %s at %v, was %v", i, k.Symbol, at, slots[k])
			}
			slots[k] = at
		}
		if err := e.Unregister(p, q); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.sizes) != 1 || slots[p] == slots[q] {
		t.Errorf("memory asked for %d times, slots %v", len(f.sizes), slots)
	}
}
