package probe_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestWithdraw: when the guest says that its memory leaves, which a hidden probe hears while there
// is any other, nothing of the engine's is left in its text or on its stacks; calls that were under
// way return as if nobody had followed them, and sums close. A reset brings the probes back.
func TestWithdraw(t *testing.T) {
	for _, jumps := range []bool{false, true} {
		t.Run(fmt.Sprintf("jumps=%v", jumps), func(t *testing.T) { withdraw(t, jumps) })
	}
}

func withdraw(t *testing.T, jumps bool) {
	img, err := probetest.BuildImage(textBase, false,
		hexFunc(t, "waits", "55 48 8b 07 48 85 c0 75 f8 48 8d 47 01 5d c3"), // push %rbp; l: mov (%rdi),%rax; test %rax,%rax; jne l; lea 1(%rdi),%rax; pop; ret
		hexFunc(t, "plain", "48 8d 47 02 48 89 c0 c3"),
		hexFunc(t, "save", "48 8d 47 03 48 89 c0 c3"),
	)
	if err != nil {
		t.Fatal(err)
	}
	var passed []probe.Milestone
	k := &probetest.Kernel{Image: img, Leaves: "save", Comes: func(_ int, m probe.Milestone) { passed = append(passed, m) }}
	f, err := probetest.NewFake(probetest.FakeOptions{Image: img, CPUs: 2, Symbols: func(*guest.Image) probe.Symbols { return k }, Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	e, waits, plain, save := f.Engine(), symbol(t, f, "waits"), symbol(t, f, "plain"), symbol(t, f, "save")
	const flag = 0x7000_1000
	text := func() []byte {
		b := make([]byte, 15)
		for _, at := range []guest.GVA{plain, save} {
			more := make([]byte, 8)
			if err := f.Read(at, more); err != nil {
				t.Fatal(err)
			}
			b = append(b, more...)
		}
		if err := f.Read(waits, b[:15]); err != nil {
			t.Fatal(err)
		}
		return b
	}
	call := func(at guest.GVA, want uint64) {
		t.Helper()
		if got, err := f.Call(1, at, 40); err != nil || got != want {
			t.Errorf("%d, %v; want %d", got, err, want)
		}
	}
	was := text()
	entered, returns, hits := make(chan bool, 2), 0, 0
	follow := func() *probe.Kretprobe {
		return &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "waits"},
			Entry:  func(c *probe.Context) int { entered <- true; return 0 },
			Return: func(c *probe.Context) { returns++ }}
	}
	first, second := follow(), follow()
	count := &probe.Kprobe{Symbol: "plain", Pre: func(*probe.Context) int { hits++; return 0 }}
	if err := e.Register(first, second, count); err != nil {
		t.Fatal(err)
	}
	if jumps {
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
	}
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
	call(plain, 42)
	if call(save, 43); len(passed) != 1 || passed[0] != probe.MemoryLeaves || len(e.List()) != 3 {
		t.Errorf("it says %v; %d are listed", passed, len(e.List()))
	}
	all := guest.Range{Start: waits, End: save + 8}
	if err := e.Withdraw(func() {
		if now := text(); !bytes.Equal(now, was) {
			t.Errorf("text % x, want % x", now, was)
		}
		k.Freed, k.Leaves = all, ""
	}); err != nil {
		t.Fatal(err)
	}
	if err := e.TargetChanged(); err != nil {
		t.Error(err)
	}
	if err := f.Write(flag, []byte{0}); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got != flag+1 {
		t.Errorf("returned %#x", got)
	}
	call(plain, 42)
	call(save, 43)
	if now := text(); !bytes.Equal(now, was) || hits != 1 || returns != 0 || len(passed) != 1 {
		t.Errorf("behind it text % x, %d hits, %d returns, %v", now, hits, returns, passed)
	}
	for _, r := range []*probe.Kretprobe{first, second} {
		if i, _ := e.Info(&r.Kprobe); !i.Gone || i.InUse != 0 || i.Stats.Handled != 1 || i.Stats.Abandoned != 1 || i.Stats.Returns != 0 {
			t.Errorf("%d in use, gone %v, %+v", i.InUse, i.Gone, i.Stats)
		}
	}
	k.Freed, k.Leaves = guest.Range{}, "save"
	if err := f.Reset(img); err != nil {
		t.Fatal(err)
	}
	if call(plain, 42); hits != 2 {
		t.Errorf("%d hits behind a reset", hits)
	}
	for _, r := range []*probe.Kretprobe{first, second} {
		if i, _ := e.Info(&r.Kprobe); i.Gone || !i.Armed {
			t.Errorf("behind a reset: %+v", i)
		}
	}
	call(save, 43)
	if err := e.Unregister(count, &first.Kprobe, &second.Kprobe); err != nil {
		t.Error(err)
	}
	if call(save, 43); len(passed) != 2 || !bytes.Equal(text(), was) {
		t.Errorf("it says %v; text % x", passed, text())
	}
}
