package probe

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// registration is one probe on its site, from Register to Unregister. It is
// never used for a second one, so a hit that is under way can tell an old one from
// a new one.
type registration struct {
	tally
	engine *Engine
	kind   kind
	where  where // as the user gave it: Reload resolves it anew
	probe  *Kprobe
	site   *site // changes only while the world is stopped, by Reload
	entry  bool  // asked for as the function's entry

	// What runs at a hit.
	filter func(*Context) bool
	pre    func(*Context) int
	post   func(*Context)
	fault  func(*Context, Trap) bool
	stage  *Stage
	space  guest.GPA // 0: in all address spaces

	ret    *retprobe // of a kretprobe, else nil
	leaves *retprobe // of a place where that one's function is left, else nil
	jprobe *jprobe   // of a jprobe, else nil

	// check makes the checks of the kind, at the place that was found. nil: none.
	check func(*registration, *places, place) *Error

	// enabled is what the hit path looks at: registered, not disabled, not gone.
	enabled atomic.Bool

	inModule bool // it is counted as one in the text of a module: see awaited

	// disabled is the user's wish; guarded by Engine.view.
	disabled bool
}

// kind says what a registration is of.
type kind byte

const (
	kindKprobe    kind = 'k'
	kindKretprobe kind = 'r'
	kindJprobe    kind = 'j'
	kindMirrorEnd kind = 'e' // the engine's own, where mirrors of jprobes end
	kindWatch     kind = 'w' // of an execute watch that a breakpoint serves
	kindLeave     kind = 'x' // the engine's own, where a function of a file is left
	kindMilestone kind = 'm' // the engine's own, at a Milestone
)

// reportedAddr returns the address that hits are reported at.
func (r *registration) reportedAddr() guest.GVA {
	if r.entry {
		return r.site.head
	}
	return r.site.addr
}

// tellPlaced tells its stages where r is. The world is stopped.
func (r *registration) tellPlaced() {
	tell := func(s *Stage) {
		if s != nil && s.Placed != nil {
			s.Placed(r.reportedAddr())
		}
	}
	tell(r.stage)
	if r.ret != nil {
		tell(r.ret.probe.ReturnStage)
	}
}

// table returns that of a kretprobe whose code is there, else nil.
func (r *registration) table() *instances {
	if r.ret == nil {
		return nil
	}
	return r.ret.table.Load()
}

// hidden reports whether the registration is in no listing of probes.
func (r *registration) hidden() bool {
	return r.kind == kindMirrorEnd || r.kind == kindWatch || r.kind == kindLeave || r.kind == kindMilestone
}

// where is a place as users give it.
type where struct {
	symbol string
	offset uint64
	addr   guest.GVA
}

// watched reports whether something must happen behind the instruction, or when it
// faults.
func (r *registration) watched() bool { return r.post != nil || r.fault != nil }

// registration implements Probe.
func (p *Kprobe) registration(e *Engine) *registration {
	if p == nil {
		return nil
	}
	r := &registration{
		tally: e.newTally(p.Name), engine: e, kind: kindKprobe, where: where{p.Symbol, p.Offset, p.Addr}, probe: p,
		filter: p.Filter, pre: p.Pre, post: p.Post, fault: p.Fault, stage: p.Stage, space: p.Space, disabled: p.Disabled,
	}
	return r
}

// tally is what is counted of a probe or a watch, and which of its troubles were
// logged.
type tally struct {
	name   string
	cells  []cell // by vCPU
	logged atomic.Uint32
}

func (k *core) newTally(name string) tally {
	return tally{name: name, cells: make([]cell, len(k.cpus))}
}

// Bits of tally.logged.
const (
	loggedPanic = 1 << iota
	loggedAccess
	loggedStays
)

// first reports whether trouble of this kind has not been logged before.
func (t *tally) first(kind uint32) bool { return t.logged.Or(kind)&kind == 0 }

// contain is deferred around every handler: a panic ends it, as if it had returned
// the zero value. which names it, depth is that of guest calls before it.
func (c *cpu) contain(t *tally, which string, depth int) {
	v := recover()
	if v == nil {
		return
	}
	c.depth = depth
	count32(&t.cells[c.id].panics)
	if t.first(loggedPanic) {
		c.log.Error("probe handler panicked; further panics of this probe are only counted",
			"probe", t.name, "addr", c.ctx.Addr, "cpu", c.id, "handler", which,
			"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
}
