package script

import (
	"maps"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// callForEach calls a function for each element of a map, with the map, key and
// value, and the argument in R3. R0 is then the number of elements.
func (g mapEmitter) callForEach(m *mapDef, function bpfgen.Label) {
	g.JumpTo(asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R2, Src: asm.PseudoFunc, Constant: -1}, function)
	g.loadMap(asm.R1, m.name)
	g.Emit(asm.Mov.Imm(asm.R4, 0), bpfgen.Call(bpf.HelperForEachElem))
}

// length64 leaves the number of elements of a map in R0.
func (g mapEmitter) length64(m *mapDef) {
	function := g.NewLabel()
	g.Emit(asm.Mov.Imm(asm.R3, 0))
	g.callForEach(m, function)
	g.functions = append(g.functions, func() {
		g.Place(function)
		g.Emit(asm.Mov.Imm(asm.R0, 0), asm.Return())
	})
}

// forMap generates a loop over the elements of a map. Its body is a separate
// function, which finds all values in the room.
func (g *generator) forMap(s *stmt) {
	g.found = nil
	m := g.c.byName[s.value.name]
	g.runInScope(func() {
		function, on := g.NewLabel(), g.NewLabel()
		v, left := g.alloc(s.decl.typ.bytes()), g.alloc(8)
		g.vars[s.decl] = v
		g.Emit(bpfgen.StoreConst(8, left.base, left.off, 0), asm.Mov.Reg(asm.R3, rRoom))
		g.elems.callForEach(m, function)
		g.load(asm.R0, left)
		g.If(asm.JEq, asm.R0, 0, on)
		g.GoTo(g.end)
		g.Place(on)
		vars, room := maps.Clone(g.vars), g.room
		g.functions = append(g.functions, func() {
			g.vars, g.room = vars, room
			g.runAt(s.Span, func() { g.element64(s, m, function, v, left) })
		})
	})
}

// element64 generates the function of a loop over a map.
func (g *generator) element64(s *stmt, m *mapDef, function bpfgen.Label, v, left mem) {
	next, out := g.NewLabel(), g.NewLabel()
	g.end = g.NewLabel()
	g.loops = []loop{{out, next}}
	g.Place(function)
	g.Emit(asm.Mov.Reg(rRoom, asm.R4))
	g.load(rCtx, g.saved)
	n := m.keyBytes()
	for i := 0; i < n; i += 8 {
		g.Emit(bpfgen.Load(8, asm.R1, asm.R2, i))
		g.store(v.offset(i), asm.R1)
	}
	if m.value.isAggregate() {
		g.elems.mergeValues(m, v, "average")
		g.store(v.offset(n), asm.R0)
	} else {
		for i := 0; i < m.value.bytes(); i += 8 {
			g.Emit(bpfgen.Load(8, asm.R1, asm.R3, i))
			g.store(v.offset(n+i), asm.R1)
		}
	}
	g.stmts(s.body)
	g.Place(next)
	g.Emit(asm.Mov.Imm(asm.R0, 0), asm.Return())
	g.Place(g.end) // the end of the whole probe, not only of the loop
	g.Emit(bpfgen.StoreConst(8, left.base, left.off, 1))
	g.Place(out)
	g.Emit(asm.Mov.Imm(asm.R0, 1), asm.Return())
}
