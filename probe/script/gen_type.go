package script

import (
	"math/bits"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// whereIs leaves the address of a part of memory in R0.
func (g *generator) whereIs(e *expr) {
	of := e.args[0]
	switch {
	case e.kind == exUnary:
		g.number64(of)
	case e.kind == exField:
		g.beginning(of)
		g.Add(asm.R0, int64(e.bit/8))
	default:
		g.elementOf(e)
	}
}

// beginning leaves the address in R0 of what e points to, or is.
func (g *generator) beginning(e *expr) {
	switch {
	case e.typ.Kind == Pointer:
		g.number64(e)
	case e.isPlace():
		g.whereIs(e)
	default:
		g.address(asm.R0, g.view(e))
	}
}

// elementOf leaves the address of an element in R0; 0 where there is none of that index.
func (g *generator) elementOf(e *expr) {
	of, size := e.args[0], e.typ.inC()
	if n, ok := g.c.constant(e.args[1]); ok {
		g.beginning(of)
		g.Add(asm.R0, n*int64(size))
		return
	}
	index := g.alloc(8)
	if e.args[1].hasEffects() { // in the order of the source
		base := g.alloc(8)
		g.beginning(of)
		g.store(base, asm.R0)
		g.number64(e.args[1])
		g.scale(size)
		g.store(index, asm.R0)
		g.load(asm.R0, base)
	} else {
		g.number64(e.args[1])
		g.scale(size)
		g.store(index, asm.R0)
		g.beginning(of)
	}
	g.load(asm.R1, index)
	if e.num > 0 {
		within := g.NewLabel()
		g.If(asm.JLT, asm.R1, e.num*uint64(size), within)
		g.Emit(asm.Mov.Imm(asm.R0, 0))
		g.failed(e.args[1].site)
		g.Emit(asm.Mov.Imm(asm.R1, 0))
		g.Place(within)
	}
	g.Emit(asm.Add.Reg(asm.R0, asm.R1))
}

// scale multiplies R0 by the size of what a pointer points to; R1 changes.
func (g *generator) scale(size int) {
	switch {
	case size == 1 || size == 0:
	case size&(size-1) == 0:
		g.Emit(asm.LSh.Imm(asm.R0, int32(bits.TrailingZeros(uint(size)))))
	default:
		g.Emit(bpfgen.Const(asm.R1, uint64(size)), asm.Mul.Reg(asm.R0, asm.R1))
	}
}

// readPlace leaves the number in R0 that a part of memory has.
func (g *generator) readPlace(e *expr) {
	t, n := e.typ, e.typ.inC()
	if e.width > 0 {
		n = int(e.bit%8+e.width+7) / 8
	}
	g.scoped(func() {
		g.whereIs(e)
		g.readNumber(n, e.site)
	})
	switch {
	case e.width > 0:
		g.Emit(asm.LSh.Imm(asm.R0, int32(64-e.bit%8-e.width)))
		if t.Signed {
			g.Emit(asm.ArSh.Imm(asm.R0, int32(64-e.width)))
		} else {
			g.Emit(asm.RSh.Imm(asm.R0, int32(64-e.width)))
		}
	case t.Kind == Bool, t.Size < 8 && t.Signed:
		g.convert(typeUint, t)
	}
}

// readNumber leaves the n bytes at R0 in R0.
func (g *generator) readNumber(n, site int) {
	g.scoped(func() {
		to := g.alloc(8)
		g.Emit(asm.Mov.Reg(asm.R3, asm.R0), bpfgen.StoreConst(8, to.base, to.off, 0))
		g.address(asm.R1, to)
		g.Emit(asm.Mov.Imm(asm.R2, int32(n)), bpfgen.Call(bpf.HelperReadKernel))
		g.failedIfNegative(site)
		g.load(asm.R0, to)
	})
}

// putPlace stores what a part of memory has that is no number, as a value of type t.
func (g *generator) putPlace(e *expr, t Type, to mem) {
	n, h := e.typ.Size, bpf.HelperReadKernel
	if t.Kind == String {
		h = bpf.HelperReadKernelStr
	}
	g.scoped(func() {
		g.whereIs(e)
		at := g.alloc(8)
		g.store(at, asm.R0)
		g.clear(to, t.bytes())
		if n == 0 {
			return
		}
		g.load(asm.R3, at)
		g.address(asm.R1, to)
		g.Emit(asm.Mov.Imm(asm.R2, int32(n)), bpfgen.Call(h))
		g.failedIfNegative(e.site)
	})
}

// argument leaves a parameter of the function in R0.
func (g *generator) argument(e *expr) {
	f := g.c.prototype(g.p)
	switch w := f.words[f.param(e.name)]; {
	case w > registerWords:
		g.stackWord(w-registerWords, e.site)
	case g.p.atReturn():
		g.Emit(bpfgen.Load(8, asm.R0, rCtx, entryArg(w-1)))
	default:
		g.Emit(bpfgen.Load(8, asm.R0, rCtx, x86.CallArgs[w-1]))
	}
	g.convert(typeUint, e.typ)
}

// entryArg is where the context of a return has an argument in a register (bpf.PutEntry).
func entryArg(n int) int { return bpf.RegsSize + 8 + 8*n }

// stackWord leaves a word in R0 that is on the stack above the return address, from 1.
func (g *generator) stackWord(n, site int) {
	g.Emit(bpfgen.Load(8, asm.R0, rCtx, x86.PtSP))
	g.Add(asm.R0, 8*int64(n))
	g.readNumber(8, site)
}

// putArray stores a number's or a string's bytes as an array.
func (g *generator) putArray(e *expr, to mem) {
	of := e.args[0]
	if of.typ.Kind == String {
		g.put(of, of.typ, to)
		return
	}
	g.number64(of)
	if n := e.typ.Size; n < 8 { // behind it are zeros, as keys are compared with them
		g.convert(typeUint, typeUintOf(8))
		g.Emit(asm.LSh.Imm(asm.R0, int32(64-8*n)), asm.RSh.Imm(asm.R0, int32(64-8*n)))
	}
	g.store(to, asm.R0)
}

// fromArray leaves the bytes of an array in R0 as a number.
func (g *generator) fromArray(e *expr) {
	g.scoped(func() { g.load(asm.R0, g.view(e.args[0])) })
	g.convert(typeUint, e.typ)
}
