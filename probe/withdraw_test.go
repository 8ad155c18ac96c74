package probe_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestWithdraw: when the guest is about to save its memory, which a hidden probe
// notices while there is any other, nothing of the engine's is left in its text or on
// its stacks; calls under way return as if they had not been followed, and the sums
// are right. A reset brings the probes back.
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
	if err := e.Withdraw(false, func() {
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

// TestWithdrawInside: while a vCPU is inside a stage nothing is removed, and nothing
// has changed, including saved contexts. When it has left, everything is removed; or
// everything except the inside context, if requested.
func TestWithdrawInside(t *testing.T) {
	for _, anyway := range []bool{false, true} {
		t.Run(fmt.Sprintf("anyway=%v", anyway), func(t *testing.T) { withdrawInside(t, anyway) })
	}
}

func withdrawInside(t *testing.T, anyway bool) {
	f, err := probetest.NewFake(probetest.FakeOptions{CPUs: 2, Probe: probe.Options{OptimizeDelay: -1}})
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
	words := guest.AtomicWords(host)
	spins := &probe.Kprobe{Name: "spins", Symbol: "hot", Pre: func(*probe.Context) int { return 0 }, Stage: &probe.Stage{
		// lock incq (%rsi); l: mov 8(%rsi),%rax; test %rax,%rax; je l; xor %eax,%eax; ret
		Code:  []byte{0xf0, 0x48, 0xff, 0x06, 0x48, 0x8b, 0x46, 0x08, 0x48, 0x85, 0xc0, 0x74, 0xf7, 0x31, 0xc0, 0xc3},
		Block: block, NoStrings: true, Stack: 8,
		Counts: func(int) (handled, filtered, missed uint64) { return words[0].Load(), 0, 0 },
	}}
	slotted := &probe.Kprobe{Symbol: "hot_load", Pre: func(*probe.Context) int { return 0 }, Post: func(*probe.Context) {}}
	if err := e.Register(spins, slotted); err != nil {
		t.Fatal(err)
	}
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	slot, ok := e.SlotOf(slotted)
	if i, _ := e.Info(spins); !i.InGuest || !ok {
		t.Fatalf("in the guest %v, a slot %v", i.InGuest, ok)
	}
	const saved, stack, frameAt = 0x7000_0400, 0x7010_0000 + 64<<10, 0x7010_0000 + 64<<10 - 56 // the other vCPU's stack; ours, and above where a call begins
	put := func() {
		var b []byte
		for _, w := range []uint64{uint64(slot), 0x08, 0x246, 0x7000_0100, 0x10, 0, uint64(slot), uint64(slotted.Addr)} {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		if err := f.Write(saved, b); err != nil {
			t.Fatal(err)
		}
	}
	get := func() (rip, word guest.GVA) {
		var b [64]byte
		if err := f.Read(saved, b[:]); err != nil {
			t.Fatal(err)
		}
		return guest.GVA(binary.LittleEndian.Uint64(b[:])), guest.GVA(binary.LittleEndian.Uint64(b[48:]))
	}
	put()
	done := make(chan uint64)
	go func() {
		got, err := f.Call(1, symbol(t, f, "hot"), 5)
		if err != nil {
			t.Error(err)
		}
		done <- got
	}()
	for words[0].Load() == 0 {
		runtime.Gosched()
	}
	var rip uint64
	if err := f.Stop(func(w probe.World) error { rip = w.CPU(1).Regs.RIP; return nil }); err != nil {
		t.Fatal(err)
	}
	var inside *probe.InsideError
	// seen is what a snapshot says of the words at the frame's place.
	seen := func() error {
		b := make([]byte, 40)
		return e.RunUnpatched(false, func(c *probe.Clean) error {
			if err := f.Read(frameAt, b); err != nil {
				return err
			}
			return c.Memory(frameAt, b, func(guest.GPA) []byte { return nil })
		})
	}
	if err := e.Withdraw(false, func() { t.Error("it is out") }); !errors.As(err, &inside) || inside.CPU != 1 || len(inside.Probes) != 1 || inside.Probes[0] != "spins" {
		t.Errorf("inside: %v", err)
	}
	same := func() {
		t.Helper()
		if rip, word := get(); rip != slot || word != slot {
			t.Errorf("words are %v and %v, want both as they were, %v", rip, word, slot)
		}
		for _, p := range []*probe.Kprobe{spins, slotted} {
			if i, _ := e.Info(p); !i.Armed || i.Gone {
				t.Errorf("%s: %+v", p.Symbol, i)
			}
		}
	}
	same()
	write := func(words ...uint64) (b []byte) {
		t.Helper()
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		if err := f.Write(frameAt, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	gone := 0
	if anyway {
		if err := e.Withdraw(true, func() { gone++ }); !errors.As(err, &inside) || inside.CPU != 1 {
			t.Errorf("all but that: %v", err)
		}
	}
	words[1].Store(1)
	if got := <-done; got != 6 {
		t.Errorf("returned %d", got)
	}
	if !anyway {
		// An exception there, whose handler runs.
		frame := write(rip, 0x08, 0x46, frameAt+40, 0x10)
		if err := e.Withdraw(false, func() { t.Error("it is out") }); !errors.As(err, &inside) || inside.CPU != -1 {
			t.Errorf("inside, in memory: %v", err)
		}
		if err := seen(); !errors.Is(err, probe.ErrInside) {
			t.Errorf("a frame: %v", err)
		}
		same()
		// These were remains of calls in the built-in guest, and prevented its saves.
		for _, w := range [][4]uint64{
			{4, 3, 0x404150, 7}, {4, 2, 0x3f3ef0, 8}, {0x3f5e60, 2, 2, 0x3f5f40}, {176, 134, 0x415df0, 0x415de8},
			{8, 2, frameAt + 24, 0x10}, {0x10008, 2, frameAt + 40, 0x10}, {8, 2, frameAt + 40, 0x13}, {9, 2, frameAt + 40, 0x10}, {8, 0x20002, frameAt + 40, 0x10},
		} {
			if write(rip, w[0], w[1], w[2], w[3]); seen() != nil {
				t.Errorf("%#x is taken for a frame", w)
			}
		}
		if err := f.Write(frameAt, make([]byte, len(frame))); err != nil {
			t.Fatal(err)
		}
		if err := e.Withdraw(false, func() { gone++ }); err != nil {
			t.Error(err)
		}
	}
	if rip, word := get(); gone != 1 || rip != slotted.Addr || word != slotted.Addr {
		t.Errorf("gone %d times; words are %v and %v, want %v", gone, rip, word, slotted.Addr)
	}
	for _, p := range []*probe.Kprobe{spins, slotted} {
		if i, _ := e.Info(p); i.Armed || !i.Gone {
			t.Errorf("%s: %+v", p.Symbol, i)
		}
	}
}
