package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// aggregate adds a value to an element that is made of many. Each vCPU has its own, and
// adds with one instruction, so that nothing is lost.
func (g *generator) aggregate(m *mapDef, e, value *expr) {
	done := g.NewLabel()
	g.scoped(func() {
		t := m.value
		key := g.keyRoom(m)
		bucket := key.at(m.keyBytes()) // of a map without keys the index
		val := bucket
		if !t.is(Hist, LHist) {
			val = g.alloc(8)
		}
		if t.Kind != Count {
			g.number64(value.args[0])
			switch t.Kind {
			case Hist:
				g.bucket(t.Size)
			case LHist:
				g.linear(t)
			case Min, Max:
				g.rank(t)
			}
			g.store(val, asm.R0)
		}
		if m.keyed == 2 || !m.isHist() {
			g.putKey(e, key)
		}
		var number, now mem
		if t.Kind == TSeries {
			number, now = g.alloc(8), g.alloc(8)
			g.interval(t, now)
			g.store(number, asm.R0)
			g.Emit(bpfgen.Const(asm.R1, uint64(t.High)), asm.Mod.Reg(asm.R0, asm.R1))
			g.store(bucket, asm.R0)
		}
		g.element(m, key, e.site, done)
		switch t.Kind {
		case TSeries:
			g.addToSeries(t, number, val, now)
		case Count, Hist, LHist:
			g.increment(0)
		case Sum:
			g.load(asm.R1, val)
			g.Emit(asm.AddAtomic.Mem(rValue, asm.R1, asm.DWord, 0))
			g.mark(m, mem{rValue, 0})
		case Avg, Stats:
			g.load(asm.R1, val)
			g.Emit(asm.AddAtomic.Mem(rValue, asm.R1, asm.DWord, 0))
			g.increment(8)
		case Min, Max:
			g.highest(val)
			g.Emit(bpfgen.StoreConst(8, rValue, 8, 1))
		}
	})
	g.Place(done)
}

// increment adds 1 to a word of the element.
func (g *generator) increment(off int16) {
	g.Emit(asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(rValue, asm.R1, asm.DWord, off))
}

// signBit is where numbers with a sign are turned to be in the order of those without.
const signBit = 1 << 63

// rank makes of R0 a number that is the higher, the more it is what is looked for. Behind it
// in the map stands whether any was seen.
func (g *generator) rank(t Type) {
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

// highest stores a rank in the element where that has a lower one.
func (g *generator) highest(val mem) {
	again, done := g.NewLabel(), g.NewLabel()
	g.Place(again)
	g.load(asm.R1, val)
	g.Emit(bpfgen.Load(8, asm.R0, rValue, 0))
	g.JumpTo(asm.JLE.Reg(asm.R1, asm.R0, ""), done)
	g.Emit(asm.Mov.Reg(asm.R3, asm.R0), asm.CmpXchg.Mem(rValue, asm.R1, asm.DWord, 0))
	g.JumpTo(asm.JNE.Reg(asm.R0, asm.R3, ""), again)
	g.Place(done)
}

// bucket makes of R0 the number of its bucket, of 2^k for each power of two.
func (g *generator) bucket(k int) {
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
	g.Emit(asm.RSh.Imm(asm.R1, 1), asm.Add.Reg(asm.R2, asm.R1)) // of 1 to 3 what is left of the logarithm
	if k == 0 {
		g.Emit(asm.Mov.Reg(asm.R0, asm.R2), asm.Add.Imm(asm.R0, 2))
	} else {
		g.Emit(asm.RSh.Reg(asm.R0, asm.R2), asm.And.Imm(asm.R0, int32(n-1)))
		g.Emit(asm.Add.Imm(asm.R2, 1), asm.LSh.Imm(asm.R2, int32(k)), asm.Add.Reg(asm.R0, asm.R2), asm.Add.Imm(asm.R0, 1))
	}
	g.Place(done)
}

// linear makes of R0 the number of its bucket.
func (g *generator) linear(t Type) {
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

// exprStmt makes a statement that is an expression.
func (g *generator) exprStmt(e *expr) {
	switch {
	case e.kind == exBlock:
		g.inBlock(e, g.exprStmt)
	case e.kind == exIncDec:
		g.scoped(func() { g.incDec(e, true) })
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
		g.scoped(func() { g.number64(e) })
	}
}

// output writes a record: the number of what it is about, and the values. Where these have effects, the record is
// made in memory of the program's own and written when it is complete: a value may write records itself, whose
// place is before this one, may leave the program, and has its effects although the ring has no room.
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
			g.put(args[i], t, to.at(at))
			at += t.bytes()
		}
	}
	if len(o.types) > 0 && anyEffects(args) {
		g.scoped(func() {
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

// exit asks for the script's end, and ends the program. One record of each kind is enough, and more would drive others out of the ring.
func (g *generator) exit(e *expr) {
	o, none, passed := g.c.outputs[e.num], g.NewLabel(), g.NewLabel()
	g.scoped(func() {
		status, said := g.alloc(8), g.alloc(8)
		g.put(e.args[0], typeInt, status)
		g.load(asm.R0, status)
		g.Emit(asm.Mov.Imm(asm.R2, exitPassed))
		g.If(asm.JEq, asm.R0, 0, passed)
		g.Emit(asm.Mov.Imm(asm.R2, exitFailed))
		g.Place(passed)
		g.store(said, asm.R2)
		g.Emit(asm.LoadMapValue(asm.R1, g.mapNumber(mapSites), g.c.exiting()))
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
