package machine

import (
	"context"
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// callee is a guest that halts with interrupts off, and has functions to call:
// sum adds its six arguments, forever does not return.
func callee(t *testing.T) *guest.Image {
	code := asm(hltForever)
	sum := uint64(len(code))
	code = asm(code,
		[]byte{0x48, 0x8d, 0x04, 0x37}, // lea (%rdi,%rsi), %rax
		[]byte{0x48, 0x01, 0xd0},       // add %rdx, %rax
		[]byte{0x48, 0x01, 0xc8},       // add %rcx, %rax
		[]byte{0x4c, 0x01, 0xc0},       // add %r8, %rax
		[]byte{0x4c, 0x01, 0xc8},       // add %r9, %rax
		[]byte{0xc3})
	forever := uint64(len(code))
	code = asm(code, spin, stub3)
	return tinyGuest(t, code, []byte{0xc3}, tinySym{"sum", tinyText + sum, forever - sum}, tinySym{"forever", tinyText + forever, uint64(len(spin))})
}

func address(t testing.TB, m *Machine, name string) guest.GVA {
	t.Helper()
	s, err := m.Image().Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return s.Addr
}

func TestCallAtSafePoint(t *testing.T) {
	m := newMachine(t, Config{Image: callee(t), VCPUs: 2, Memory: 16 << 20})
	ctx := context.Background()
	sum := address(t, m, "sum")
	if _, err := m.Call(ctx, sum); !errors.Is(err, ErrNotRunning) {
		t.Errorf("call before the start: %v", err)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	hits := 0
	k := &probe.Kprobe{Symbol: "sum", Pre: func(c *probe.Context) int { hits++; return 0 }}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	for n := range 7 {
		args := []uint64{1, 20, 300, 4000, 50000, 600000}[:min(n, 6)]
		want := uint64(0)
		for _, a := range args {
			want += a
		}
		if got, err := m.Call(ctx, sum, args...); err != nil || got != want {
			t.Errorf("sum%v = %d, %v; want %d", args, got, err, want)
		}
	}
	if hits != 7 {
		t.Errorf("%d hits, want 7", hits)
	}
	for _, tc := range []struct {
		name string
		fn   guest.GVA
		args []uint64
	}{
		{"seven arguments", sum, make([]uint64, 7)},
		{"data", tinyData, nil},
		{"nothing there", 0x1234, nil},
		{"user code", tinyUser, nil},
	} {
		var refused *CallError
		if _, err := m.Call(ctx, tc.fn, tc.args...); !errors.As(err, &refused) || refused.Fn != tc.fn {
			t.Errorf("call of %s: %v, want a *CallError", tc.name, err)
		}
	}
}

func TestCallTimeout(t *testing.T) {
	m := newMachine(t, Config{Image: callee(t), VCPUs: 1, Memory: 16 << 20})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	v := m.vcpus[0]
	// until cancels once the condition, which it asks with m.mu held, is true.
	until := func(cond func() bool) context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		go func() {
			for {
				m.mu.Lock()
				ok := cond()
				m.mu.Unlock()
				if ok {
					cancel(context.DeadlineExceeded)
					return
				}
				breathe()
			}
		}()
		return ctx
	}
	started := func() bool { return !v.where.rests() && v.call != nil }
	if _, err := m.Call(until(started), address(t, m, "forever")); !errors.Is(err, ErrCallRunning) {
		t.Errorf("call of a function that does not return: %v", err)
	}
	waits := func() bool { return len(m.calls.waiting) > 0 }
	if _, err := m.Call(until(waits), address(t, m, "sum")); !errors.Is(err, ErrNoSafePoint) {
		t.Errorf("call while the only vCPU is busy: %v", err)
	}
	// The withdrawn call is not run later, and the machine still answers.
	if n := len(m.calls.waiting); n != 0 {
		t.Errorf("%d calls wait", n)
	}
	if err := m.Reset(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Call(context.Background(), address(t, m, "sum"), 3, 4); err != nil || got != 7 {
		t.Errorf("after a reset: %d, %v", got, err)
	}
}

func TestCallService(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "idle"})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		got, err := m.Call(context.Background(), address(t, m, "fault_divide"), 100, 7)
		if err != nil || got != 14 {
			t.Fatalf("fault_divide(100, 7) = %d, %v; want 14", got, err)
		}
	}
	// A function that faults ends the call, not the guest.
	var fault *CallFaultError
	if got, err := m.Call(context.Background(), address(t, m, "memset"), 0xffff800000000000, 0, 8); !errors.As(err, &fault) || fault.Vector != 14 {
		t.Errorf("memset at nowhere = %#x, %v; want a page fault", got, err)
	}
	if got, err := m.Call(context.Background(), address(t, m, "fib_recursive"), 10); err != nil || got != 55 {
		t.Errorf("fib_recursive(10) = %d, %v; want 55", got, err)
	}
	if s := m.State(); s.Phase != PhaseRunning {
		t.Errorf("state %+v", s)
	}
}
