package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// put stores the value of e as type t.
func (g *generator) put(e *expr, t Type, to mem) {
	if g.tooLong() {
		return
	}
	switch {
	case e.kind == exBlock:
		g.emitBlock(e, func(v *expr) { g.put(v, t, to) })
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
			at, _ := t.elementFor(e.typ, i)
			g.put(a, t.Elems[at], to.offset(t.offset(at)))
		}
	case e.isPlace():
		g.putPlace(e, t, to)
	case e.kind == exCast && t.Kind == String:
		g.put(e.args[0], t, to)
	case e.kind == exCast:
		g.putArray(e, to)
	case e.kind == exVar, e.kind == exField:
		g.runInScope(func() { g.copyAs(t, to, e.typ, g.view(e)) })
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

// view returns the place of a value in memory, and stores it there if necessary.
func (g *generator) view(e *expr) mem {
	switch {
	case e.kind == exVar:
		return g.vars[e.decl]
	case e.kind == exField && e.args[0].typ.Kind == Tuple:
		return g.view(e.args[0]).offset(e.args[0].typ.offset(int(e.num)))
	}
	m := g.alloc(e.typ.bytes())
	g.put(e, e.typ, m)
	return m
}

// copyAs copies a value and converts it to another type.
func (g *generator) copyAs(t Type, to mem, from Type, of mem) {
	switch t.Kind {
	case Tuple:
		for i := range t.Elems {
			j, _ := from.elementFor(t, i)
			g.copyAs(t.Elems[i], to.offset(t.offset(i)), from.Elems[j], of.offset(from.offset(j)))
		}
	case String, Buffer, Struct, Array, Inet:
		n := min(t.bytes(), from.bytes())
		g.copy(to, of, n)
		g.clear(to.offset(n), t.bytes()-n)
	default:
		g.load(asm.R0, of)
		g.convert(from, t)
		g.store(to, asm.R0)
	}
}

// text returns the text of an expression if it is known at compile time.
func (g *generator) text(e *expr) (string, bool) {
	switch {
	case e.kind == exString:
		return e.text, true
	case e.kind == exBuiltin && e.typ.Kind == String && (e.name == "probe" || e.name == "func" || e.name == "probetype"):
		g.placed = true
		return constantText(e.name, g.p), true
	case e.kind == exBuiltin && e.name == "comm" && !g.p.hasGuest():
		return "guestprobe", true
	case e.kind == exCall && e.name == "str" && e.args[0].kind == exParam:
		return g.c.paramText(e.args[0]), true
	}
	return "", false
}

// putText stores constant text in n bytes, padded with zeros.
func (g *generator) putText(s string, n int, to mem) {
	for i := 0; i < n && !g.tooLong(); i += 8 {
		var word [8]byte
		if i < len(s) {
			copy(word[:], s[i:])
		}
		g.putWord(bpfgen.BytesAt(string(word[:]), 8), to.offset(i))
	}
}

// putString stores a string that this program makes.
func (g *generator) putString(e *expr, t Type, to mem) {
	if s, ok := g.text(e); ok {
		g.putText(s[:min(len(s), t.bytes())], t.bytes(), to)
		return
	}
	if e.kind == exBuiltin { // comm
		g.clear(to.offset(16), t.bytes()-16)
		g.address(asm.R1, to)
		g.Emit(asm.Mov.Imm(asm.R2, 16), bpfgen.Call(bpf.HelperGetComm))
		return
	}
	g.runInScope(func() {
		n, fills := e.typ.Size, true
		addr, want := g.alloc(8), mem{}
		g.number64(e.args[0])
		g.store(addr, asm.R0)
		g.clear(to, t.bytes())
		if len(e.args) == 2 {
			if length, ok := g.c.constant(e.args[1]); !ok {
				want = g.alloc(8)
			} else if length <= int64(n) {
				fills = false
			}
			g.length(e.args[1], n, want)
		} else {
			g.Emit(asm.Mov.Imm(asm.R2, int32(n)))
		}
		g.address(asm.R1, to)
		g.load(asm.R3, addr)
		g.Emit(bpfgen.Call(bpf.HelperReadKernelStr))
		g.countFailureIfNegative(e.site)
		if fills {
			g.fillString(n, addr, want, to, e.site)
		}
	})
}

// fillString stores the byte number n of a string that has at least as many, in place
// of the final zero, after the other n-1 were read: a string without one was truncated.
// R0 is the result of that read. With a place of a length it does so only if that is
// above n.
func (g *emitter) fillString(n int, addr, length, to mem, site int) {
	whole := g.NewLabel()
	g.If(asm.JNE, asm.R0, uint64(n), whole)
	if length.base != 0 {
		g.load(asm.R0, length)
		g.If(asm.JLE, asm.R0, uint64(n), whole)
	}
	g.address(asm.R1, to.offset(n-1))
	g.Emit(asm.Mov.Imm(asm.R2, 1))
	g.load(asm.R3, addr)
	g.Add(asm.R3, int64(n-1))
	g.Emit(bpfgen.Call(bpf.HelperReadKernel))
	g.countFailureIfNegative(site)
	g.Place(whole)
}

// length leaves a length of at most n bytes in R2, and stores the length that is
// wanted, if there is a place for it.
func (g *generator) length(e *expr, n int, want mem) {
	within := g.NewLabel()
	g.number64(e)
	if want.base != 0 {
		g.store(want, asm.R0)
	}
	g.Emit(asm.Mov.Reg(asm.R2, asm.R0))
	g.If(asm.JLE, asm.R2, uint64(n), within)
	g.Emit(asm.Mov.Imm(asm.R2, int32(n)))
	g.Place(within)
}

// putBuffer stores a buffer: its length, and the bytes.
func (g *generator) putBuffer(e *expr, t Type, to mem) {
	g.clear(to.offset(8), t.bytes()-8)
	most := e.typ.Size // may be less than the size of t
	if len(e.args) == 1 {
		e.args = append(e.args, &expr{kind: exInt, Span: e.Span, num: uint64(most), typ: typeInt})
	}
	if s, ok := g.text(e.args[0]); ok {
		g.length(e.args[1], most, mem{})
		g.store(to, asm.R2)
		g.putText(s[:min(len(s), most)], roundUp8(most), to.offset(8))
		g.clearRest(e.args[1], most, to)
		return
	}
	g.runInScope(func() {
		if e.args[0].typ.is(String, Array) {
			from := g.stableView(e.args[0], e.args[1])
			g.length(e.args[1], most, mem{})
			g.store(to, asm.R2)
			g.copy(to.offset(8), from, min(roundUp8(most), e.args[0].typ.bytes()))
			g.clearRest(e.args[1], most, to)
			return
		}
		addr := g.alloc(8)
		g.number64(e.args[0])
		g.store(addr, asm.R0)
		g.length(e.args[1], most, mem{})
		g.store(to, asm.R2)
		g.address(asm.R1, to.offset(8))
		g.load(asm.R3, addr)
		g.Emit(bpfgen.Call(bpf.HelperReadKernel))
		g.countFailureIfNegative(e.site)
	})
}

// clearRest clears the bytes of a buffer after its length, which is most if it is a
// constant, and otherwise in the word before the bytes: keys and comparisons see all
// bytes.
func (g *generator) clearRest(length *expr, most int, to mem) {
	if _, ok := g.c.constant(length); ok {
		if last := to.offset(8 + most/8*8); most%8 > 0 {
			g.load(asm.R0, last)
			g.And(asm.R0, 1<<(8*(most%8))-1)
			g.store(last, asm.R0)
		}
		return
	}
	for i := 0; i < most; i += 8 {
		none, done := g.NewLabel(), g.NewLabel()
		g.load(asm.R1, to)
		g.If(asm.JGE, asm.R1, uint64(i+8), done)
		g.If(asm.JLE, asm.R1, uint64(i), none)
		g.load(asm.R0, to.offset(8+i))
		g.Emit(asm.Sub.Imm(asm.R1, int32(i+8)), asm.Mul.Imm(asm.R1, -8)) // the number of bits after the length
		g.Emit(asm.LSh.Reg(asm.R0, asm.R1), asm.RSh.Reg(asm.R0, asm.R1))
		g.store(to.offset(8+i), asm.R0)
		g.GoTo(done)
		g.Place(none)
		g.Emit(bpfgen.StoreConst(8, to.base, to.off+8+i, 0))
		g.Place(done)
	}
}

// compareValues continues if two values that are not numbers are equal, and otherwise
// jumps to otherwise.
func (g *generator) compareValues(a, b *expr, otherwise bpfgen.Label) {
	if a.typ.Kind != String {
		g.runInScope(func() {
			t, _ := unify(a.typ, b.typ)
			x, y := g.alloc(t.bytes()), g.alloc(t.bytes())
			g.put(a, t, x)
			g.put(b, t, y)
			g.compareWords(x, y, t.bytes(), otherwise)
		})
		return
	}
	if _, ok := g.text(a); ok {
		a, b = b, a
	}
	g.runInScope(func() {
		x := g.stableView(a, b)
		if s, ok := g.text(b); ok {
			w := make([]byte, max(a.typ.bytes(), roundUp8(len(s)+1)))
			copy(w, s)
			for i := 0; i < len(w); i += 8 {
				word := bpfgen.BytesAt(string(w[i:]), 8)
				if i < a.typ.bytes() {
					g.load(asm.R0, x.offset(i))
				} else {
					g.Emit(asm.Mov.Imm(asm.R0, 0))
				}
				g.Require(asm.JEq, asm.R0, word, otherwise)
				if word>>56 == 0 {
					return // the bytes after the final zero are zeros
				}
			}
			return
		}
		y := g.view(b)
		n, m := a.typ.bytes(), b.typ.bytes()
		g.compareWords(x, y, min(n, m), otherwise)
		if n != m { // the longer one has its final zero next
			if n < m {
				x = y
			}
			g.load(asm.R0, x.offset(min(n, m)))
			g.Require(asm.JEq, asm.R0, 0, otherwise)
		}
	})
}

// strlen leaves the length of a string in R0.
func (g *generator) strlen(e *expr) {
	g.runInScope(func() { g.textLength(g.view(e), e.typ.Size) })
}
