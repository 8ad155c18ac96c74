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
func (n *native) hitCode(b *testing.B, detour func(a *x86asm)) Area {
	var a x86asm
	fn, back, off, again := a.newLabel(), a.newLabel(), a.newLabel(), a.newLabel()
	a.push(insn.RBX)
	a.movImm(insn.RBX, hitLoop)
	a.place(again)
	a.movImm(insn.RDI, n.addr(0)) // readable
	a.movImm(insn.RSI, 4)
	a.callTo(fn)
	a.ri(true, aluSub, insn.RBX, 1)
	a.jcc(condNE, again)
	a.pop(insn.RBX)
	a.ret()
	head := func() { // as in user_hot
		a.mov(true, insn.RDX, insn.RDI)
		a.shiftImm(true, shiftLeft, insn.RDX, 5)
	}
	a.place(fn)
	if detour != nil {
		a.jmp(off)
	} else {
		head()
	}
	a.place(back)
	a.rr(true, aluSub, insn.RDX, insn.RDI)
	a.rr(true, aluAdd, insn.RDX, insn.RSI)
	a.mov(true, insn.RAX, insn.RDX)
	a.shiftImm(true, shiftRight, insn.RAX, 7)
	a.rr(true, aluXor, insn.RAX, insn.RDX)
	a.ret()
	a.place(off)
	if detour != nil {
		a.lea(true, insn.RSP, at(insn.RSP, -128))
		a.emit(0x9c) // pushfq
		detour(&a)
		a.emit(0x9d) // popfq
		a.lea(true, insn.RSP, at(insn.RSP, 128))
		head()
		a.jmp(back)
	}
	a.link()
	area, err := n.Alloc(len(a.b))
	if err != nil {
		b.Fatal(err)
	}
	copy(area.Bytes, a.b)
	return area
}

// floorCount is the least that a detour does to count a hit.
func floorCount(counter Area) func(*x86asm) {
	return func(a *x86asm) {
		a.push(insn.RAX)
		a.movImm(insn.RAX, counter.Addr)
		a.lockAddImm(at(insn.RAX, 0), 1)
		a.pop(insn.RAX)
	}
}

// floorRecord is the least that a detour does to write a record of the time and
// six arguments into a ring that nobody reads.
func floorRecord(head, ring Area) func(*x86asm) {
	return func(a *x86asm) {
		regs := []reg64{insn.RAX, insn.RCX, insn.RDX, insn.RSI, insn.RDI, insn.R8, insn.R9, insn.R10, insn.R11}
		for _, r := range regs {
			a.push(r)
		}
		a.movImm(insn.R10, 1)
		a.movImm(insn.RAX, head.Addr)
		a.locked(true, lockXadd, at(insn.RAX, 0), insn.R10)
		a.mov(true, insn.R11, insn.R10)
		a.ri(false, aluAnd, insn.R11, int32(len(ring.Bytes)/64-1))
		a.shiftImm(false, shiftLeft, insn.R11, 6)
		a.movImm(insn.RAX, ring.Addr)
		a.rr(true, aluAdd, insn.R11, insn.RAX)
		for i, r := range []reg64{insn.RDI, insn.RSI, insn.RDX, insn.RCX, insn.R8, insn.R9, insn.R10} {
			a.store(8, at(insn.R11, int32(8*i+8)), r)
		}
		a.emit(0x0f, 0x31)
		a.shiftImm(true, shiftLeft, insn.RDX, 32)
		a.rr(true, aluOr, insn.RAX, insn.RDX)
		a.store(8, at(insn.R11, 0), insn.RAX)
		for i := len(regs) - 1; i >= 0; i-- {
			a.pop(regs[i])
		}
	}
}

// detourProgram is a detour that calls a compiled program: it keeps what the
// call changes, fills in what the program reads of the context, and finds the
// block through the structure at the bottom of the stack.
func detourProgram(c *compiled, info Area) func(*x86asm) {
	regs := map[int]reg64{offR9: insn.R9, offR8: insn.R8, offCX: insn.RCX, offDX: insn.RDX, offSI: insn.RSI, offDI: insn.RDI, offAX: insn.RAX}
	return func(a *x86asm) {
		a.lea(true, insn.RSP, at(insn.RSP, -RegsSize))
		keep := c.info.ContextReads | 1<<(offAX/8) | 1<<(offSI/8) | 1<<(offDI/8)
		for off := 0; off < RegsSize; off += 8 {
			if r, ok := regs[off]; ok && keep>>(off/8)&1 != 0 {
				a.store(8, at(insn.RSP, int32(off)), r)
			}
		}
		known := a.newLabel()
		a.movImm(insn.RSI, info.Addr) // RSP & mask, which is the same address every time
		a.movImm(insn.RAX, 0x1234)
		a.memOp(true, []byte{0x39}, insn.RAX, at(insn.RSI, 0), false)
		a.jcc(condE, known)
		a.emit(0xcc)
		a.place(known)
		a.load(4, insn.RSI, at(insn.RSI, 8))
		a.imulImm(true, insn.RSI, insn.RSI, int32(roundUp(c.p.BlockSize(), 64)))
		a.movImm(insn.RAX, c.block.Addr)
		a.rr(true, aluAdd, insn.RSI, insn.RAX)
		a.mov(true, insn.RDI, insn.RSP)
		a.movImm(insn.RAX, c.code.Addr)
		a.emit(0xff, 0xd0) // call *%rax
		for _, off := range []int{offAX, offSI, offDI} {
			a.load(8, regs[off], at(insn.RSP, int32(off)))
		}
		a.lea(true, insn.RSP, at(insn.RSP, RegsSize))
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
