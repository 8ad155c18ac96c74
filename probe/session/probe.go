package session

import (
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Probe is a probe of a Session.
type Probe struct {
	id     uint64
	spec   *Spec  // without Def; shared with other probes, never changed
	in     string // the function that it is about, if several are inlined at one place; "": the function that the code is in
	def    *event.Def
	source *event.Source
	on     placed // replaced, like runs, by a change of the filter: guarded by mu, or changes
	runs   runs   // never replaced for a program of an object
	owner  *Owner // the owner that it was attached with, if any
	stay   bool   // it outlives that owner
	label  atomic.Pointer[string]

	mu   sync.Mutex // held while the probe is described
	gone bool       // it was removed: the other fields are being released
	last *Info      // its final state; nil before it was removed
	past *former    // counts before its filter was changed, or nil; guarded like the probe on the guest, by mu or changes

	injector *injector // makes its function return; nil: no override

	recorder atomic.Pointer[recorder] // for a program of an event: makes its records in this boot

	object *Object // the object of its program, or nil
	onHost string  // why it runs on the host whatever the site; "": it can run in the guest
}

// ID returns the probe's number. A Session never reuses a number.
func (p *Probe) ID() uint64 { return p.id }

// Name returns GROUP/EVENT.
func (p *Probe) Name() string { return p.def.Name() }

// Addr returns the address of the probed instruction, 0 while it is not known.
func (p *Probe) Addr() guest.GVA {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.on.addr()
}

// Def returns the parsed definition. It must not be changed.
func (p *Probe) Def() *event.Def { return p.def }

// Source returns the source of the probe's events, whose Layout decodes them. A change of the filter gives the probe another one.
func (p *Probe) Source() *event.Source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.source
}

// Stays reports whether the probe survives EndOwner.
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

// SetLabel sets a text for Info. The Session does not use it.
func (p *Probe) SetLabel(text string) { p.label.Store(&text) }

// Timed reports whether the probe's events have the durations of calls.
func (p *Probe) Timed() bool { return p.object == nil && p.def.Kind == event.KindReturn }

// LostEvents returns how many events of the probe were lost, even after it was
// detached.
func (p *Probe) LostEvents() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts().Lost
}

// Owner groups the probes of one Attach, which end together: see EndOwner. Their
// events have separate names: two owners may attach the same definition. The zero
// value is an Owner without probes.
type Owner struct {
	only map[*Probe]bool // the probes, once attached

	mu   sync.Mutex
	gone []Info // the detached probes, in their final state
}

// Probes yields the probes that were attached with the owner, including detached
// ones, in no particular order.
func (o *Owner) Probes() iter.Seq[*Probe] { return maps.Keys(o.only) }

// part records that a probe was detached.
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
