package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// aggregate adds a value to an element of an aggregation. Each vCPU has its own
// value, and adds with one instruction, so that nothing is lost.
func (g *generator) aggregate(m *mapDef, e, value *expr) {
	done := g.NewLabel()
	g.runInScope(func() {
		t := m.value
		key := g.elems.keyRoom(m)
		bucket := key.offset(m.keyBytes()) // in a map without keys the index
		val := bucket
		if !t.is(Hist, LHist) {
			val = g.alloc(8)
		}
		if t.Kind != Count {
			g.number64(value.args[0])
			switch t.Kind {
			case Hist:
				g.elems.bucket(t.Size)
			case LHist:
				g.elems.linearBucket(t)
			case Min, Max:
				g.elems.rank(t)
			}
			g.store(val, asm.R0)
		}
		if m.keyed == 2 || !m.isHist() {
			g.putKey(e, key)
		}
		var number, now mem
		if t.Kind == TSeries {
			number, now = g.alloc(8), g.alloc(8)
			g.elems.interval(t, now)
			g.store(number, asm.R0)
			g.Emit(bpfgen.Const(asm.R1, uint64(t.High)), asm.Mod.Reg(asm.R0, asm.R1))
			g.store(bucket, asm.R0)
		}
		g.elems.element(m, key, e.site, done)
		switch t.Kind {
		case TSeries:
			g.elems.addToSeries(t, number, val, now)
		case Count, Hist, LHist:
			g.elems.increment(0)
		case Sum:
			g.load(asm.R1, val)
			g.Emit(asm.AddAtomic.Mem(rValue, asm.R1, asm.DWord, 0))
			g.elems.mark(m, mem{rValue, 0})
		case Avg, Stats:
			g.load(asm.R1, val)
			g.Emit(asm.AddAtomic.Mem(rValue, asm.R1, asm.DWord, 0))
			g.elems.increment(8)
		case Min, Max:
			g.elems.storeHighest(val)
			g.Emit(bpfgen.StoreConst(8, rValue, 8, 1))
		}
	})
	g.Place(done)
}

// increment adds 1 to a word of the element.
func (g mapEmitter) increment(off int16) {
	g.Emit(asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(rValue, asm.R1, asm.DWord, off))
}

// signBit is flipped in signed numbers, which then sort as unsigned ones.
const signBit = 1 << 63

// rank turns R0 into a number that is higher the better it is as a maximum or
// minimum. The word after it in the map says whether there is any value.
func (g mapEmitter) rank(t Type) {
	if t.Signed {
		g.Emit(bpfgen.Const(asm.R1, signBit), asm.Xor.Reg(asm.R0, asm.R1))
	}
	if t.Kind == Min {
		g.Emit(asm.Xor.Imm(asm.R0, -1))
	}
}

// unrank undoes rank.
func unrank(t Type, v uint64) int64 {
	if t.Kind == Min {
		v = ^v
	}
	if t.Signed {
		v ^= signBit
	}
	return int64(v)
}

// storeHighest stores a rank in the element if the element's is lower.
func (g mapEmitter) storeHighest(val mem) {
	again, done := g.NewLabel(), g.NewLabel()
	g.Place(again)
	g.load(asm.R1, val)
	g.Emit(bpfgen.Load(8, asm.R0, rValue, 0))
	g.JumpTo(asm.JLE.Reg(asm.R1, asm.R0, ""), done)
	g.Emit(asm.Mov.Reg(asm.R3, asm.R0), asm.CmpXchg.Mem(rValue, asm.R1, asm.DWord, 0))
	g.JumpTo(asm.JNE.Reg(asm.R0, asm.R3, ""), again)
	g.Place(done)
}

// bucket turns R0 into the number of its bucket, with 2^k buckets for each power of
// two.
func (g mapEmitter) bucket(k int) {
	n := uint64(1) << k
	log, done := g.NewLabel(), g.NewLabel()
	positive := g.NewLabel()
	g.If(asm.JSGE, asm.R0, 0, positive)
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.GoTo(done)
	g.Place(positive)
	g.If(asm.JGE, asm.R0, n, log)
	g.Emit(asm.Add.Imm(asm.R0, 1))
	g.GoTo(done)
	g.Place(log)
	g.Emit(asm.Mov.Reg(asm.R1, asm.R0), asm.Mov.Imm(asm.R2, int32(-k)))
	for _, s := range []int32{32, 16, 8, 4, 2} {
		less := g.NewLabel()
		g.Emit(asm.Mov.Reg(asm.R3, asm.R1), asm.RSh.Imm(asm.R3, s))
		g.If(asm.JEq, asm.R3, 0, less)
		g.Emit(asm.Mov.Reg(asm.R1, asm.R3), asm.Add.Imm(asm.R2, s))
		g.Place(less)
	}
	g.Emit(asm.RSh.Imm(asm.R1, 1), asm.Add.Reg(asm.R2, asm.R1)) // of 1 to 3 the rest of the logarithm
	if k == 0 {
		g.Emit(asm.Mov.Reg(asm.R0, asm.R2), asm.Add.Imm(asm.R0, 2))
	} else {
		g.Emit(asm.RSh.Reg(asm.R0, asm.R2), asm.And.Imm(asm.R0, int32(n-1)))
		g.Emit(asm.Add.Imm(asm.R2, 1), asm.LSh.Imm(asm.R2, int32(k)), asm.Add.Reg(asm.R0, asm.R2), asm.Add.Imm(asm.R0, 1))
	}
	g.Place(done)
}

