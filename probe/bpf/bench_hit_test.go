//go:build linux && amd64

package bpf

import (
	"testing"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// hitLoop is how many hits one call of the entry code makes.
const hitLoop = 1000

// hitCode assembles a loop of hitLoop calls of a small function whose first
// instructions are replaced by a jump to detour, which emits the detour's work
// between the saving of red zone and flags and their restoring. A nil detour
// leaves the function as it is.
func (n *native) hitCode(b *testing.B, detour func(a *insn.Asm)) Area {
	var a insn.Asm
	fn, back, off, again := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	a.Push(insn.RBX)
	a.Mov(8, insn.RBX, imm(hitLoop))
	a.Place(again)
	a.Mov(8, insn.RDI, imm(n.addr(0))) // readable
	a.Mov(8, insn.RSI, imm(4))
	a.Call(fn)
	a.Sub(8, insn.RBX, imm(1))
	a.Jcc(insn.CondNE, again)
	a.Pop(insn.RBX)
	a.Ret()
	head := func() { // as in user_hot
		a.Mov(8, insn.RDX, insn.RDI)
		a.Shl(8, insn.RDX, imm(5))
	}
	a.Place(fn)
	if detour != nil {
		a.Jmp(off)
	} else {
		head()
	}
	a.Place(back)
	a.Sub(8, insn.RDX, insn.RDI)
	a.Add(8, insn.RDX, insn.RSI)
	a.Mov(8, insn.RAX, insn.RDX)
	a.Shr(8, insn.RAX, imm(7))
	a.Xor(8, insn.RAX, insn.RDX)
	a.Ret()
	a.Place(off)
	if detour != nil {
		a.Lea(8, insn.RSP, insn.At(insn.RSP, -128))
		a.Pushfq()
		detour(&a)
		a.Popfq()
		a.Lea(8, insn.RSP, insn.At(insn.RSP, 128))
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
func floorCount(counter Area) func(*insn.Asm) {
	return func(a *insn.Asm) {
		a.Push(insn.RAX)
		a.Mov(8, insn.RAX, imm(counter.Addr))
		a.Lock().Add(8, insn.At(insn.RAX, 0), imm(1))
		a.Pop(insn.RAX)
	}
}

// floorRecord is the least that a detour does to write a record of the time and
// six arguments into a ring that nobody reads.
func floorRecord(head, ring Area) func(*insn.Asm) {
	return func(a *insn.Asm) {
		regs := []reg64{insn.RAX, insn.RCX, insn.RDX, insn.RSI, insn.RDI, insn.R8, insn.R9, insn.R10, insn.R11}
		for _, r := range regs {
			a.Push(r)
		}
		a.Mov(8, insn.R10, imm(1))
		a.Mov(8, insn.RAX, imm(head.Addr))
		a.Lock().Xadd(8, insn.At(insn.RAX, 0), insn.R10)
		a.Mov(8, insn.R11, insn.R10)
		a.And(4, insn.R11, imm(int32(len(ring.Bytes)/64-1)))
		a.Shl(4, insn.R11, imm(6))
		a.Mov(8, insn.RAX, imm(ring.Addr))
		a.Add(8, insn.R11, insn.RAX)
		for i, r := range []reg64{insn.RDI, insn.RSI, insn.RDX, insn.RCX, insn.R8, insn.R9, insn.R10} {
			a.Mov(8, insn.At(insn.R11, int(8*i+8)), r)
		}
		a.Rdtsc()
		a.Shl(8, insn.RDX, imm(32))
		a.Or(8, insn.RAX, insn.RDX)
		a.Mov(8, insn.At(insn.R11, 0), insn.RAX)
		for i := len(regs) - 1; i >= 0; i-- {
			a.Pop(regs[i])
		}
	}
}

// detourProgram is a detour that calls a compiled program: it keeps what the
// call changes, fills in what the program reads of the context, and finds the
// block through the structure at the bottom of the stack.
func detourProgram(c *compiled, info Area) func(*insn.Asm) {
	regs := map[int]reg64{insn.PtR9: insn.R9, insn.PtR8: insn.R8, insn.PtCX: insn.RCX, insn.PtDX: insn.RDX, insn.PtSI: insn.RSI, insn.PtDI: insn.RDI, insn.PtAX: insn.RAX}
	return func(a *insn.Asm) {
		a.Lea(8, insn.RSP, insn.At(insn.RSP, -RegsSize))
		keep := c.info.ContextReads | 1<<(insn.PtAX/8) | 1<<(insn.PtSI/8) | 1<<(insn.PtDI/8)
		for off := 0; off < RegsSize; off += 8 {
			if r, ok := regs[off]; ok && keep>>(off/8)&1 != 0 {
				a.Mov(8, insn.At(insn.RSP, int(off)), r)
			}
		}
		known := a.NewLabel()
		a.Mov(8, insn.RSI, imm(info.Addr)) // RSP & mask, which is the same address every time
		a.Mov(8, insn.RAX, imm(0x1234))
		a.Cmp(8, insn.At(insn.RSI, 0), insn.RAX)
		a.Jcc(insn.CondE, known)
		a.Int3()
		a.Place(known)
		a.Mov(4, insn.RSI, insn.At(insn.RSI, 8))
		a.ImulImm(8, insn.RSI, insn.RSI, imm(int32(roundUp(c.p.BlockSize(), 64))))
		a.Mov(8, insn.RAX, imm(c.block.Addr))
		a.Add(8, insn.RSI, insn.RAX)
		a.Mov(8, insn.RDI, insn.RSP)
		a.Mov(8, insn.RAX, imm(c.code.Addr))
		a.CallAt(insn.RAX)
		for _, off := range []int{insn.PtAX, insn.PtSI, insn.PtDI} {
			a.Mov(8, regs[off], insn.At(insn.RSP, int(off)))
		}
		a.Lea(8, insn.RSP, insn.At(insn.RSP, RegsSize))
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
