//go:build linux && amd64

package bpf

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// hitLoop is how many hits one call of the entry code makes.
const hitLoop = 1000

// hitCode assembles a loop of hitLoop calls of a small function whose first
// instructions are replaced by a jump to detour, which emits the detour's work
// between the saving of red zone and flags and their restoring. A nil detour
// leaves the function as it is.
func (n *native) hitCode(b *testing.B, detour func(a *x86.Asm)) Area {
	var a x86.Asm
	fn, back, off, again := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	a.Push(x86.RBX)
	a.Mov(8, x86.RBX, imm(hitLoop))
	a.Place(again)
	a.Mov(8, x86.RDI, imm(n.addr(0))) // readable
	a.Mov(8, x86.RSI, imm(4))
	a.Call(fn)
	a.Sub(8, x86.RBX, imm(1))
	a.Jcc(x86.CondNE, again)
	a.Pop(x86.RBX)
	a.Ret()
	head := func() { // as in user_hot
		a.Mov(8, x86.RDX, x86.RDI)
		a.Shl(8, x86.RDX, imm(5))
	}
	a.Place(fn)
	if detour != nil {
		a.Jmp(off)
	} else {
		head()
	}
	a.Place(back)
	a.Sub(8, x86.RDX, x86.RDI)
	a.Add(8, x86.RDX, x86.RSI)
	a.Mov(8, x86.RAX, x86.RDX)
	a.Shr(8, x86.RAX, imm(7))
	a.Xor(8, x86.RAX, x86.RDX)
	a.Ret()
	a.Place(off)
	if detour != nil {
		a.Lea(8, x86.RSP, x86.At(x86.RSP, -128))
		a.Pushfq()
		detour(&a)
		a.Popfq()
		a.Lea(8, x86.RSP, x86.At(x86.RSP, 128))
		head()
		a.Jmp(back)
	}
	code := a.Code()
	area, err := n.Alloc(len(code))
	if err != nil {
		b.Fatal(err)
	}
	copy(area.Bytes, code)
	return area
}

// floorCount is the least that a detour does to count a hit.
func floorCount(counter Area) func(*x86.Asm) {
	return func(a *x86.Asm) {
		a.Push(x86.RAX)
		a.Mov(8, x86.RAX, imm(counter.Addr))
		a.Lock().Add(8, x86.At(x86.RAX, 0), imm(1))
		a.Pop(x86.RAX)
	}
}

// floorRecord is the minimum for a detour that writes a record of the time and six
// arguments into a ring that is not read.
func floorRecord(head, ring Area) func(*x86.Asm) {
	return func(a *x86.Asm) {
		regs := []reg64{x86.RAX, x86.RCX, x86.RDX, x86.RSI, x86.RDI, x86.R8, x86.R9, x86.R10, x86.R11}
		for _, r := range regs {
			a.Push(r)
		}
		a.Mov(8, x86.R10, imm(1))
		a.Mov(8, x86.RAX, imm(head.Addr))
		a.Lock().Xadd(8, x86.At(x86.RAX, 0), x86.R10)
		a.Mov(8, x86.R11, x86.R10)
		a.And(4, x86.R11, imm(int32(len(ring.Bytes)/64-1)))
		a.Shl(4, x86.R11, imm(6))
		a.Mov(8, x86.RAX, imm(ring.Addr))
		a.Add(8, x86.R11, x86.RAX)
		for i, r := range []reg64{x86.RDI, x86.RSI, x86.RDX, x86.RCX, x86.R8, x86.R9, x86.R10} {
			a.Mov(8, x86.At(x86.R11, int(8*i+8)), r)
		}
		a.Rdtsc()
		a.Shl(8, x86.RDX, imm(32))
		a.Or(8, x86.RAX, x86.RDX)
		a.Mov(8, x86.At(x86.R11, 0), x86.RAX)
		for i := len(regs) - 1; i >= 0; i-- {
			a.Pop(regs[i])
		}
	}
}

