package script

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// found is the number in an element that a predicate has found with has_key, so that it is not
// looked up again.
type found struct {
	m   *mapDef
	key []*expr
	at  mem
}

// predicate goes on where the predicate of a probe is true, and to the program's end where it
// is not.
func (g *generator) predicate(e *expr) {
	if e.kind == exBinary && e.name == "&&" {
		g.predicate(e.args[0])
		g.predicate(e.args[1])
		return
	}
	if e.kind != exCall || e.name != "has_key" {
		g.jumpUnless(e, g.end)
		return
	}
	of := e.args[0]
	m := g.c.byName[of.name]
	keep := m.keyed == 2 && m.value.isNumber() && !slices.ContainsFunc(of.args, func(k *expr) bool { return !k.staysSame() })
	f := found{m: m, key: of.args}
	if keep {
		f.at = g.alloc(8)
	}
	g.scoped(func() {
		g.mapCall(bpf.HelperMapLookup, m, g.key(of))
		g.Require(asm.JNE, asm.R0, 0, g.end)
		if keep {
			g.Emit(bpfgen.Load(8, asm.R0, asm.R0, 0))
			g.store(f.at, asm.R0)
			g.found = append(g.found, f)
		}
	})
}

// foundNumber returns where the number in an element is that was found.
func (g *generator) foundNumber(e *expr) (mem, bool) {
	for _, f := range g.found {
		if f.m.name == e.name && slices.EqualFunc(f.key, e.args, sameValue) {
			return f.at, true
		}
	}
	return mem{}, false
}

// changes says that elements of a map may not be any more what they were when they were found.
func (g *generator) changes(m *mapDef) {
	g.found = slices.DeleteFunc(g.found, func(f found) bool { return f.m == m })
}

// stable are builtins that are the same all through a run, and cost little.
var stable = []string{"pid", "tid", "cpu", "vcpu", "func", "comm", "retval", "arg0", "arg1", "arg2", "arg3", "arg4", "arg5"}

// staysSame reports whether an expression has one value all through a run.
func (e *expr) staysSame() bool {
	switch e.kind {
	case exInt, exString, exParam:
		return true
	}
	return e.kind == exBuiltin && len(e.args) == 0 && slices.Contains(stable, e.name)
}

// sameValue reports whether two expressions, of which the first one stays the same, are alike.
func sameValue(a, b *expr) bool {
	return a.kind == b.kind && a.name == b.name && a.num == b.num && a.text == b.text && b.staysSame()
}
