package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// loadAddress leaves the address of a part of memory in R0.
func (g *generator) loadAddress(e *expr) {
	of := e.args[0]
	switch {
	case e.inRecord:
		g.Emit(bpfgen.Load(8, asm.R0, rCtx, recordAt))
		g.placed = true
		g.Add(asm.R0, int64(g.p.fields[e.name]))
	case e.kind == exUnary:
		g.number64(of)
	case e.kind == exField:
		g.addressOfBase(of)
		g.Add(asm.R0, int64(e.bit/8))
	default:
		g.elementOf(e)
	}
}

// addressOfBase leaves in R0 the address that e points to, or the address of e.
func (g *generator) addressOfBase(e *expr) {
	switch {
	case e.typ.Kind == Pointer:
		g.number64(e)
	case e.isPlace():
		g.loadAddress(e)
	default:
		g.address(asm.R0, g.view(e))
	}
}

// elementOf leaves the address of an element in R0; 0 if the index is out of bounds.
func (g *generator) elementOf(e *expr) {
	of, size := e.args[0], e.typ.sizeInC()
	if n, ok := g.c.constant(e.args[1]); ok {
		g.addressOfBase(of)
		g.Add(asm.R0, n*int64(size))
		return
	}
	index := g.alloc(8)
	if e.args[1].hasEffects() { // in the order of the source
		base := g.alloc(8)
		g.addressOfBase(of)
		g.store(base, asm.R0)
		g.number64(e.args[1])
		g.scale(size)
		g.store(index, asm.R0)
		g.load(asm.R0, base)
	} else {
		g.number64(e.args[1])
		g.scale(size)
		g.store(index, asm.R0)
		g.addressOfBase(of)
	}
	g.load(asm.R1, index)
	if e.num > 0 {
		within := g.NewLabel()
		g.If(asm.JLT, asm.R1, e.num*uint64(size), within)
		g.Emit(asm.Mov.Imm(asm.R0, 0))
		g.countFailure(e.args[1].site)
		g.Emit(asm.Mov.Imm(asm.R1, 0))
		g.Place(within)
	}
	g.Emit(asm.Add.Reg(asm.R0, asm.R1))
}

// readPlace leaves in R0 the number in a part of memory.
func (g *generator) readPlace(e *expr) {
	t, n := e.typ, e.typ.sizeInC()
	if e.width > 0 {
		n = int(e.bit%8+e.width+7) / 8
	}
	g.runInScope(func() {
		g.loadAddress(e)
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

// putPlace stores the contents of a part of memory that is not a number, as a value
// of type t.
func (g *generator) putPlace(e *expr, t Type, to mem) {
	n, h := e.typ.Size, bpf.HelperReadKernel
	switch t.Kind {
	case String:
		h = bpf.HelperReadKernelStr
	case Tuple, Buffer, Inet: // of a variable, in the layout of variables
		if n = e.typ.bytes(); !t.equal(e.typ) {
			g.runInScope(func() {
				from := g.alloc(n)
				g.putPlace(e, e.typ, from)
				g.copyAs(t, to, e.typ, from)
			})
			return
		}
	}
	g.runInScope(func() {
		g.loadAddress(e)
		at := g.alloc(8)
		g.store(at, asm.R0)
		g.clear(to, t.bytes())
		if n == 0 {
			return
		}
		g.load(asm.R3, at)
		g.address(asm.R1, to)
		g.Emit(asm.Mov.Imm(asm.R2, int32(n)), bpfgen.Call(h))
		g.countFailureIfNegative(e.site)
	})
}

// recordAt is the offset of the record's address in the context of a program at an
// event.
const recordAt = x86.PtOrigAX

// argument leaves a parameter of the function in R0.
func (g *generator) argument(e *expr) {
	switch {
	case e.located: // 16 bits of offset from the record's start, and 16 of length
		g.runInScope(func() {
			g.loadAddress(e)
			g.readNumber(4, e.site)
			g.Emit(asm.And.Imm(asm.R0, 0xffff), bpfgen.Load(8, asm.R1, rCtx, recordAt), asm.Add.Reg(asm.R0, asm.R1))
		})
		return
	case e.inRecord:
		g.readPlace(e)
		return
	}
	g.placed = true
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

// entryArg is the offset of an argument in a register in the context of a return
// (bpf.PutEntry).
func entryArg(n int) int { return bpf.RegsSize + 8 + 8*n }

// putArray stores a number's or a string's bytes as an array.
func (g *generator) putArray(e *expr, to mem) {
	of := e.args[0]
	if s, ok := g.text(of); ok {
		g.putText(s[:min(len(s), e.typ.Size)], e.typ.bytes(), to)
		return
	}
	if of.typ.Kind == String {
		g.put(of, of.typ, to)
		return
	}
	g.number64(of)
	if n := e.typ.Size; n < 8 { // followed by zeros, because keys are compared with them
		g.convert(typeUint, typeUintOf(8))
		g.Emit(asm.LSh.Imm(asm.R0, int32(64-8*n)), asm.RSh.Imm(asm.R0, int32(64-8*n)))
	}
	g.store(to, asm.R0)
}

// loadArray leaves the bytes of an array in R0 as a number.
func (g *generator) loadArray(e *expr) {
	g.runInScope(func() { g.load(asm.R0, g.view(e.args[0])) })
	g.convert(typeUint, e.typ)
}
