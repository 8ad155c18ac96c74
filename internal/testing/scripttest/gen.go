package scripttest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
)

// Options describe random scripts.
type Options struct {
	Place    string // of the probe
	Args     int    // how many arguments it has
	Portable bool   // bpftrace gives the same output
	Nested   bool   // expressions print, change variables and maps, and leave the script
}

// Script is a random script, and its effects so far.
type Script struct {
	Text  string
	probe []statement
	state
}

// hit is one run of the probe.
type hit struct {
	*state
	args []uint64
	vars map[string]value
}

// flow says where a run continues.
type flow uint8

const (
	on flow = iota
	out
	next
	end
)

// statement is one that runs.
type statement func(h *hit) flow

// run runs statements up to the first that does not continue with the next.
func run(ss []statement, h *hit) flow {
	for _, s := range ss {
		if f := s(h); f != on {
			return f
		}
	}
	return on
}

// Hit runs the probe.
func (s *Script) Hit(args ...uint64) {
	defer func() {
		if r := recover(); r != nil && r != any(left{}) {
			panic(r)
		}
	}()
	run(s.probe, &hit{state: &s.state, args: args, vars: map[string]value{}})
}

// left is the panic value of an expression that ends the run.
type left struct{}

// Output returns the script's output, with its maps, as at its end.
func (s *Script) Output() string { return s.printed.String() + "\n\n" + s.maps() }

// New makes a script from a number: the same number makes the same script.
func New(seed uint64, o Options) *Script {
	g := &gen{r: rand.New(rand.NewPCG(seed, 0x5c21)), Options: o, b: &strings.Builder{}, portable: o.Portable, args: o.Args, known: map[string]bool{}}
	s := &Script{state: newState()}
	s.probe = g.block(3+g.n(8), 2)
	if o.Portable {
		g.line("exit();")
	}
	s.Text = o.Place + " {\n" + g.b.String() + "}\n"
	if o.Nested {
		s.Text = macros + s.Text
	}
	return s
}

// gen makes one script.
type gen struct {
	Options
	r        *rand.Rand
	portable bool
	args     int
	b        *strings.Builder
	vars     []*variable // in scope
	names    int
	loops    int
	nested   int             // expressions that do something
	deep     int             // loops around the current one
	unrolled bool            // bpftrace unrolls the innermost loop: it must have no break
	known    map[string]bool // maps that something is assigned to above
}

func (g *gen) n(n int) int { return g.r.IntN(n) }

func (g *gen) line(format string, args ...any) { fmt.Fprintf(g.b, "\t"+format+"\n", args...) }

// variable is a scratch variable; one that is fixed counts rounds.
type variable struct {
	name  string
	kind  kind
	fixed bool
}

func (v *variable) read() expr {
	return expr{kind: v.kind, src: v.name, eval: func(h *hit) value { return h.vars[v.name] }}
}

// pick is a variable in scope that f wants, or nil.
func (g *gen) pick(f func(*variable) bool) *variable {
	var vs []*variable
	for _, v := range g.vars {
		if f(v) {
			vs = append(vs, v)
		}
	}
	if len(vs) == 0 {
		return nil
	}
	return vs[g.n(len(vs))]
}

func (g *gen) variable() *variable {
	return g.pick(func(v *variable) bool { return v.kind != text })
}

func (g *gen) stringVariable() *variable {
	return g.pick(func(v *variable) bool { return v.kind == text })
}

func (g *gen) declare(k kind) *variable {
	g.names++
	v := &variable{name: fmt.Sprintf("$v%d", g.names), kind: k}
	g.vars = append(g.vars, v)
	return v
}

// exprOf makes an expression of a kind.
func (g *gen) exprOf(k kind, depth int) expr {
	if k == text {
		return g.textExpr()
	}
	e := g.numericExpr(depth)
	switch {
	case e.kind == k:
		return e
	case k == truth:
		return expr{kind: truth, src: "(bool)" + e.src, eval: func(h *hit) value { return truthValue(e.eval(h).n != 0) }}
	case k == unsigned:
		e = g.plainNumber(e)
		return expr{kind: k, src: "(uint64)" + e.src, eval: e.eval}
	}
	return expr{kind: k, src: "(int64)" + e.src, eval: e.eval}
}

// block makes n statements, with blocks nested to a depth.
func (g *gen) block(n, depth int) (ss []statement) {
	scope := len(g.vars)
	for range n {
		ss = append(ss, g.statement(depth))
	}
	g.vars = g.vars[:scope]
	return ss
}

func (g *gen) statement(depth int) statement {
	switch g.n(13) {
	case 0, 1:
		k := []kind{signed, signed, unsigned, truth, text}[g.n(5)]
		e := g.exprOf(k, 3)
		if k != text && g.portable && g.n(3) == 0 {
			e = g.cast64(number(interesting[g.n(len(interesting))]), unsigned)
			k = unsigned
		}
		v := g.declare(k)
		g.line("%s = %s;", v.name, e.src)
		return func(h *hit) flow { h.vars[v.name] = e.eval(h); return on }
	case 2:
		return g.assign()
	case 3, 4, 5, 6:
		return g.store()
	case 7:
		return g.print()
	case 8, 9:
		if depth > 0 {
			return g.ifElse(depth)
		}
	case 10:
		if depth > 0 && g.loops < 2 {
			return g.loop(depth)
		}
	case 11:
		if g.loops > 0 && !(g.portable && g.unrolled) && g.n(2) == 0 {
			c := g.numericExpr(2)
			f, word := out, "break"
			if g.n(2) == 0 {
				f, word = next, "continue"
			}
			g.line("if (%s) { %s; }", c.src, word)
			return func(h *hit) flow {
				if c.eval(h).n != 0 {
					return f
				}
				return on
			}
		}
		if depth < 2 && !g.portable {
			c := g.numericExpr(2)
			g.line("if (%s) { return; }", c.src)
			return func(h *hit) flow {
				if c.eval(h).n != 0 {
					return end
				}
				return on
			}
		}
	}
	return g.print()
}

