package script

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// Registers that calls keep, and what programs have in them.
const (
	rCtx   = asm.R6 // the context
	rRec   = asm.R7 // the record that is being written
	rRoom  = asm.R8 // room for what the frame is too small for
	rValue = asm.R9 // address of a map's value
	rFP    = asm.R10
)

// Names of the maps of a script that are not its own.
const (
	mapOutput = "output" // the ring of what is written
	mapSites  = "sites"  // of each site how often something failed, and the last errno; then whether exit was called, and with what
	mapRoom   = "room"   // in front of the number of a program
	mapStacks = "stacks" // of a kernel and, behind a u, of user code, for memory of different privilege; in front of a depth
)

// frameRoom is how much of the frame values may take; calls of helpers need no more.
const frameRoom = 448

// mem is where a value is.
type mem struct {
	base asm.Register
	off  int
}

// at is the place n bytes further.
func (m mem) at(n int) mem { return mem{m.base, m.off + n} }

// generator makes the program of one place of a probe.
type generator struct {
	bpfgen.Builder
	c     *checker
	p     *point
	cfg   *Options
	maps  []string
	spans []Span // of each instruction

	frame, room       int // bytes in use
	frameTop, roomTop int // at most
	vars              map[*variable]mem
	loops             []loop
	found             []found      // by the predicate
	functions         []func()     // that are made behind the program
	inRoom            bool         // all values are in the room, where functions find them
	wantsRoom         bool         // there are functions that must find values
	saved             mem          // of what rCtx is, with inRoom
	end               bpfgen.Label // of the program
	at                Span         // of what is being made
	steps             int          // statements and expressions that were made
	number            int          // of the program
}

// loop is where break and continue go.
type loop struct{ out, next bpfgen.Label }

// generate makes the program of a probe at a place.
func (c *checker) generate(d *probeDef, p *point, number int, cfg *Options) *generator {
	g := c.attempt(d, p, number, cfg, false, false)
	if g.roomTop > 0 || g.wantsRoom {
		g = c.attempt(d, p, number, cfg, true, g.wantsRoom)
	}
	return g
}

// attempt is generate; with room the program finds its map of that name first, and with
// all it has nothing elsewhere.
func (c *checker) attempt(d *probeDef, p *point, number int, cfg *Options, room, all bool) *generator {
	g := &generator{c: c, p: p, cfg: cfg, number: number, vars: map[*variable]mem{}, inRoom: all}
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

// note says of the instructions that were made since what they are of.
func (g *generator) note() {
	for len(g.spans) < len(g.Insns) {
		g.spans = append(g.spans, g.at)
	}
}

// about runs f for a part of the source.
func (g *generator) about(sp Span, f func()) {
	g.note()
	was := g.at
	g.at = sp
	f()
	g.note()
	g.at = was
}

// loadMap loads a map for a helper.
func (g *generator) loadMap(r asm.Register, name string) {
	g.Emit(asm.LoadMapPtr(r, g.mapNumber(name)))
}

// mapNumber is the number of a map in the program.
func (g *generator) mapNumber(name string) int {
	for i, n := range g.maps {
		if n == name {
			return i
		}
	}
	g.maps = append(g.maps, name)
	return len(g.maps) - 1
}

func (g *generator) roomName() string { return numbered(mapRoom, g.number) }

// Limits of what a script is compiled to.
const (
	maxInsns = 1 << 15 // of a program
	maxSteps = 1 << 17 // of the compiler for a program: empty loops are unrolled, too
	maxAll   = 1 << 19 // instructions of all programs
	maxRoom  = 1 << 15 // bytes of a program's values: an instruction has 16 bits for where in them
)

// tooLong counts a step, and reports whether the program is longer than it may be: then
// nothing more is made.
func (g *generator) tooLong() bool {
	g.steps++
	return g.c.effort.step() != nil || len(g.Insns) > maxInsns || g.steps > maxSteps || g.roomTop > maxRoom
}

// alloc takes room for n bytes until free.
func (g *generator) alloc(n int) mem {
	n = roundUp8(n)
	if !g.inRoom && n <= 64 && g.frame+n <= frameRoom || !g.inRoom && g.frame+n <= frameRoom/2 {
		g.frame += n
		g.frameTop = max(g.frameTop, g.frame)
		return mem{rFP, -g.frame}
	}
	m := mem{rRoom, g.room}
	g.room += n
	g.roomTop = max(g.roomTop, g.room)
	return m
}

// scoped runs f, and gives back what it has taken.
func (g *generator) scoped(f func()) {
	frame, room := g.frame, g.room
	f()
	g.frame, g.room = frame, room
}

// load and store are of 8 bytes.
func (g *generator) load(r asm.Register, m mem)  { g.Emit(bpfgen.Load(8, r, m.base, m.off)) }
func (g *generator) store(m mem, r asm.Register) { g.Emit(bpfgen.Store(8, m.base, m.off, r)) }

// address sets a register to where something is.
func (g *generator) address(r asm.Register, m mem) { g.Addr(r, m.base, m.off) }

// clear stores zeros.
func (g *generator) clear(m mem, n int) { g.Zero(m.base, m.off, n) }

// copy copies n bytes, a multiple of 8.
func (g *generator) copy(to, from mem, n int) {
	for i := 0; i < n; i += 8 {
		g.load(asm.R1, from.at(i))
		g.store(to.at(i), asm.R1)
	}
}

// What the map of sites has of exit: whether it was called, and whether with another status than 0. The
// second is told although there was the first, so that an assert in END, or on another vCPU, is not lost.
const (
	exitPassed int32 = 1 + iota
	exitFailed
)

// exiting is where the map of sites has whether exit was called, and after it the status: a ring that is full loses
// the record, but a script that has called exit ends.
func (c *checker) exiting() uint32 { return uint32(16 * len(c.sites)) }

// failed counts that something failed at a site; R0 has the errno, and is kept.
func (g *generator) failed(site int) {
	g.Emit(asm.LoadMapValue(asm.R1, g.mapNumber(mapSites), uint32(16*site)))
	g.store(mem{asm.R1, 8}, asm.R0)
	g.Emit(asm.Mov.Imm(asm.R2, 1), asm.AddAtomic.Mem(asm.R1, asm.R2, asm.DWord, 0))
}

// failedIfNegative is failed where R0 says so.
func (g *generator) failedIfNegative(site int) {
	ok := g.NewLabel()
	g.If(asm.JSGE, asm.R0, 0, ok)
	g.failed(site)
	g.Place(ok)
}

func (g *generator) stmts(body []*stmt) {
	g.scoped(func() {
		for _, s := range body {
			g.about(s.Span, func() { g.stmt(s) })
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
		if s.value != nil {
			g.override(s.Span, s.value)
		}
		g.GoTo(g.end)
	}
}

// loop makes a loop's labels; f makes its code, and places next.
func (g *generator) loop(f func(loop)) {
	g.found = nil // what comes later in the text may come before
	l := loop{g.NewLabel(), g.NewLabel()}
	g.loops = append(g.loops, l)
	f(l)
	g.loops = g.loops[:len(g.loops)-1]
	g.Place(l.out)
}

func (g *generator) forRange(s *stmt) {
	g.scoped(func() {
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

// assign makes an assignment.
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
	// The value may be made of what it replaces.
	g.scoped(func() {
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
