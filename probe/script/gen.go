package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// Registers that calls preserve, and their use in programs.
const (
	rCtx   = asm.R6 // the context
	rRec   = asm.R7 // the record being written
	rRoom  = asm.R8 // memory for values that do not fit in the frame
	rValue = asm.R9 // address of a map's value
	rFP    = asm.R10
)

// Names of the maps of a script that are not its own.
const (
	mapOutput = "output" // the output ring
	mapSites  = "sites"  // by site the number of failures and the last errno; then whether exit was called, and its status
	mapRoom   = "room"   // prefix of the number of a program
	mapStacks = "stacks" // the kernel's; a u prefix for user code, whose memory has another privilege; followed by the depth
)

// frameRoom is how much of the frame values may use; calls of helpers need no more.
const frameRoom = 448

// mem is the place of a value.
type mem struct {
	base asm.Register
	off  int
}

// offset is the place n bytes further.
func (m mem) offset(n int) mem { return mem{m.base, m.off + n} }

// generator generates the program of one place of a probe, with the emitter that it
// shares with its part for maps.
type generator struct {
	*emitter
	elems mapEmitter
	c     *checker
	p     *point
	cfg   *Options

	vars      map[*variable]mem
	loops     []loop
	found     foundList    // elements found by the predicate
	wantsRoom bool         // there are functions that must find values
	saved     mem          // place of the saved rCtx, with inRoom
	end       bpfgen.Label // of the program
	placed    bool         // it is different at each place
	steps     int          // statements and expressions generated
}

// loop has the targets of break and continue.
type loop struct{ out, next bpfgen.Label }

// generate generates the program of a probe at a place.
func (c *checker) generate(d *probeDef, p *point, number int, cfg *Options) *generator {
	g := attempt(c, d, p, number, cfg, false, false)
	if g.roomTop > 0 || g.wantsRoom {
		g = attempt(c, d, p, number, cfg, true, g.wantsRoom)
	}
	return g
}

// attempt is generate; with room the program first looks up its map of that name, and
// with all set all its values are there.
func attempt(c *checker, d *probeDef, p *point, number int, cfg *Options, room, all bool) *generator {
	out := &emitter{number: number, inRoom: all}
	g := &generator{emitter: out, elems: mapEmitter{out, cfg.CPUs, cfg.Epoch}, c: c, p: p, cfg: cfg, vars: map[*variable]mem{}}
	g.at = d.Span
	g.end = g.NewLabel()
	g.Emit(asm.Mov.Reg(rCtx, asm.R1))
	if room {
		g.frame = 8
		g.Emit(bpfgen.StoreConst(8, rFP, -8, 0))
		g.loadMap(asm.R1, g.roomName())
		g.Addr(asm.R2, rFP, -8)
		g.Emit(bpfgen.Call(bpf.HelperMapLookup))
		g.Require(asm.JNE, asm.R0, 0, g.end)
		g.Emit(asm.Mov.Reg(rRoom, asm.R0))
	}
	if all {
		g.saved = g.alloc(8)
		g.store(g.saved, rCtx)
	}
	if d.cond != nil {
		g.predicate(d.cond)
	}
	g.stmts(d.body)
	g.Place(g.end)
	g.Emit(asm.Mov.Imm(asm.R0, 0), asm.Return())
	for len(g.functions) > 0 {
		f := g.functions[0]
		g.functions = g.functions[1:]
		f()
	}
	g.note()
	g.Link()
	return g
}

// Limits of the compiled script.
const (
	maxInsns = 1 << 15 // of a program
	maxSteps = 1 << 17 // of the compiler for a program: even empty loops are unrolled
	maxAll   = 1 << 19 // instructions of all programs
	maxRoom  = 1 << 15 // bytes of a program's values: an instruction has a 16-bit offset
)

// tooLong counts a step, and reports whether the program is too long: then nothing
// more is generated.
func (g *generator) tooLong() bool {
	g.steps++
	return g.c.effort.step() != nil || len(g.Insns) > maxInsns || g.steps > maxSteps || g.roomTop > maxRoom
}

// The state of exit in the map of sites: whether it was called, and whether with a
// nonzero status. The second is reported even after the first, so that an assert in
// END, or on another vCPU, is not lost.
const (
	exitPassed int32 = 1 + iota
	exitFailed
)

// exitOffset is the offset in the map of sites of the state and status of exit: a
// full ring loses the record, but a script that has called exit must end.
func (c *checker) exitOffset() uint32 { return uint32(16 * len(c.sites)) }

func (g *generator) stmts(body []*stmt) {
	g.runInScope(func() {
		for _, s := range body {
			g.runAt(s.Span, func() { g.stmt(s) })
		}
	})
}

