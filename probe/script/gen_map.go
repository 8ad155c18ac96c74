package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// mapEmitter emits operations on the elements of maps, and on the per-vCPU values of
// an aggregation.
type mapEmitter struct {
	*emitter
	cpus  int   // of the guest: see Options.CPUs
	epoch int64 // Options.Epoch
}

// isHist reports whether a map's elements are buckets.
func (m *mapDef) isHist() bool { return m.value.is(Hist, LHist, TSeries) }

// key evaluates the key of an element, with room for a bucket.
func (g *generator) key(e *expr) mem {
	k := g.elems.keyRoom(g.c.byName[e.name])
	g.putKey(e, k)
	return k
}

// keyRoom allocates a key of a map.
func (g mapEmitter) keyRoom(m *mapDef) mem {
	n := max(m.keyBytes(), 8)
	if m.isHist() && m.keyed == 2 {
		n = m.keyBytes() + 8
	}
	return g.alloc(n)
}

// putKey is key in allocated memory; a bucket already there is preserved.
func (g *generator) putKey(e *expr, k mem) {
	m := g.c.byName[e.name]
	if m.keyed == 1 {
		g.Emit(bpfgen.StoreConst(8, k.base, k.off, 0))
		return
	}
	t := Type{Kind: Tuple, Elems: m.key}
	if len(e.args) == 1 && e.args[0].typ.isTuple() {
		g.put(e.args[0], t, k)
		return
	}
	for i, a := range e.args {
		g.put(a, m.key[i], k.offset(t.offset(i)))
	}
}

// mapCall calls a helper with a map and a key.
func (g mapEmitter) mapCall(h bpf.Helper, m *mapDef, key mem) {
	g.loadMap(asm.R1, m.name)
	g.address(asm.R2, key)
	g.Emit(bpfgen.Call(h))
}

// isArray reports whether the map is one value that all vCPUs share.
func (m *mapDef) isArray() bool { return m.keyed == 1 && !m.value.isAggregate() }

// isMarked reports whether a word after the only value says that the value is set,
// because the value itself cannot say so.
func (m *mapDef) isMarked() bool { return m.isArray() || m.keyed == 1 && m.value.Kind == Sum }

// valueBytes is the size of an element, including that word.
func (m *mapDef) valueBytes() int {
	if m.isMarked() {
		return m.value.bytes() + 8
	}
	return m.value.bytes()
}

// mark sets the word that says that there is a value.
func (g mapEmitter) mark(m *mapDef, at mem) {
	if m.isMarked() {
		g.Emit(bpfgen.StoreConst(8, at.base, at.off+m.value.bytes(), 1))
	}
}

// pointer leaves the address of an element in rValue, and creates the element if it
// does not exist. If there is no room for it, it counts a failure and jumps to fail
// with R0 = 0.
func (g *generator) pointer(e *expr, fail bpfgen.Label) {
	m := g.c.byName[e.name]
	g.found.forget(m)
	if m.isArray() {
		g.Emit(asm.LoadMapValue(rValue, g.mapNumber(m.name), 0))
		g.elems.mark(m, mem{rValue, 0})
		return
	}
	g.elems.element(m, g.key(e), e.site, fail)
}

// element is pointer for an evaluated key.
func (g mapEmitter) element(m *mapDef, key mem, site int, fail bpfgen.Label) {
	have := g.NewLabel()
	g.mapCall(bpf.HelperMapLookup, m, key)
	if m.keyed == 1 {
		g.If(asm.JEq, asm.R0, 0, fail)
	} else {
		g.If(asm.JNE, asm.R0, 0, have)
		n := m.value.bytes()
		zero := g.alloc(n)
		g.clear(zero, n)
		g.loadMap(asm.R1, m.name)
		g.address(asm.R2, key)
		g.address(asm.R3, zero)
		g.Emit(asm.Mov.Imm(asm.R4, bpf.UpdateNoExist), bpfgen.Call(bpf.HelperMapUpdate))
		g.Emit(asm.Mov.Reg(rValue, asm.R0))
		g.mapCall(bpf.HelperMapLookup, m, key)
		g.If(asm.JNE, asm.R0, 0, have)
		g.Emit(asm.Mov.Reg(asm.R0, rValue))
		g.countFailure(site)
		g.Emit(asm.Mov.Imm(asm.R0, 0))
		g.GoTo(fail)
	}
	g.Place(have)
	g.Emit(asm.Mov.Reg(rValue, asm.R0))
}

// readMap leaves the number in an element in R0, or 0 if the element does not exist.
func (g *generator) readMap(e *expr) {
	m := g.c.byName[e.name]
	if m.isArray() {
		g.Emit(asm.LoadMapValue(asm.R1, g.mapNumber(m.name), 0), bpfgen.Load(8, asm.R0, asm.R1, 0))
		return
	}
	if m.value.isAggregate() {
		g.runInScope(func() { g.elems.mergeValues(m, g.key(e), "average") })
		return
	}
	if at, ok := g.found.number(e); ok {
		g.load(asm.R0, at)
		return
	}
	g.runInScope(func() {
		none := g.NewLabel()
		g.elems.mapCall(bpf.HelperMapLookup, m, g.key(e))
		g.If(asm.JEq, asm.R0, 0, none)
		g.Emit(bpfgen.Load(8, asm.R0, asm.R0, 0))
		g.Place(none)
	})
}

