package bpf

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// coder emits machine code for any program: it has the run block, the guest and the
// code so far, but not the program. The parts of the compiler share one.
type coder struct {
	x86.Asm
	blk    reg64 // address of the run block
	ctx    reg64 // address of the context; NoReg: it is in the block
	layout Layout

	info     *Info
	stubs    []stub
	routines map[string]x86.Label // shared code, by name
	pending  []func()             // functions that emit out-of-line code
	fixups   []struct {
		at     int
		resume x86.Label
	}
}

// reset starts over, in the same memory.
func (c *coder) reset() {
	c.Asm.Reset()
	c.routines, c.stubs, c.fixups = map[string]x86.Label{}, nil, nil
}

// stub is out-of-line code that reports a fault.
type stub struct {
	label x86.Label
	code  FaultCode
	pc    int
	base  reg64 // the fault address is base + off + far; NoReg: none
	off   int64
	far   uint64
}

// fault returns a label that ends the run at slot pc; the fault address is base +
// off.
func (c *coder) fault(code FaultCode, pc int, base reg64, off int64) x86.Label {
	return c.faultFar(code, pc, base, off, 0)
}

// faultFar is fault with far added to the address.
func (c *coder) faultFar(code FaultCode, pc int, base reg64, off int64, far uint64) x86.Label {
	s := stub{label: c.NewLabel(), code: code, pc: pc, base: base, off: off, far: far}
	c.stubs = append(c.stubs, s)
	return s.label
}

// routine returns the label of shared code, which body emits once.
func (c *coder) routine(name string, body func()) x86.Label {
	l, ok := c.routines[name]
	if !ok {
		l = c.NewLabel()
		c.routines[name] = l
		c.pending = append(c.pending, func() {
			c.Place(l)
			body()
		})
	}
	return l
}

// addShared adds to a counter of the block.
func (c *coder) addShared(off, v int) {
	if c.layout.Shared {
		c.Lock()
	}
	c.Add(8, x86.At(c.blk, off), imm(v))
}

// claim emits bts $0 of the busy word, which sets the carry flag if it was set: a
// single instruction, so that nothing can interrupt it.
func (c *coder) claim() {
	if c.layout.Shared {
		c.Lock()
	}
	c.Bts(4, x86.At(c.blk, blkBusy), 0)
}

// countAnswer emits the counting of a run's result. R11 changes.
func (c *coder) countAnswer() {
	c.Mov(4, tmpB, x86.RAX)
	c.And(4, tmpB, imm(3))
	if c.layout.Shared {
		c.Lock()
	}
	c.Add(8, x86.AtIndex(c.blk, tmpB, 8, blkAnswers), imm(1))
}

// rawContext sets the limits of a context of RDX bytes.
func (c *coder) rawContext() {
	c.Mov(8, x86.RAX, x86.RDX)
	fits := c.NewLabel()
	c.Cmp(8, x86.RAX, imm(offMask))
	c.Jcc(x86.CondBE, fits)
	c.set(x86.RAX, offMask)
	c.Place(fits)
	c.fillLimits(x86.At(c.blk, blkSegs+segContext*segSize), x86.RAX)
}

// seg is a field of a segment entry of the block.
func (c *coder) seg(i, field int) x86.Mem { return x86.At(c.blk, blkSegs+i*segSize+field) }

// fillLimits fills in the limits of a segment entry whose elements have r bytes.
// It changes r.
func (c *coder) fillLimits(e x86.Mem, r reg64) {
	c.Mov(4, e.Plus(segLoadLen), r)
	c.Mov(4, e.Plus(segStorLen), r)
	less := 0
	for k := range 4 {
		c.Sub(4, r, imm(1<<k-less))
		less = 1 << k
		c.Mov(4, e.Plus(segLoad+4*k), r)
		c.Mov(4, e.Plus(segStore+4*k), r)
	}
}

// result sets R0 to an errno.
func (c *coder) result(e int) { c.set(x86.RAX, errno(e)) }

// errnoReturns returns a function that returns labels of code that returns an errno,
// each emitted once.
func (c *coder) errnoReturns() func(int) x86.Label {
	return func(e int) x86.Label {
		return c.routine(fmt.Sprintf("return %d", e), func() {
			c.result(e)
			c.Ret()
		})
	}
}

// words emits r = address of the state words of m.
func (c *coder) words(m *Map, r reg64) { c.set(r, m.area.Addr+mapHeader) }

// context returns a register with the context's address, r if it must be loaded.
func (c *coder) context(r reg64) reg64 {
	if c.ctx != x86.NoReg {
		return c.ctx
	}
	c.Mov(8, r, c.seg(segContext, segBase))
	return r
}

// noteContext records that the context may be read, from one offset to another.
func (c *coder) noteContext(b base, from, to int64) {
	if b.kind == inContext {
		for i := from / 8; i <= (to-1)/8; i++ {
			c.info.ContextReads |= 1 << i
		}
	}
}

// guestLoad emits a load from guest memory that resumes at bad when it faults.
func (c *coder) guestLoad(size int, dst reg64, o x86.Mem, bad x86.Label) {
	c.addFixup(bad)
	c.Movzx(size, dst, o)
}

// addFixup records that the next instruction resumes at bad if it faults.
func (c *coder) addFixup(bad x86.Label) {
	c.fixups = append(c.fixups, struct {
		at     int
		resume x86.Label
	}{c.Len(), bad})
}
