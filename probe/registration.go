package probe

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// registration is one probe on its site, from Register to Unregister. It is never
// reused, so a hit that is under way can tell an old one from a new one.
type registration struct {
	tally
	owner *registry
	kind  kind
	where where // as the user gave it: Reload resolves it again
	probe *Kprobe
	site  *site // changes only while the world is stopped, by Reload
	entry bool  // asked for as the function's entry

	// The handlers of a hit.
	filter func(*Context) bool
	pre    func(*Context) int
	post   func(*Context)
	fault  func(*Context, Trap) bool
	stage  *Stage
	space  guest.GPA // 0: in all address spaces

	// enabled is the flag that the hit path checks: registered, not disabled, not
	// gone.
	enabled atomic.Bool

	inModule bool // it counts as one in the text of a module: see awaited

	// disabled is the user's wish; guarded by Engine.view.
	disabled bool
}

// reportedAddr returns the address that hits are reported at.
func (r *registration) reportedAddr() guest.GVA {
	if r.entry {
		return r.site.head
	}
	return r.site.addr
}

// tellPlaced gives its stages the address of r. The world is stopped.
func (r *registration) tellPlaced() {
	r.stage.tellPlaced(r.reportedAddr())
	r.kind.place(r.reportedAddr())
}

// tellPlaced gives s, unless it is nil, the address of its probe.
func (s *Stage) tellPlaced(at guest.GVA) {
	if s != nil && s.Placed != nil {
		s.Placed(at)
	}
}

// hidden reports whether the registration is omitted from listings of probes.
func (r *registration) hidden() bool { return !r.is(listed) }

// where is a place as users give it.
type where struct {
	symbol string
	offset uint64
	addr   guest.GVA
}

// watched reports whether the engine must act after the instruction, or when it
// faults.
func (r *registration) watched() bool { return r.post != nil || r.fault != nil }

// registration implements Probe.
func (p *Kprobe) registration(g *registry) *registration {
	if p == nil {
		return nil
	}
	r := &registration{
		tally: g.newTally(p.Name), owner: g, kind: ordinary{}, where: where{p.Symbol, p.Offset, p.Addr}, probe: p,
		filter: p.Filter, pre: p.Pre, post: p.Post, fault: p.Fault, stage: p.Stage, space: p.Space, disabled: p.Disabled,
	}
	return r
}

// tally has the counts of a probe or a watch, and which of its problems were logged.
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

// first reports whether a problem of this kind has not been logged before.
func (t *tally) first(kind uint32) bool { return t.logged.Or(kind)&kind == 0 }

// contain is deferred around every handler: after a panic the handler counts as
// having returned the zero value. which names the handler, depth is the depth of
// guest calls before it.
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