// linearBucket turns R0 into the number of its bucket.
func (g mapEmitter) linearBucket(t Type) {
	above, below, done := g.NewLabel(), g.NewLabel(), g.NewLabel()
	g.Emit(bpfgen.Const(asm.R1, uint64(t.Low)))
	g.JumpTo(asm.JSLT.Reg(asm.R0, asm.R1, ""), below)
	g.Emit(bpfgen.Const(asm.R3, uint64(t.High)))
	g.JumpTo(asm.JSGE.Reg(asm.R0, asm.R3, ""), above)
	g.Emit(asm.Sub.Reg(asm.R0, asm.R1), bpfgen.Const(asm.R1, uint64(t.Step)), asm.Div.Reg(asm.R0, asm.R1), asm.Add.Imm(asm.R0, 1))
	g.GoTo(done)
	g.Place(above)
	g.Emit(bpfgen.Const(asm.R0, uint64(buckets(t)-1)))
	g.GoTo(done)
	g.Place(below)
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.Place(done)
}

// exprStmt generates a statement that is an expression.
func (g *generator) exprStmt(e *expr) {
	switch {
	case e.kind == exBlock:
		g.emitBlock(e, g.exprStmt)
	case e.isChoice():
		other, done := g.NewLabel(), g.NewLabel()
		g.jumpUnless(e.args[0], other)
		g.exprStmt(e.args[1])
		g.GoTo(done)
		g.Place(other)
		g.exprStmt(e.args[2])
		g.Place(done)
	case e.kind == exIncDec:
		g.runInScope(func() { g.incDec(e, true) })
	case e.kind == exCall && e.name == "override":
		g.override(e.Span, e.args[0])
	case e.kind == exCall && e.name == "setreg":
		g.setReg(e)
	case e.kind == exCall && e.name == "poke":
		g.poke(e)
	case e.kind == exCall && e.name == "stop":
		g.stop(e)
	case e.kind == exCall && e.name == "exit":
		g.exit(e)
	case e.kind == exCall && calls[e.name].statement:
		g.output(e)
	case e.typ.isNumber():
		g.runInScope(func() { g.number64(e) })
	case e.hasEffects():
		g.runInScope(func() { g.view(e) })
	}
}

// output writes a record: the number of the output statement, and the values. If the
// values have effects, the record is made in the program's own memory and written
// when it is complete: a value may itself write records, which must come first, may
// end the program, and has its effects even if the ring is full.
func (g *generator) output(e *expr) {
	o := g.c.outputs[e.num]
	args := e.args
	if o.format != nil {
		args = args[1:]
	}
	fill := func(to mem) {
		g.Emit(bpfgen.StoreConst(8, to.base, to.off, int32(e.num)))
		at := 8
		for i, t := range o.types {
			g.put(args[i], t, to.offset(at))
			at += t.bytes()
		}
	}
	if len(o.types) > 0 && haveEffects(args) {
		g.runInScope(func() {
			rec := g.alloc(o.bytes())
			fill(rec)
			g.loadMap(asm.R1, mapOutput)
			g.address(asm.R2, rec)
			g.Emit(asm.Mov.Imm(asm.R3, int32(o.bytes())), asm.Mov.Imm(asm.R4, 0), bpfgen.Call(bpf.HelperRingOutput))
		})
		return
	}
	none := g.NewLabel()
	g.loadMap(asm.R1, mapOutput)
	g.Emit(asm.Mov.Imm(asm.R2, int32(o.bytes())), asm.Mov.Imm(asm.R3, 0), bpfgen.Call(bpf.HelperRingReserve))
	g.Require(asm.JNE, asm.R0, 0, none)
	g.Emit(asm.Mov.Reg(rRec, asm.R0))
	fill(mem{rRec, 0})
	g.Emit(asm.Mov.Reg(asm.R1, rRec), asm.Mov.Imm(asm.R2, 0), bpfgen.Call(bpf.HelperRingSubmit))
	g.Place(none)
}

// exit requests the script's end, and ends the program. One record of each kind is
// enough; more would push others out of the ring.
func (g *generator) exit(e *expr) {
	o, none, passed := g.c.outputs[e.num], g.NewLabel(), g.NewLabel()
	g.runInScope(func() {
		status, said := g.alloc(8), g.alloc(8)
		g.put(e.args[0], typeInt, status)
		g.load(asm.R0, status)
		g.Emit(asm.Mov.Imm(asm.R2, exitPassed))
		g.If(asm.JEq, asm.R0, 0, passed)
		g.Emit(asm.Mov.Imm(asm.R2, exitFailed))
		g.Place(passed)
		g.store(said, asm.R2)
		g.Emit(asm.LoadMapValue(asm.R1, g.mapNumber(mapSites), g.c.exitOffset()))
		g.Emit(bpfgen.Load(8, asm.R0, asm.R1, 0), asm.Sub.Reg(asm.R0, asm.R2))
		g.Require(asm.JSLT, asm.R0, 0, none)
		g.load(asm.R0, status)
		g.Emit(bpfgen.Store(8, asm.R1, 8, asm.R0))
		g.load(asm.R0, said)
		g.Emit(bpfgen.Store(8, asm.R1, 0, asm.R0))
		g.loadMap(asm.R1, mapOutput)
		g.Emit(asm.Mov.Imm(asm.R2, int32(o.bytes())), asm.Mov.Imm(asm.R3, 0), bpfgen.Call(bpf.HelperRingReserve))
		g.Require(asm.JNE, asm.R0, 0, none)
		g.Emit(bpfgen.StoreConst(8, asm.R0, 0, int32(e.num)))
		g.load(asm.R1, status)
		g.Emit(bpfgen.Store(8, asm.R0, 8, asm.R1))
		g.Emit(asm.Mov.Reg(asm.R1, asm.R0), asm.Mov.Imm(asm.R2, 0), bpfgen.Call(bpf.HelperRingSubmit))
	})
	g.Place(none)
	g.GoTo(g.end)
}