// assign changes a variable.
func (g *gen) assign() statement {
	v := g.pick(func(v *variable) bool { return !v.fixed })
	if v == nil {
		return g.print()
	}
	if v.kind == text || v.kind == truth || g.n(3) == 0 {
		e := g.exprOf(v.kind, 3)
		g.line("%s = %s;", v.name, e.src)
		return func(h *hit) flow { h.vars[v.name] = e.eval(h); return on }
	}
	if g.n(3) == 0 {
		op, d := "++", int64(1)
		if g.n(2) == 0 {
			op, d = "--", -1
		}
		g.line("%s%s;", v.name, op)
		return func(h *hit) flow { h.vars[v.name] = value{n: h.vars[v.name].n + d}; return on }
	}
	e := g.exprOf(v.kind, 2)
	op := []string{"+", "-", "*", "&", "|", "^"}[g.n(6)]
	g.line("%s %s= %s;", v.name, op, e.src)
	return func(h *hit) flow {
		was := h.vars[v.name].n
		h.vars[v.name] = value{n: operate(op, was, e.eval(h).n, true)}
		return on
	}
}

func (g *gen) ifElse(depth int) statement {
	c := g.numericExpr(3)
	g.line("if (%s) {", c.src)
	yes := g.block(1+g.n(3), depth-1)
	var no []statement
	if g.n(2) == 0 {
		g.line("} else {")
		no = g.block(1+g.n(3), depth-1)
	}
	g.line("}")
	return func(h *hit) flow {
		if c.eval(h).n != 0 {
			return run(yes, h)
		}
		return run(no, h)
	}
}

// loop makes a loop of a few rounds, of one of the three kinds.
func (g *gen) loop(depth int) statement {
	scope, from, rounds, sort := len(g.vars), int64(g.n(3)), int64(g.n(4)), g.n(3)
	to := from + rounds
	g.loops++
	defer func() { g.loops, g.vars = g.loops-1, g.vars[:scope] }()
	var v *variable
	if sort < 2 {
		v = g.declare(signed)
		v.fixed = true
	}
	switch sort {
	case 0:
		g.line("for (%s : %d..%d) {", v.name, from, to)
	case 1:
		g.line("%s = %d; while (%s < %d) { %s++;", v.name, from, v.name, to, v.name)
	case 2:
		rounds = max(rounds, 1)
		g.line("unroll(%d) {", rounds)
	}
	was := g.unrolled
	g.unrolled = sort == 2
	body := g.block(1+g.n(3), depth-1)
	g.unrolled = was
	g.line("}")
	return func(h *hit) flow {
		for i := range rounds {
			switch sort {
			case 0:
				h.vars[v.name] = value{n: from + i}
			case 1:
				h.vars[v.name] = value{n: from + i + 1}
			}
			if f := run(body, h); f == end {
				return end
			} else if f == out {
				return on
			}
		}
		return on
	}
}

// print prints a few values.
func (g *gen) print() statement {
	known := maps.Clone(g.known)
	a, b, s := g.exprOf(signed, 3), g.exprOf(unsigned, 3), g.textExpr()
	sort := g.n(4)
	if g.Nested && sort != 1 { // not all that was made is in the script
		g.known = known
	}
	switch sort {
	case 0:
		g.line("print((int64)%s);", a.src) // a map alone would be printed completely
		return func(h *hit) flow { fmt.Fprintln(&h.printed, a.eval(h).n); return on }
	case 1:
		g.line("print((%s, %s, %s));", a.src, s.src, b.src)
		return func(h *hit) flow {
			fmt.Fprintf(&h.printed, "(%d, %s, %d)\n", a.eval(h).n, s.eval(h).s, uint64(b.eval(h).n))
			return on
		}
	case 2:
		t := g.exprOf(truth, 3)
		g.line("printf(\"%%s|%%5s|%%-3d|\\n\", %s, %s, %s);", t.src, s.src, a.src)
		return func(h *hit) flow {
			fmt.Fprintf(&h.printed, "%t|%5s|%-3d|\n", t.eval(h).n != 0, s.eval(h).s, int32(a.eval(h).n))
			return on
		}
	}
	g.line("printf(\"%%ld %%lu %%lx %%d %%08x %%hhd\\n\", %s, %s, %s, %s, %s, %s);", a.src, b.src, b.src, a.src, a.src, b.src)
	return func(h *hit) flow {
		n := func(e expr) int64 { return e.eval(h).n } // in the order of the source
		fmt.Fprintf(&h.printed, "%d %d %x %d %08x %d\n", n(a), uint64(n(b)), uint64(n(b)), int32(n(a)), uint32(n(a)), int8(n(b)))
		return on
	}
}
