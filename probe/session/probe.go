package session

import (
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/program"
)

// Probe is a probe of a Session.
type Probe struct {
	id     uint64
	spec   Spec
	in     string // the function that it is about, of those that are inlined at one place; "": that of the code
	def    *event.Def
	source *event.Source
	probe  probe.Probe
	kprobe *probe.Kprobe // of probe; of a watch only its name
	watch  *probe.Watch  // instead of probe
	owner  *Owner        // that it was attached with, if any
	stay   bool          // it outlives that owner
	label  atomic.Pointer[string]

	mu   sync.Mutex // held while the probe is described
	gone bool       // it is no probe any more: what follows is being given back
	last *Info      // what it was when it went; nil before
	past former     // of before its filter was changed; guarded by mu, or changes, as the probe on the guest

	injector *injector // makes its function return; nil: nothing does

	program *program.Definition // the definition as a program; nil for one of an object
	object  *Object             // that its program is of, or nil
	prog    *program.Program    // the object's program
	onHost  string              // why it runs on the host whatever the site; "": it need not
}

// ID returns the probe's number. A Session never uses a number again.
func (p *Probe) ID() uint64 { return p.id }

// Name returns GROUP/EVENT.
func (p *Probe) Name() string { return p.def.Name() }

// Addr returns the address of the probed instruction, 0 while that is not known.
func (p *Probe) Addr() guest.GVA {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kprobe.Addr
}

// Def returns the parsed definition. It must not be changed.
func (p *Probe) Def() *event.Def { return p.def }

// Source returns the source of the probe's events, whose Layout decodes them. A change of the filter gives the probe another one.
func (p *Probe) Source() *event.Source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.source
}

// Stays reports whether the probe stays after EndOwner.
func (p *Probe) Stays() bool { return p.stay }

// Owner returns the owner that the probe was attached with, or nil.
func (p *Probe) Owner() *Owner { return p.owner }

// Object returns the object whose program the probe runs, or nil.
func (p *Probe) Object() *Object { return p.object }

// Label returns the text of SetLabel.
func (p *Probe) Label() string {
	if l := p.label.Load(); l != nil {
		return *l
	}
	return ""
}

// SetLabel sets a text that Info has. It means nothing to the Session.
func (p *Probe) SetLabel(text string) { p.label.Store(&text) }

// Timed reports whether the probe's events have the durations of calls.
func (p *Probe) Timed() bool { return p.prog == nil && p.def.Kind == event.KindReturn }

// Lost returns how many events of the probe were lost, also after it was detached.
func (p *Probe) Lost() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts().Lost
}

// Owner groups the probes of one Attach, which end together: see EndOwner. Their events have names of their own: two owners may
// attach the same definition. The zero value is an Owner without probes.
type Owner struct {
	only map[*Probe]bool // those, once they are

	mu   sync.Mutex
	gone []Info // the detached ones, in their final state
}

// Probes yields the probes that were attached with the owner, detached ones as well, in no order.
func (o *Owner) Probes() iter.Seq[*Probe] { return maps.Keys(o.only) }

// part notes that a probe was detached.
func (o *Owner) part(i Info) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone = append(o.gone, i)
}

// Finals returns the final state of the owner's probes that were detached.
func (o *Owner) Finals() []Info {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.gone)
}