func (g *generator) stmt(s *stmt) {
	if g.tooLong() {
		return
	}
	switch s.kind {
	case stExpr:
		g.exprStmt(s.value)
	case stAssign:
		g.assign(s)
	case stLet:
		g.vars[s.decl] = g.alloc(s.decl.typ.bytes())
		if s.value == nil {
			g.clear(g.vars[s.decl], s.decl.typ.bytes())
			return
		}
		g.put(s.value, s.decl.typ, g.vars[s.decl])
	case stIf:
		other, done := g.NewLabel(), g.NewLabel()
		g.jumpUnless(s.value, other)
		g.stmts(s.body)
		if len(s.other) > 0 {
			g.GoTo(done)
		}
		g.Place(other)
		g.stmts(s.other)
		g.Place(done)
	case stBlock:
		g.stmts(s.body)
	case stUnroll:
		n, _ := g.c.constant(s.value)
		out := g.NewLabel()
		for range n {
			if g.tooLong() {
				break
			}
			next := g.NewLabel()
			g.loops = append(g.loops, loop{out, next})
			g.stmts(s.body)
			g.loops = g.loops[:len(g.loops)-1]
			g.Place(next)
		}
		g.Place(out)
	case stWhile:
		again := g.NewLabel()
		g.Place(again)
		g.loop(func(l loop) {
			g.jumpUnless(s.value, l.out)
			g.stmts(s.body)
			g.Place(l.next)
			g.GoTo(again)
		})
	case stForRange:
		g.forRange(s)
	case stForMap:
		g.wantsRoom = true
		g.forMap(s)
	case stBreak:
		g.GoTo(g.loops[len(g.loops)-1].out)
	case stContinue:
		g.GoTo(g.loops[len(g.loops)-1].next)
	case stReturn:
		switch {
		case s.value != nil && g.p.class() == atPlace:
			g.override(s.Span, s.value)
		case s.value != nil:
			g.runInScope(func() { g.number64(s.value) })
		}
		g.GoTo(g.end)
	}
}

// loop makes a loop's labels; f generates its code, and places next.
func (g *generator) loop(f func(loop)) {
	g.found = nil // later code may run before this one
	l := loop{g.NewLabel(), g.NewLabel()}
	g.loops = append(g.loops, l)
	f(l)
	g.loops = g.loops[:len(g.loops)-1]
	g.Place(l.out)
}

func (g *generator) forRange(s *stmt) {
	g.runInScope(func() {
		count, bound, v := g.alloc(8), g.alloc(8), g.alloc(8)
		g.vars[s.decl] = v
		g.number64(s.value)
		g.store(count, asm.R0)
		g.number64(s.bound)
		g.store(bound, asm.R0)
		again := g.NewLabel()
		g.Place(again)
		g.loop(func(l loop) {
			on := g.NewLabel()
			g.load(asm.R1, count)
			g.load(asm.R2, bound)
			g.JumpTo(asm.JSLT.Reg(asm.R1, asm.R2, ""), on)
			g.GoTo(l.out)
			g.Place(on)
			g.store(v, asm.R1)
			g.stmts(s.body)
			g.Place(l.next)
			g.load(asm.R1, count)
			g.Emit(asm.Add.Imm(asm.R1, 1))
			g.store(count, asm.R1)
			g.GoTo(again)
		})
	})
}

// assign generates an assignment.
func (g *generator) assign(s *stmt) {
	if s.to.kind == exMap {
		g.assignMap(s)
		return
	}
	if s.op != "=" {
		g.operate(s, s.to)
		g.convert(typeInt, s.to.decl.typ)
		g.store(g.vars[s.to.decl], asm.R0)
		return
	}
	v, ok := g.vars[s.to.decl]
	if !ok || s.decl != nil {
		v = g.alloc(s.to.decl.typ.bytes())
		g.vars[s.to.decl] = v
	}
	if s.to.decl.typ.isNumber() {
		g.put(s.value, s.to.decl.typ, v)
		return
	}
	// The value may depend on the variable that it replaces.
	g.runInScope(func() {
		n := s.to.decl.typ.bytes()
		tmp := g.alloc(n)
		g.put(s.value, s.to.decl.typ, tmp)
		g.copy(v, tmp, n)
	})
}

// operate leaves the new value of x op= y in R0.
func (g *generator) operate(s *stmt, x *expr) {
	e := &expr{kind: exBinary, name: s.op[:len(s.op)-1], Span: s.Span, args: []*expr{x, s.value}}
	e.typ = Type{Kind: Int, Size: 8, Signed: signedness(x, s.value)}
	if x.typ.Kind == Pointer {
		e.typ = x.typ
	}
	g.number64(e)
}
