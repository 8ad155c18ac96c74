package torture

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/program"
)

// definitions makes probes of the definition language, whose programs run on the
// host or in the guest, and reads their events.
type definitions struct {
	m    *machine.Machine
	hub  *event.Hub
	rt   *program.Runtime
	sub  *event.Subscription
	done chan struct{} // closed when sub has ended
	n    int           // for names
}

// defined is a probe's definition, while it is attached.
type defined struct {
	d      *program.Definition
	source *event.Source
	events atomic.Uint64 // that have come
	bad    atomic.Uint64 // of these with values that cannot be
}

func newDefinitions(m *machine.Machine, cpus int) *definitions {
	hub := event.NewHub(cpus, event.HubOptions{})
	cfg := program.Config{CPUs: cpus, Now: hub.Now, Wake: hub.Wake, Shared: m, Engine: m.Engine(),
		Stop: func(f func() error) error { return m.Target().Stop(func(probe.World) error { return f() }) },
		Clock: func() (program.Clock, error) {
			c, err := m.Clock(hub.Now)
			if err != nil {
				return program.Clock{}, err
			}
			return program.Clock{Clock: bpf.Clock{TSC: c.TSC, Mult: 1e6 << 32 / c.KHz, Time: uint64(c.At)}, Counter: c.Counter}, nil
		},
	}
	s := &definitions{m: m, hub: hub, rt: program.New(cfg), done: make(chan struct{})}
	hub.SetFeed(s.rt)
	s.rt.Want(true)
	s.sub = hub.Subscribe(nil, event.Queue{})
	go s.read()
	return s
}

// read counts the events of each probe.
func (s *definitions) read() {
	defer close(s.done)
	for {
		e, err := s.sub.Next(context.Background())
		if err != nil {
			return
		}
		d := e.Source.Owner.(*defined)
		d.events.Add(1)
		r, err := e.Decode()
		if err != nil || len(r.Values) == 0 || !isData(r.Values[0].Data) {
			d.bad.Add(1)
		}
	}
}

// isData reports whether v is a possible value of R14 in generated code.
func isData(vs []event.Datum) bool {
	if len(vs) != 1 {
		return false
	}
	v := vs[0]
	off := v.Bits - dataVA
	return !v.Fault && (v.Bits == 0 || off < maxTasks*dataSize && off%dataSize == 0)
}

func (s *definitions) close() {
	s.hub.Close()
	<-s.done
}

// kept is the arguments that a definition records: one that must be a task's
// data area, or 0 before the task has it, and one with an unknown value.
const kept = "data=%r14:u64 top=+0(%sp):u64"

// define replaces x's handlers by a definition, with a filter or not.
func (s *definitions) define(x *planted) error {
	s.n++
	text := fmt.Sprintf("p:d%d %#x %s", s.n, textVA+x.in.Off, kept)
	r, returns := x.probe.(*probe.Kretprobe)
	if returns {
		sym, ok := s.m.Image().Find(textVA + guest.GVA(x.in.Off))
		if !ok {
			return fmt.Errorf("no function at +%#x", x.in.Off)
		}
		text = fmt.Sprintf("r:d%d %s %s", s.n, sym.Name, kept)
	}
	def, err := event.ParseIn(text, event.Scope{Symbols: s.m.Image()})
	if err != nil {
		return err
	}
	layout, err := event.Compile(def, event.Scope{Symbols: s.m.Image()}, event.Options{Tasks: s.rt.KnowsTasks()})
	if err != nil {
		return err
	}
	d := &defined{}
	d.source = s.hub.Source(layout, d)
	if d.d, err = s.rt.Define(layout, nil, d.source); err != nil {
		return err
	}
	x.defined = d
	stage, entry, why := d.d.CompileGuest(textVA+guest.GVA(x.in.Off), !x.kernel)
	if returns {
		r.Entry, r.Return, r.DataSize = d.d.Entry, d.d.Return, d.d.EntrySize()
		if why == nil {
			r.ReturnStage, r.Stage = stage, entry
		}
		return nil
	}
	x.k.Filter = d.d.Hit
	if why == nil {
		x.k.Stage = stage
	}
	return nil
}

// drop ends x's definition, whose probe is no longer registered, and compares
// its events with the counts of the probe.
func (s *definitions) drop(x *planted) error {
	d := x.defined
	s.rt.Drop(d.d)
	st, _, _ := s.m.Engine().Stats(x.k)
	d.source.Close()
	if err := s.hub.Sync(context.Background()); err != nil {
		return err
	}
	made := st.Handled
	if x.kind == "returns" {
		made = st.Returns
	}
	switch c := d.source.Counts(); {
	// A call that was under way while its probe was switched off has no event.
	case c.Stored+c.Lost != made && (x.kind != "returns" || c.Stored+c.Lost > made):
		return fmt.Errorf("%d events stored and %d lost: %+v", c.Stored, c.Lost, st)
	case d.bad.Load() != 0:
		return fmt.Errorf("%d of %d events have values that cannot be", d.bad.Load(), d.events.Load())
	case d.events.Load() > c.Stored:
		return fmt.Errorf("%d events of %d stored", d.events.Load(), c.Stored)
	}
	return nil
}