// detourProgram is a detour that calls a compiled program: it keeps what the
// call changes, fills in what the program reads of the context, and finds the
// block through the structure at the bottom of the stack.
func detourProgram(c *compiled, info Area) func(*x86.Asm) {
	regs := map[int]reg64{x86.PtR9: x86.R9, x86.PtR8: x86.R8, x86.PtCX: x86.RCX, x86.PtDX: x86.RDX, x86.PtSI: x86.RSI, x86.PtDI: x86.RDI, x86.PtAX: x86.RAX}
	return func(a *x86.Asm) {
		a.Lea(8, x86.RSP, x86.At(x86.RSP, -RegsSize))
		keep := c.info.ContextReads | 1<<(x86.PtAX/8) | 1<<(x86.PtSI/8) | 1<<(x86.PtDI/8)
		for off := 0; off < RegsSize; off += 8 {
			if r, ok := regs[off]; ok && keep>>(off/8)&1 != 0 {
				a.Mov(8, x86.At(x86.RSP, int(off)), r)
			}
		}
		known := a.NewLabel()
		a.Mov(8, x86.RSI, imm(info.Addr)) // RSP & mask, which is the same address every time
		a.Mov(8, x86.RAX, imm(0x1234))
		a.Cmp(8, x86.At(x86.RSI, 0), x86.RAX)
		a.Jcc(x86.CondE, known)
		a.Int3()
		a.Place(known)
		a.Mov(4, x86.RSI, x86.At(x86.RSI, 8))
		a.ImulImm(8, x86.RSI, x86.RSI, imm(int32(roundUp(c.p.BlockSize(), 64))))
		a.Mov(8, x86.RAX, imm(c.block.Addr))
		a.Add(8, x86.RSI, x86.RAX)
		a.Mov(8, x86.RDI, x86.RSP)
		a.Mov(8, x86.RAX, imm(c.code.Addr))
		a.CallAt(x86.RAX)
		for _, off := range []int{x86.PtAX, x86.PtSI, x86.PtDI} {
			a.Mov(8, regs[off], x86.At(x86.RSP, int(off)))
		}
		a.Lea(8, x86.RSP, x86.At(x86.RSP, RegsSize))
	}
}

// BenchmarkHit measures whole hits: a function without a probe, with the
// hand-written detours that are the floor, and with programs in a detour.
func BenchmarkHit(b *testing.B) {
	alloc := func(n *native, size int) Area {
		a, err := n.Alloc(size)
		if err != nil {
			b.Fatal(err)
		}
		return a
	}
	run := func(name string, make func(b *testing.B, n *native) (Area, func())) {
		b.Run(name, func(b *testing.B) {
			n := newNative(b)
			code, after := make(b, n)
			n.st.target = code.Addr
			n.call()
			i := 0
			for b.Loop() {
				n.call()
				if i++; after != nil && i&7 == 0 {
					b.StopTimer()
					after()
					b.StartTimer()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/hitLoop, "ns/hit")
			b.ReportMetric(0, "ns/op")
		})
	}
	run("no-probe", func(b *testing.B, n *native) (Area, func()) { return n.hitCode(b, nil), nil })
	run("floor-count", func(b *testing.B, n *native) (Area, func()) {
		return n.hitCode(b, floorCount(alloc(n, 8))), nil
	})
	run("floor-record", func(b *testing.B, n *native) (Area, func()) {
		return n.hitCode(b, floorRecord(alloc(n, 8), alloc(n, 1<<18))), nil
	})
	for _, c := range benchPrograms {
		run(c.name, func(b *testing.B, n *native) (Area, func()) {
			code, maps := c.load(b, n)
			info := alloc(n, 16)
			copy(info.Bytes, []byte{0x34, 0x12})
			var after func()
			if len(maps) > 0 && maps[0].spec.Kind == RingBuf {
				after = func() { maps[0].Drain(func(Record) bool { return true }) }
			}
			b.Cleanup(func() {
				if runs, failed, missed, last := BlockStats(code.block); runs == 0 || failed+missed != 0 {
					b.Errorf("%d runs, %d failed, %d missed: %v", runs, failed, missed, &last)
				}
				if after != nil && maps[0].RingStats().Lost != 0 {
					b.Errorf("%+v", maps[0].RingStats())
				}
			})
			return n.hitCode(b, detourProgram(code, info)), after
		})
	}
}
