package probetest

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// TestWithdrawEverywhere takes everything of the engine's out of a guest, once at each instruction of a probed call at which an interrupt
// can come, while that interrupt's handler runs: the interrupted context goes on where it would be without the engine, whose code is
// not there any more, and comes to its result.
func TestWithdrawEverywhere(t *testing.T) {
	for _, gs := range []bool{false, true} {
		for _, jumps := range []bool{false, true} {
			t.Run(fmt.Sprintf("gs=%v,jumps=%v", gs, jumps), func(t *testing.T) {
				places := 0
				for k := 1; ; k++ {
					inEngine, more := withdrawAt(t, gs, jumps, k)
					if !more {
						break
					}
					if inEngine {
						places++
					}
				}
				if t.Logf("%d places in the engine's code", places); places < 20 {
					t.Errorf("%d places in the engine's code", places)
				}
			})
		}
	}
}

// withdrawAt does so at tick k, and reports whether that comes in the engine's code, and whether there are so many.
func withdrawAt(t *testing.T, gs, jumps bool, k int) (inEngine, more bool) {
	t.Helper()
	v := bootGS(t, FakeOptions{TickEvery: 1})
	if !gs {
		f, err := NewFake(FakeOptions{TickEvery: 1, Probe: probe.Options{OptimizeDelay: -1}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		v = &env{T: t, h: f, e: f.Engine()}
	}
	f := v.fake()
	counts := func() *probe.Stage {
		s, _ := v.blocks()
		s.Code = x86.Assemble(func(a *x86.Asm) {
			a.Push(x86.RBX)
			a.Mov(8, x86.RBX, x86.At(x86.RSI, 0))
			a.Inc(8, x86.RBX)
			a.Mov(8, x86.At(x86.RSI, 0), x86.RBX)
			a.Pop(x86.RBX)
			a.Xor(4, x86.RAX, x86.RAX)
			a.Ret()
		})
		s.Stack = 16
		return s
	}
	hot := &probe.Kprobe{Symbol: "hot", Pre: nop, Stage: counts()}
	load := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "hot_load", Stage: counts()}, Return: func(*probe.Context) {}, ReturnStage: counts()}
	step := &probe.Kprobe{Symbol: "hot_load", Offset: 7, Pre: nop, Post: func(*probe.Context) {}}
	outer := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "work"}, Return: func(*probe.Context) {}}
	batch := []probe.Probe{hot, load, outer}
	if !jumps {
		batch = append(batch, step)
	}
	if err := v.e.Register(batch...); err != nil {
		t.Fatal(err)
	}
	if jumps {
		v.optimize()
		if !v.info(hot).InGuest || !v.info(&load.Kprobe).InGuest {
			t.Fatalf("%+v, %+v", v.info(hot), v.info(&load.Kprobe))
		}
	}
	cpu := f.cpus[0]
	var where guest.GVA
	gone := make(chan error, 1)
	mine := func() (words []string) { // the engine's addresses on the stack above RSP, and in registers
		for i, x := range cpu.regs.Values() {
			if f.engine.InCode(guest.GVA(x)) {
				words = append(words, fmt.Sprintf("register %d: %#x", i, x))
			}
		}
		for at := guest.GVA(cpu.regs.RSP); at < stackBase+stackSize; at += 8 {
			var b [8]byte
			if f.ReadMemory(0, at, b[:]) == nil && f.engine.InCode(guest.GVA(binary.LittleEndian.Uint64(b[:]))) {
				words = append(words, fmt.Sprintf("%v: %#x", at, binary.LittleEndian.Uint64(b[:])))
			}
		}
		return words
	}
	withdraw := func() {
		done := func() {
			if left := mine(); len(left) > 0 {
				t.Errorf("tick %d at %v: left: %q", k, where, left)
			}
			for _, r := range *f.mem.regions.Load() {
				if r.slots {
					for i := range r.data {
						r.data[i] = 0xf4 // hlt ends a call
					}
				}
			}
		}
		gone <- v.e.Withdraw(false, done)
	}
	n := 0
	cpu.onTick = func(rip guest.GVA) {
		if n++; n != k {
			return
		}
		where, inEngine = rip, f.engine.InCode(rip)
		f.tick = 0 // no more
		go withdraw()
		for f.stopping.Load() == 0 {
		}
	}
	const calls = 2
	got, err := f.Call(0, v.addr("work_if"), calls)
	if n < k {
		return false, false
	}
	if err := <-gone; err != nil {
		t.Errorf("tick %d: %v", k, err)
	}
	if err != nil || got != 8*calls {
		t.Errorf("tick %d at %v, in the engine's code %v: %d, %v", k, where, inEngine, got, err)
	}
	for _, p := range []*probe.Kprobe{hot, &load.Kprobe, &outer.Kprobe} {
		i := v.info(p)
		if s := i.Stats; !i.Gone || i.InUse != 0 || s.Hits != s.Handled+s.Missed+s.Filtered || i.MaxActive > 0 && s.Handled != s.Returns+s.Abandoned {
			t.Errorf("tick %d at %v: %s: gone %v, in use %d, %+v", k, where, i.Symbol, i.Gone, i.InUse, s)
		}
	}
	return inEngine, true
}