// putElement stores an element that is not a number.
func (g *generator) putElement(e *expr, t Type, to mem) {
	m := g.c.byName[e.name]
	none, done := g.NewLabel(), g.NewLabel()
	g.runInScope(func() {
		g.elems.mapCall(bpf.HelperMapLookup, m, g.key(e))
		g.Require(asm.JNE, asm.R0, 0, none)
		g.Emit(asm.Mov.Reg(rValue, asm.R0))
		g.copyAs(t, to, m.value, mem{rValue, 0})
	})
	g.GoTo(done)
	g.Place(none)
	g.clear(to, t.bytes())
	g.Place(done)
}

// assignMap generates an assignment to an element.
func (g *generator) assignMap(s *stmt) {
	m := g.c.byName[s.to.name]
	if m.value.isAggregate() {
		g.aggregate(m, s.to, s.value)
		return
	}
	done := g.NewLabel()
	g.runInScope(func() {
		to := s.to
		if s.op != "=" && (haveEffects(to.args) || s.value.hasEffects()) { // the key is evaluated once, and first
			to = g.steadyKey(to)
		}
		val := g.alloc(m.valueBytes())
		switch {
		case (s.op == "+=" || s.op == "-=") && !s.value.hasEffects():
			g.number64(s.value)
			if m.value.Kind == Pointer {
				g.scale(m.value.Elems[0].sizeInC())
			}
			if s.op == "-=" {
				g.Emit(asm.Neg.Imm(asm.R0, 0))
			}
			g.store(val, asm.R0)
			g.pointer(to, done)
			g.load(asm.R1, val)
			g.Emit(asm.AddAtomic.Mem(rValue, asm.R1, asm.DWord, 0))
			return
		case s.op != "=":
			g.operate(s, to)
			g.convert(typeInt, m.value)
			g.store(val, asm.R0)
		default:
			g.put(s.value, m.value, val)
		}
		if m.isArray() && m.value.isNumber() {
			g.load(asm.R0, val)
			g.Emit(asm.LoadMapValue(asm.R1, g.mapNumber(m.name), 0), bpfgen.Store(8, asm.R1, 0, asm.R0))
			g.elems.mark(m, mem{asm.R1, 0})
			return
		}
		g.elems.mark(m, val)
		key := g.key(to)
		g.found.forget(m)
		g.loadMap(asm.R1, m.name)
		g.address(asm.R2, key)
		g.address(asm.R3, val)
		g.Emit(asm.Mov.Imm(asm.R4, bpf.UpdateAny), bpfgen.Call(bpf.HelperMapUpdate))
		g.countFailureIfNegative(s.to.site)
	})
	g.Place(done)
}

// deleteKey deletes an element, and leaves 1 in R0 if it existed.
func (g *generator) deleteKey(e *expr) {
	m := g.c.byName[e.name]
	defer g.found.forget(m)
	done, none := g.NewLabel(), g.NewLabel()
	g.runInScope(func() {
		if m.keyed == 1 && m.value.isAggregate() {
			g.elems.clearMergedValues(m)
			g.Emit(asm.Mov.Imm(asm.R0, 0))
			return
		}
		key := g.key(e)
		switch {
		case m.isArray():
			zero := g.alloc(m.valueBytes())
			g.clear(zero, m.valueBytes())
			g.loadMap(asm.R1, m.name)
			g.address(asm.R2, key)
			g.address(asm.R3, zero)
			g.Emit(asm.Mov.Imm(asm.R4, bpf.UpdateAny), bpfgen.Call(bpf.HelperMapUpdate))
		case m.isHist():
			again := g.NewLabel()
			bucket := key.offset(m.keyBytes())
			g.Emit(bpfgen.StoreConst(8, bucket.base, bucket.off, 0))
			g.Place(again)
			g.elems.mapCall(bpf.HelperMapDelete, m, key)
			g.load(asm.R1, bucket)
			g.Emit(asm.Add.Imm(asm.R1, 1))
			g.store(bucket, asm.R1)
			g.If(asm.JLT, asm.R1, uint64(buckets(m.value)), again)
			g.Emit(asm.Mov.Imm(asm.R0, 0))
		default:
			g.elems.mapCall(bpf.HelperMapDelete, m, key)
		}
	})
	g.If(asm.JNE, asm.R0, 0, none)
	g.Emit(asm.Mov.Imm(asm.R0, 1))
	g.GoTo(done)
	g.Place(none)
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.Place(done)
}

// truthOfKey leaves 1 in R0 if an element exists.
func (g *generator) truthOfKey(e *expr) {
	g.runInScope(func() {
		none := g.NewLabel()
		g.elems.mapCall(bpf.HelperMapLookup, g.c.byName[e.name], g.key(e))
		g.If(asm.JEq, asm.R0, 0, none)
		g.Emit(asm.Mov.Imm(asm.R0, 1))
		g.Place(none)
	})
}
