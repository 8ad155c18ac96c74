package linuxtest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// address returns the address of a symbol.
func (g *Guest) address(name string) guest.GVA {
	g.t.Helper()
	s, err := g.Image().Lookup(name)
	if err != nil {
		g.t.Fatal(err)
	}
	return s.Addr
}

// TestCalls: the host calls functions of the kernel, on the kernel's threads, where they may sleep, and on a vCPU during a hit. An idle guest
// is woken for the call, and a paused one rejects it. A snapshot during a call contains nothing of it.
func TestCalls(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		for _, n := range selectVCPUs() {
			t.Run(filepath.Base(dir), func(t *testing.T) { calls(t, dir, n) })
		}
	}
}

func calls(t *testing.T, dir string, vcpus int) {
	g := boot(t, dir, "sh /commands.sh", func(c *machine.Config) { c.VCPUs = vcpus })
	ctx, root := context.Background(), func() guest.GVA { return g.address("int_sqrt") }
	if _, err := g.Call(ctx, root(), 144); !errors.Is(err, probe.ErrCallLater) || !errors.Is(err, machine.ErrNotRunning) {
		t.Errorf("a call before the start: %v", err)
	}
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("READY")
	begin := time.Now()
	for i := range uint64(20) {
		if got, err := g.Call(ctx, root(), i*i); err != nil || got != i {
			t.Fatalf("the root of %d is %d, %v", i*i, got, err)
		}
	}
	t.Logf("20 calls in %v", time.Since(begin))
	if got, err := g.Call(ctx, g.address("gcd"), 91, 35); err != nil || got != 7 {
		t.Errorf("gcd(91, 35) is %d, %v", got, err)
	}
	if _, err := g.Call(ctx, g.address("msleep"), 50); err != nil {
		t.Errorf("a function that sleeps: %v", err)
	}
	// A call that takes longer than its caller waits.
	short, cancel := context.WithCancel(ctx)
	begun := make(chan error, 1)
	go func() {
		_, err := g.Call(short, g.address("msleep"), 8_000)
		begun <- err
	}()
	for limit := time.Now().Add(silence); ; time.Sleep(100 * time.Millisecond) {
		_, err := g.Save(nil)
		if errors.Is(err, probe.ErrInside) {
			break
		}
		if err != nil || time.Now().After(limit) {
			t.Fatalf("a save in the middle of a call: %v", err)
		}
	}
	cancel()
	if err := <-begun; !errors.Is(err, machine.ErrCallRunning) || !errors.Is(err, probe.ErrCallLater) {
		t.Errorf("a function that takes longer: %v", err)
	}
	if _, err := g.Call(ctx, root(), 1); !errors.Is(err, machine.ErrCallBusy) {
		t.Errorf("the next call: %v", err)
	}
	for limit := time.Now().Add(silence); ; time.Sleep(100 * time.Millisecond) {
		if got, err := g.Call(ctx, root(), 81); err == nil {
			if got != 9 {
				t.Errorf("the root of 81 is %d", got)
			}
			break
		} else if !errors.Is(err, machine.ErrCallBusy) || time.Now().After(limit) {
			t.Fatal(err)
		}
	}

	// During a hit of an int3, and of a jump.
	fn, gcd := root(), g.address("gcd")
	var calls, bad atomic.Uint64
	var wrong atomic.Value
	k := &probe.Kprobe{Symbol: "do_sys_openat2", Pre: func(c *probe.Context) int {
		before := *c.Regs
		n := calls.Add(1)
		got, err := c.Call(fn, n*n)
		more, err2 := c.Call(gcd, 3*n, 3)
		if err != nil || err2 != nil || got != n || more != 3 || *c.Regs != before {
			bad.Add(1)
			wrong.Store(fmt.Sprint(err, err2, got, more, before, *c.Regs))
		}
		return 0
	}}
	for _, jumps := range []bool{false, true} {
		if err := g.Engine().SetOptimization(jumps); err != nil {
			t.Fatal(err)
		}
		if err := g.Engine().Register(k); err != nil {
			t.Fatal(err)
		}
		if jumps {
			if err := g.Engine().Optimize(); err != nil {
				t.Fatal(err)
			}
		}
		had := calls.Load()
		if out := g.Command("for i in 1 2 3 4 5; do cat /proc/version >/dev/null || echo bad; done; echo fine"); len(out) != 1 || out[0] != "fine" {
			t.Errorf("the guest says %q", out)
		}
		if n := calls.Load() - had; n < 5 || bad.Load() != 0 {
			t.Errorf("jumps %v: %d hits with calls, %d wrong: %v", jumps, n, bad.Load(), wrong.Load())
		}
		if err := g.Engine().Unregister(k); err != nil {
			t.Fatal(err)
		}
		k.Addr = 0
	}
	if err := g.Pause(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Call(ctx, fn, 4); !errors.Is(err, machine.ErrNotRunning) {
		t.Errorf("a call of a paused guest: %v", err)
	}
	saved, err := g.Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	// A reset during a call.
	failed := make(chan error, 1)
	go func() {
		long, cancel := context.WithTimeout(ctx, silence)
		defer cancel()
		_, err := g.Call(long, g.address("msleep"), 60_000)
		failed <- err
	}()
	time.Sleep(200 * time.Millisecond)
	if err := g.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := g.ResetTo(ctx, saved); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil {
		t.Error("a call that a reset has cut off succeeded")
	}
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	if got, err := g.Call(ctx, fn, 400); err != nil || got != 20 {
		t.Errorf("behind a reset: %d, %v", got, err)
	}
	if out := g.Command("dmesg | grep -c 'BUG:\\|WARNING:' ; true"); len(out) != 1 || out[0] != "0" {
		t.Errorf("the kernel's log: %q; %q", out, g.Command("dmesg | tail -40"))
	}
}
