package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// put stores the value of e as one of type t.
func (g *generator) put(e *expr, t Type, to mem) {
	if g.tooLong() {
		return
	}
	switch {
	case e.kind == exBlock:
		g.inBlock(e, func(v *expr) { g.put(v, t, to) })
	case t.isNumber():
		g.number64(e)
		g.convert(e.typ, t)
		g.store(to, asm.R0)
	case e.kind == exCond:
		other, done := g.NewLabel(), g.NewLabel()
		g.jumpUnless(e.args[0], other)
		g.put(e.args[1], t, to)
		g.GoTo(done)
		g.Place(other)
		g.put(e.args[2], t, to)
		g.Place(done)
	case e.kind == exTuple:
		for i, a := range e.args {
			g.put(a, t.Elems[i], to.at(t.offset(i)))
		}
	case e.isPlace():
		g.putPlace(e, t, to)
	case e.kind == exCast:
		g.putArray(e, to)
	case e.kind == exVar, e.kind == exField:
		g.scoped(func() { g.copyAs(t, to, e.typ, g.view(e)) })
	case e.kind == exMap:
		g.putElement(e, t, to)
	case t.Kind == Buffer:
		g.putBuffer(e, t, to)
	case t.Kind == Inet:
		g.putInet(e, to)
	case e.kind == exCall && e.name == "str_concat":
		g.putConcat(e, t, to)
	default:
		g.putString(e, t, to)
	}
}

// view returns where a value is that is in memory already, and puts it there if it is not.
func (g *generator) view(e *expr) mem {
	switch {
	case e.kind == exVar:
		return g.vars[e.decl]
	case e.kind == exField && e.args[0].typ.Kind == Tuple:
		return g.view(e.args[0]).at(e.args[0].typ.offset(int(e.num)))
	}
	m := g.alloc(e.typ.bytes())
	g.put(e, e.typ, m)
	return m
}

// copyAs copies a value and makes it one of another type.
func (g *generator) copyAs(t Type, to mem, from Type, of mem) {
	switch t.Kind {
	case Tuple:
		for i := range t.Elems {
			g.copyAs(t.Elems[i], to.at(t.offset(i)), from.Elems[i], of.at(from.offset(i)))
		}
	case String, Buffer, Struct, Array, Inet:
		n := min(t.bytes(), from.bytes())
		g.copy(to, of, n)
		g.clear(to.at(n), t.bytes()-n)
	default:
		g.load(asm.R0, of)
		g.convert(from, t)
		g.store(to, asm.R0)
	}
}

// text returns the text of an expression that is known now.
func (g *generator) text(e *expr) (string, bool) {
	switch {
	case e.kind == exString:
		return e.text, true
	case e.kind == exBuiltin && e.typ.Kind == String && (e.name == "probe" || e.name == "func" || e.name == "probetype"):
		return g.c.constantText(e.name, g.p), true
	case e.kind == exBuiltin && e.name == "comm" && !g.p.hasGuest():
		return "guestprobe", true
	case e.kind == exCall && e.name == "str" && e.args[0].kind == exParam:
		return g.c.paramText(e.args[0]), true
	}
	return "", false
}

// putText stores constant text in n bytes, the rest of which become zeros.
func (g *generator) putText(s string, n int, to mem) {
	for i := 0; i < n && !g.tooLong(); i += 8 {
		var word [8]byte
		if i < len(s) {
			copy(word[:], s[i:])
		}
		g.putWord(bpfgen.BytesAt(string(word[:]), 8), to.at(i))
	}
}

func (g *generator) putWord(w uint64, to mem) {
	if int64(w) == int64(int32(w)) {
		g.Emit(bpfgen.StoreConst(8, to.base, to.off, int32(w)))
		return
	}
	g.Emit(bpfgen.Const(asm.R1, w))
	g.store(to, asm.R1)
}

// putString stores a string that is made here.
func (g *generator) putString(e *expr, t Type, to mem) {
	if s, ok := g.text(e); ok {
		g.putText(s[:min(len(s), t.bytes())], t.bytes(), to)
		return
	}
	if e.kind == exBuiltin { // comm
		g.clear(to.at(16), t.bytes()-16)
		g.address(asm.R1, to)
		g.Emit(asm.Mov.Imm(asm.R2, 16), bpfgen.Call(bpf.HelperGetComm))
		return
	}
	g.scoped(func() {
		n := e.typ.Size
		addr := g.alloc(8)
		g.number64(e.args[0])
		g.store(addr, asm.R0)
		g.clear(to, t.bytes())
		if len(e.args) == 2 {
			g.length(e.args[1], n)
		} else {
			g.Emit(asm.Mov.Imm(asm.R2, int32(n)))
		}
		g.address(asm.R1, to)
		g.load(asm.R3, addr)
		g.Emit(bpfgen.Call(bpf.HelperReadKernelStr))
		g.failedIfNegative(e.site)
	})
}

