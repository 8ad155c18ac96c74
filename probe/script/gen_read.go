package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// isScalarAggregate reports whether values of the type are one number that is made of
// those of all vCPUs, which expressions can have.
func (t Type) isScalarAggregate() bool { return t.is(Count, Sum, Avg, Min, Max) }

// everyCPU runs f for the value that each vCPU, and who is none, has under a key: its address
// is in rValue.
// Where there is no such key it goes to none.
func (g *generator) everyCPU(m *mapDef, key mem, none bpfgen.Label, f func()) {
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
	g.If(asm.JLT, asm.R1, uint64(g.cfg.CPUs+1), again) // see Options.CPUs
}

// merged leaves the number that an aggregation has under a key in R0, 0 where there is no
// such key.
func (g *generator) merged(m *mapDef, key mem) {
	t := m.value
	none, done := g.NewLabel(), g.NewLabel()
	g.scoped(func() {
		all := g.alloc(t.bytes())
		g.clear(all, t.bytes())
		g.everyCPU(m, key, none, func() {
			for i := 0; i < t.bytes(); i += 8 {
				g.load(asm.R0, all.at(i))
				g.load(asm.R1, mem{rValue, i})
				if !t.is(Min, Max) {
					g.Emit(asm.Add.Reg(asm.R1, asm.R0))
				}
				less := g.NewLabel()
				if t.is(Min, Max) {
					g.JumpTo(asm.JLE.Reg(asm.R1, asm.R0, ""), less)
				}
				g.store(all.at(i), asm.R1)
				g.Place(less)
			}
		})
		g.load(asm.R0, all)
		switch t.Kind {
		case Avg:
			g.load(asm.R1, all.at(8))
			g.Emit(operations["/"][signIndex(t.Signed)].Reg(asm.R0, asm.R1))
		case Min, Max:
			g.load(asm.R1, all.at(8))
			g.Require(asm.JNE, asm.R1, 0, none) // nothing was seen yet
			g.fromRank(t)
		}
	})
	g.GoTo(done)
	g.Place(none)
	g.Emit(asm.Mov.Imm(asm.R0, 0))
	g.Place(done)
}

// fromRank undoes rank.
func (g *generator) fromRank(t Type) {
	if t.Kind == Min {
		g.Emit(asm.Xor.Imm(asm.R0, -1))
	}
	if t.Signed {
		g.Emit(bpfgen.Const(asm.R1, signBit), asm.Xor.Reg(asm.R0, asm.R1))
	}
}

// clearMerged makes the only element of an aggregation as if nothing had been seen.
func (g *generator) clearMerged(m *mapDef) {
	g.scoped(func() {
		key, done := g.alloc(8), g.NewLabel()
		g.Emit(bpfgen.StoreConst(8, key.base, key.off, 0))
		zero := func() {
			g.everyCPU(m, key, done, func() { g.clear(mem{rValue, 0}, m.valueBytes()) })
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

// signIndex is where tables of operations have those for numbers with a sign.
func signIndex(signed bool) int {
	if signed {
		return 1
	}
	return 0
}
