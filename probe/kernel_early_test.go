package probe_test

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestEarlyReturns: where the engine has no memory yet, calls are followed by int3s of the
// kernel's own, of which no byte changes; those under way when it has some return as the others do.
func TestEarlyReturns(t *testing.T) {
	const pads = 200
	var padding []byte
	for range pads {
		padding = append(padding, 0xc3, 0xcc)
	}
	img, err := probetest.BuildImage(textBase, false,
		hexFunc(t, "waits", "55 48 8b 07 48 85 c0 75 f8 48 8d 47 01 5d c3"), // push %rbp; l: mov (%rdi),%rax; test %rax,%rax; jne l; lea 1(%rdi),%rax; pop; ret
		hexFunc(t, "plain", "48 8d 47 02 48 89 c0 c3"),
		hexFunc(t, "pads", fmt.Sprintf("%x", padding)),
	)
	if err != nil {
		t.Fatal(err)
	}
	k := &probetest.Kernel{Image: img}
	early := true
	f, err := probetest.NewFake(probetest.FakeOptions{Image: img, CPUs: 2, Symbols: func(*guest.Image) probe.Symbols { return k },
		Can: func(bool) probe.Capabilities {
			can := probe.Capabilities{InPlace: true}
			if early {
				can.NoExec = "the kernel has not set up its memory"
			}
			return can
		}, Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	e, waits, at := f.Engine(), symbol(t, f, "waits"), symbol(t, f, "pads")
	for i := range pads {
		k.Pads = append(k.Pads, at+guest.GVA(2*i+1))
	}
	const flag = 0x7000_1000
	text := func() []byte {
		b := make([]byte, 2*pads)
		if err := f.Read(at, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	entered, gaps := make(chan bool, 2), 0
	var rets [2]int
	var callers []guest.GVA
	follow := func(n *int) *probe.Kretprobe {
		return &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "waits"}, MaxActive: 20,
			Entry: func(c *probe.Context) int { entered <- true; return 0 },
			Return: func(c *probe.Context) {
				*n++
				callers = append(callers, c.Ret)
				if c.Regs.RAX != flag+1 {
					gaps++
				}
			}}
	}
	first, second := follow(&rets[0]), follow(&rets[1])
	if err := e.Register(first, second); err != nil {
		t.Fatal(err)
	}
	// 64 trampolines each: there is no room for those of a third.
	err = e.Register(&probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "plain"}, MaxActive: 60})
	wantCode(t, err, probe.CodeNoInstances, syscall.ENOMEM, nil)
	if want := fmt.Sprintf("there are %d trampolines for all return probes: attach the others once the guest's kernel has started", pads); !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	begin := func() chan uint64 {
		if err := f.Write(flag, []byte{1}); err != nil {
			t.Fatal(err)
		}
		done := make(chan uint64)
		go func() {
			got, err := f.Call(0, waits, flag)
			if err != nil {
				t.Error(err)
			}
			done <- got
		}()
		<-entered
		<-entered
		return done
	}
	end := func(done chan uint64) {
		t.Helper()
		if err := f.Write(flag, []byte{0}); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got != flag+1 {
			t.Errorf("returned %#x", got)
		}
	}
	check := func(what string, n, inUse int) {
		t.Helper()
		for i, r := range []*probe.Kretprobe{first, second} {
			in, _ := e.Info(&r.Kprobe)
			if rets[i] != n || in.Stats.Returns != uint64(n) || in.InUse != inUse || in.Stats.Handled != uint64(n+inUse) || in.Stats.Abandoned+in.Stats.Missed != 0 {
				t.Errorf("%s: %d returns, listed %+v, %d in use, want %d and %d", what, rets[i], in.Stats, in.InUse, n, inUse)
			}
		}
		if gaps != 0 || !bytes.Equal(text(), padding) {
			t.Errorf("%s: %d wrong results, padding % x", what, gaps, text())
		}
	}
	end(begin())
	check("early", 1, 0)
	for _, a := range callers {
		if e.InSlot(a) || e.Home(a) != a {
			t.Errorf("the caller is %v", a)
		}
	}
	if used := e.CollectorStats().Used; used != 128 {
		t.Errorf("%d bytes are taken", used)
	}
	// A trap there of the guest's own is the guest's.
	pad := k.Pads[0]
	if v := e.Hit(1, probe.State{Regs: &probe.Regs{RIP: uint64(pad), RSP: 0x7000_2000}}, probe.Trap{Kind: probe.TrapBreakpoint}); v.Action != probe.NotOurs {
		t.Errorf("a trap of nobody's: %+v", v)
	}

	done := begin()
	check("under way", 1, 1)
	early = false
	if err := e.TargetChanged(); err != nil {
		t.Fatal(err)
	}
	check("moved", 1, 1)
	end(done)
	check("returned", 2, 0)
	if err := e.TargetChanged(); err != nil { // once is enough
		t.Fatal(err)
	}
	end(begin())
	check("late", 3, 0)
	if used := e.CollectorStats().Used; used < 2*64*16 {
		t.Errorf("%d bytes of trampolines", used)
	}

	// Taken off while early calls are under way, and again after a reset.
	early = true
	if err := f.Reset(img); err != nil {
		t.Fatal(err)
	}
	check("reset", 3, 0)
	done = begin()
	if err := e.Unregister(&first.Kprobe); err != nil {
		t.Fatal(err)
	}
	if err := e.Collect(); err != nil {
		t.Fatal(err)
	}
	if used := e.CollectorStats().Used; used != 128 {
		t.Errorf("%d bytes are taken, with a call under way", used)
	}
	end(done)
	if rets != [2]int{3, 4} {
		t.Errorf("%d returns", rets)
	}
	if err := e.Unregister(&second.Kprobe); err != nil {
		t.Fatal(err)
	}
	if err := e.Collect(); err != nil {
		t.Fatal(err)
	}
	// One at most: its address is on the stack still, where it was once.
	if used := e.CollectorStats().Used; used > 64 {
		t.Errorf("%d bytes are taken by nobody", used)
	}
	last := follow(new(int))
	last.MaxActive = 50 // of 116 trampolines: some were others'
	if err := e.Register(last); err != nil {
		t.Error(err)
	}
}