// length leaves a length of at most n bytes in R2.
func (g *generator) length(e *expr, n int) {
	within := g.NewLabel()
	g.number64(e)
	g.Emit(asm.Mov.Reg(asm.R2, asm.R0))
	g.If(asm.JLE, asm.R2, uint64(n), within)
	g.Emit(asm.Mov.Imm(asm.R2, int32(n)))
	g.Place(within)
}

// putBuffer stores a buffer: its length, and the bytes.
func (g *generator) putBuffer(e *expr, t Type, to mem) {
	g.clear(to.at(8), t.bytes()-8)
	if len(e.args) == 1 {
		e.args = append(e.args, &expr{kind: exInt, Span: e.Span, num: uint64(t.Size), typ: typeInt})
	}
	if s, ok := g.text(e.args[0]); ok {
		g.length(e.args[1], t.Size)
		g.store(to, asm.R2)
		g.putText(s[:min(len(s), t.Size)], roundUp8(t.Size), to.at(8))
		return
	}
	g.scoped(func() {
		if e.args[0].typ.is(String, Array) {
			from := g.fixed(e.args[0], e.args[1])
			g.length(e.args[1], t.Size)
			g.store(to, asm.R2)
			g.copy(to.at(8), from, min(roundUp8(t.Size), e.args[0].typ.bytes()))
			return
		}
		addr := g.alloc(8)
		g.number64(e.args[0])
		g.store(addr, asm.R0)
		g.length(e.args[1], t.Size)
		g.store(to, asm.R2)
		g.address(asm.R1, to.at(8))
		g.load(asm.R3, addr)
		g.Emit(bpfgen.Call(bpf.HelperReadKernel))
		g.failedIfNegative(e.site)
	})
}

// compareValues goes on where two values are equal that are no numbers.
func (g *generator) compareValues(a, b *expr, otherwise bpfgen.Label) {
	if a.typ.Kind != String {
		g.scoped(func() {
			t, _ := unify(a.typ, b.typ)
			x, y := g.alloc(t.bytes()), g.alloc(t.bytes())
			g.put(a, t, x)
			g.put(b, t, y)
			g.sameWords(x, y, t.bytes(), otherwise)
		})
		return
	}
	if _, ok := g.text(a); ok {
		a, b = b, a
	}
	g.scoped(func() {
		x := g.fixed(a, b)
		if s, ok := g.text(b); ok {
			w := make([]byte, max(a.typ.bytes(), roundUp8(len(s)+1)))
			copy(w, s)
			for i := 0; i < len(w); i += 8 {
				word := bpfgen.BytesAt(string(w[i:]), 8)
				if i < a.typ.bytes() {
					g.load(asm.R0, x.at(i))
				} else {
					g.Emit(asm.Mov.Imm(asm.R0, 0))
				}
				g.Require(asm.JEq, asm.R0, word, otherwise)
				if word>>56 == 0 {
					return // what is behind the final zero is zeros
				}
			}
			return
		}
		y := g.view(b)
		for i := 0; i < max(a.typ.bytes(), b.typ.bytes()); i += 8 {
			switch {
			case i >= a.typ.bytes():
				g.load(asm.R0, y.at(i))
				g.Require(asm.JEq, asm.R0, 0, otherwise)
			case i >= b.typ.bytes():
				g.load(asm.R0, x.at(i))
				g.Require(asm.JEq, asm.R0, 0, otherwise)
			default:
				g.sameWords(x.at(i), y.at(i), 8, otherwise)
			}
		}
	})
}

// sameWords goes on where n bytes are the same.
func (g *generator) sameWords(x, y mem, n int, otherwise bpfgen.Label) {
	for i := 0; i < n; i += 8 {
		on := g.NewLabel()
		g.load(asm.R0, x.at(i))
		g.load(asm.R1, y.at(i))
		g.JumpTo(asm.JEq.Reg(asm.R0, asm.R1, ""), on)
		g.GoTo(otherwise)
		g.Place(on)
	}
}

// strlen leaves the length of a string in R0.
func (g *generator) strlen(e *expr) {
	g.scoped(func() { g.textLength(g.view(e), e.typ.Size) })
}

// textLength leaves the length of a string of at most n bytes in R0.
func (g *generator) textLength(m mem, n int) {
	again, done := g.NewLabel(), g.NewLabel()
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.Place(again)
	g.address(asm.R1, m)
	g.Emit(asm.Add.Reg(asm.R1, asm.R0), bpfgen.Load(1, asm.R1, asm.R1, 0))
	g.If(asm.JEq, asm.R1, 0, done)
	g.Emit(asm.Add.Imm(asm.R0, 1))
	g.If(asm.JLT, asm.R0, uint64(n), again)
	g.Place(done)
}
