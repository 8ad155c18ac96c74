package script

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// found is the number in an element that a predicate has found with has_key, to avoid
// another lookup.
type found struct {
	m   *mapDef
	key []*expr
	at  mem
}

// foundList is the elements that a predicate has found.
type foundList []found

// predicate continues if the predicate of a probe is true, and jumps to the program's
// end if not.
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
	g.runInScope(func() {
		g.elems.mapCall(bpf.HelperMapLookup, m, g.key(of))
		g.Require(asm.JNE, asm.R0, 0, g.end)
		if keep {
			g.Emit(bpfgen.Load(8, asm.R0, asm.R0, 0))
			g.store(f.at, asm.R0)
			g.found = append(g.found, f)
		}
	})
}

// number returns the place of the number of an element that was found.
func (l foundList) number(e *expr) (mem, bool) {
	for _, f := range l {
		if f.m.name == e.name && slices.EqualFunc(f.key, e.args, sameValue) {
			return f.at, true
		}
	}
	return mem{}, false
}

// forget drops the elements of a map, which may have changed since.
func (l *foundList) forget(m *mapDef) {
	*l = slices.DeleteFunc(*l, func(f found) bool { return f.m == m })
}

// stable are builtins that do not change during a run, and are cheap.
var stable = []string{"pid", "tid", "cpu", "vcpu", "func", "comm", "retval", "arg0", "arg1", "arg2", "arg3", "arg4", "arg5"}

// staysSame reports whether an expression does not change during a run.
func (e *expr) staysSame() bool {
	switch e.kind {
	case exInt, exString, exParam:
		return true
	}
	return e.kind == exBuiltin && len(e.args) == 0 && slices.Contains(stable, e.name)
}

// sameValue reports whether two expressions, of which the first does not change, are
// equal.
func sameValue(a, b *expr) bool {
	return a.kind == b.kind && a.name == b.name && a.num == b.num && a.text == b.text && b.staysSame()
}
