package http

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// maxProbes bounds how many probes clients can attach.
const maxProbes = 100_000

// syncTime bounds the wait for events that are on their way to the streams. It
// is never reached unless the daemon is starved of processor time.
const syncTime = 2 * time.Second

// attached is one probe of the daemon.
type attached struct {
	id     uint64
	spec   api.ProbeSpec
	in     string // the function that it is about, of those that are inlined at one place; "": that of the code
	def    *event.Def
	source *event.Source
	probe  probe.Probe
	kprobe *probe.Kprobe // of probe; of a watch only its name
	watch  *probe.Watch  // instead of probe
	stream *session      // the stream that has brought it, if any
	stay   bool          // it outlives that stream
	origin string        // api.OriginStart, or "": a client has attached it; guarded by mu

	mu   sync.Mutex // held while the probe is described
	gone bool       // it is no probe any more: what follows is being given back
	last *api.Probe // what it was when it went; nil before
	past former     // of before its filter was changed; guarded by mu, or changes, as what is on the guest

	injector *injector // makes its function return; nil: nothing does

	program *program.Definition // the definition as a program; nil for one of an object
	took    *durations          // of a return probe, where they are gathered; guarded by gathering.mu
	object  *object             // that its program is of, or nil
	prog    *program.Program    // the object's program
	onHost  string              // why it runs on the host whatever the site; "": it need not
}

// session is a stream that has attached probes.
type session struct {
	only map[*attached]bool // those, once they are

	mu   sync.Mutex
	gone []api.Probe // those of them that were detached, in their final state
}

// part notes that a probe was detached.
func (s *session) part(p api.Probe) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = append(s.gone, p)
}

// finals returns the final state of the probes that were detached.
func (s *session) finals() []api.Probe {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.gone)
}

// store holds the attached probes, by number and by name.
type store struct {
	log    *slog.Logger
	guest  Guest
	engine *probe.Engine
	hub    *event.Hub
	epoch  int64        // on the hub's clock; times of events count from here
	since  time.Time    // the same moment
	boot   atomic.Int64 // when the guest began to run from its start, since epoch

	// listeners counts the open event streams, and ofReturns who reads the events of return
	// probes alone. Without any, hits make no events: nobody would read them.
	listeners, ofReturns atomic.Int64
	listenMu             sync.Mutex // serialises listen and listenReturns

	programs *program.Runtime
	objects  objects
	disas    Disassembler

	// loading is held for reading while an object file is loaded and attached, and for
	// writing by a reset: both take memory of the guest. It is taken before changes.
	loading sync.RWMutex

	// changes lets one change of what clients have attached happen at a time, however
	// long it takes. It is never taken on the hit path; all other locks are inside it.
	changes sync.Mutex
	lastID  uint64
	events  events

	index
	closed atomic.Bool // the daemon stops: nothing is changed or found any more
}

func newStore(log *slog.Logger, g Guest, memory uint64) *store {
	hub := event.NewHub(len(g.State().VCPUs), event.HubOptions{})
	st := &store{
		log: log, guest: g, engine: g.Engine(), hub: hub, epoch: hub.Now(), since: time.Now(), events: events{},
	}
	st.index.init()
	st.programs = newPrograms(log, g, hub, memory)
	hub.SetFeed(st.programs)
	return st
}

// now is the time, as hits have it.
func (st *store) now() int64 { return st.hub.Now() - st.epoch }

// listen notes that an event stream has come (1) or gone (-1).
func (st *store) listen(d int64) {
	st.listenMu.Lock()
	defer st.listenMu.Unlock()
	st.programs.Want(st.listeners.Add(d) > 0)
}

// listenReturns is listen for one who reads the events of return probes alone: others make
// none for that.
func (st *store) listenReturns(d int64) {
	st.listenMu.Lock()
	defer st.listenMu.Unlock()
	st.programs.WantReturns(st.ofReturns.Add(d) > 0)
}

// change takes the lock for a change, unless the daemon stops.
func (st *store) change() error {
	st.changes.Lock()
	if st.closed.Load() {
		st.changes.Unlock()
		return errClosing
	}
	return nil
}

// get describes one probe.
func (st *store) get(name string) (api.Probe, error) {
	a, err := st.find(name)
	if err != nil {
		return api.Probe{}, err
	}
	if ps := st.settled([]*attached{a}, st.wire); len(ps) > 0 {
		return ps[0], nil
	}
	return api.Probe{}, st.noProbe(name) // it went just now
}

// these returns the probes of names that are still there, or all, and takes the lock for
// a change of them.
func (st *store) these(names []string) ([]*attached, error) {
	if err := st.change(); err != nil {
		return nil, err
	}
	as, err := st.choose(names)
	if err != nil {
		st.changes.Unlock()
		return nil, err
	}
	return as, nil
}

