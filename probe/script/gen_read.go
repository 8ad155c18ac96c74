package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// isScalarAggregate reports whether values of the type are one number aggregated over
// all vCPUs, which expressions can use.
func (t Type) isScalarAggregate() bool { return t.is(Count, Sum, Avg, Min, Max) }

// forEveryCPU runs f for each vCPU's value under a key, and for that of programs on
// no vCPU: its address is in rValue. If the key does not exist it jumps to none.
func (g mapEmitter) forEveryCPU(m *mapDef, key mem, none bpfgen.Label, f func()) {
	cpu := g.alloc(8)
	g.Emit(bpfgen.StoreConst(8, cpu.base, cpu.off, 0))
	again := g.NewLabel()
	g.Place(again)
	g.loadMap(asm.R1, m.name)
	g.address(asm.R2, key)
	g.load(asm.R3, cpu)
	g.Emit(bpfgen.Call(bpf.HelperLookupPerCPU))
	g.Require(asm.JNE, asm.R0, 0, none)
	g.Emit(asm.Mov.Reg(rValue, asm.R0))
	f()
	g.load(asm.R1, cpu)
	g.Emit(asm.Add.Imm(asm.R1, 1))
	g.store(cpu, asm.R1)
	g.If(asm.JLT, asm.R1, uint64(g.cpus+1), again) // see Options.CPUs
}

// mergeValues leaves in R0 the number of an aggregation under a key, or a field of
// stats, or 0 if the key does not exist.
func (g mapEmitter) mergeValues(m *mapDef, key mem, field string) {
	t := m.value
	none, done := g.NewLabel(), g.NewLabel()
	g.runInScope(func() {
		all := g.alloc(t.bytes())
		g.clear(all, t.bytes())
		g.forEveryCPU(m, key, none, func() {
			for i := 0; i < t.bytes(); i += 8 {
				g.load(asm.R0, all.offset(i))
				g.load(asm.R1, mem{rValue, i})
				if !t.is(Min, Max) {
					g.Emit(asm.Add.Reg(asm.R1, asm.R0))
				}
				less := g.NewLabel()
				if t.is(Min, Max) {
					g.JumpTo(asm.JLE.Reg(asm.R1, asm.R0, ""), less)
				}
				g.store(all.offset(i), asm.R1)
				g.Place(less)
			}
		})
		g.load(asm.R0, all)
		switch {
		case t.Kind == Stats && field == "count":
			g.load(asm.R0, all.offset(8))
		case t.Kind == Stats && field == "total":
		case t.is(Avg, Stats):
			g.load(asm.R1, all.offset(8))
			g.Emit(operations["/"][signIndex(t.Signed)].Reg(asm.R0, asm.R1))
		case t.is(Min, Max):
			g.load(asm.R1, all.offset(8))
			g.Require(asm.JNE, asm.R1, 0, none) // no value yet
			g.undoRank(t)
		}
	})
	g.GoTo(done)
	g.Place(none)
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.Place(done)
}

// undoRank undoes rank.
func (g mapEmitter) undoRank(t Type) {
	if t.Kind == Min {
		g.Emit(asm.Xor.Imm(asm.R0, -1))
	}
	if t.Signed {
		g.Emit(bpfgen.Const(asm.R1, signBit), asm.Xor.Reg(asm.R0, asm.R1))
	}
}

// clearMergedValues resets the only element of an aggregation.
func (g mapEmitter) clearMergedValues(m *mapDef) {
	g.runInScope(func() {
		key, done := g.alloc(8), g.NewLabel()
		g.Emit(bpfgen.StoreConst(8, key.base, key.off, 0))
		zero := func() {
			g.forEveryCPU(m, key, done, func() { g.clear(mem{rValue, 0}, m.valueBytes()) })
		}
		if !m.isHist() {
			zero()
			g.Place(done)
			return
		}
		again := g.NewLabel()
		g.Place(again)
		zero()
		g.load(asm.R1, key)
		g.Emit(asm.Add.Imm(asm.R1, 1))
		g.store(key, asm.R1)
		g.If(asm.JLT, asm.R1, uint64(buckets(m.value)), again)
		g.Place(done)
	})
}

// signIndex is the index of the signed or unsigned variant in tables of operations.
func signIndex(signed bool) int {
	if signed {
		return 1
	}
	return 0
}