// patch changes the probes of these names, or all: every one or none. It describes them
// then.
func (st *store) patch(names []string, p api.PatchProbe) ([]api.Probe, error) {
	if (p.Enabled == nil) == (p.Filter == nil) {
		return nil, badValue("either enabled is to be changed or filter")
	}
	as, err := st.these(names)
	if err != nil {
		return nil, err
	}
	defer st.changes.Unlock()
	if p.Filter != nil {
		err = st.refilter(as, *p.Filter)
	} else {
		_, err = st.enable(as, *p.Enabled)
	}
	if err != nil {
		return nil, ofProbe(err, as)
	}
	return st.describe(as), nil
}

// ofProbe says which of several probes the engine has refused something.
func ofProbe(err error, as []*attached) error {
	var refused *probe.Error
	if len(as) < 2 || !errors.As(err, &refused) || refused.Index >= len(as) {
		return err
	}
	e := *toAPI(err)
	e.Message = as[refused.Index].def.Name() + ": " + e.Message
	return &e
}

// detach removes the probes of these names, or all, and returns what they were.
func (st *store) detach(names []string) ([]api.Probe, error) {
	as, err := st.these(names)
	if err != nil {
		return nil, err
	}
	defer st.changes.Unlock()
	return st.remove(as)
}

// detachIf removes the probes that drop chooses.
func (st *store) detachIf(drop func(*attached) bool) ([]api.Probe, error) {
	st.changes.Lock()
	defer st.changes.Unlock()
	return st.remove(st.chosen(drop))
}

// close removes all probes for good and ends the event streams behind the last
// event. A change that is under way and can be given up is given up. It may be
// repeated.
func (st *store) close() error {
	st.closed.Store(true)
	st.changes.Lock()
	defer st.changes.Unlock()
	_, err := st.remove(st.snapshot())
	st.hub.Close()
	return err
}

// final makes what described a when it was attached its final state.
func (st *store) final(a *attached, p *api.Probe) {
	p.Armed, p.Stats, p.InUse, p.Program, p.Override = false, st.stats(a), 0, a.wireProgram(), a.injector.wire()
}

// remove takes probes out and returns their final state. A probe whose text could not be
// restored is taken out all the same: the engine has logged it, and the error says so.
// Callers hold changes.
func (st *store) remove(as []*attached) ([]api.Probe, error) {
	if len(as) == 0 {
		return nil, nil
	}
	out := st.describe(as)
	err := st.unregister(as)
	if errors.Is(err, probe.ErrInHandler) {
		return nil, err
	}
	for i, a := range as {
		a.mu.Lock()
		a.gone, a.last = true, &out[i] // nobody else looks at the rest behind this
		a.mu.Unlock()
	}
	st.dropPrograms(as)
	for _, a := range as {
		st.events.part(a)
		st.settleReturns(a)
		a.source.Close()
	}
	for i, a := range as {
		p := out[i]
		st.final(a, &p)
		a.mu.Lock()
		out[i] = p
		a.mu.Unlock()
		if a.stream != nil {
			a.stream.part(p)
		}
	}
	st.sync()
	st.index.remove(as)
	return out, err
}

// sync waits until the events that were made before have reached the streams'
// queues.
func (st *store) sync() {
	ctx, cancel := context.WithTimeout(context.Background(), syncTime)
	defer cancel()
	if err := st.hub.Sync(ctx); err != nil {
		st.log.Warn("events are late", "err", err)
	}
}

// chosen returns the probes that want chooses, by number.
func (st *store) chosen(want func(*attached) bool) []*attached {
	var as []*attached
	for _, a := range st.snapshot() {
		if want(a) {
			as = append(as, a)
		}
	}
	return as
}

// those returns the probes of only that are attached, or all for nil, by number.
func (st *store) those(only map[*attached]bool) []*attached {
	if only == nil {
		return st.snapshot()
	}
	return st.chosen(func(a *attached) bool { return only[a] })
}

// noneOf reports whether all of the probes were detached. When the daemon stops
// it says no: their streams have another end then.
func (st *store) noneOf(only map[*attached]bool) bool {
	for a := range only {
		if st.has(a) {
			return false
		}
	}
	return !st.closed.Load()
}

// count returns the number of probes.
func (st *store) count() int { return len(st.snapshot()) }

func (st *store) armed() bool { return st.engine.Armed() }

func (st *store) setArmed(on bool) error {
	st.changes.Lock()
	defer st.changes.Unlock()
	if on {
		return st.engine.ArmAll()
	}
	return st.engine.DisarmAll()
}
