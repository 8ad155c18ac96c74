package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/program"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
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
	def    *event.Def
	source *event.Source
	probe  probe.Probe
	kprobe *probe.Kprobe // of probe; of a watch only its name
	watch  *probe.Watch  // instead of probe
	stream *session      // the stream that has brought it, if any
	stay   bool          // it outlives that stream

	program *program.Definition // the definition as a program; nil for one of an object
	object  *object             // that its program is of, or nil
	prog    *program.Program    // the object's program
	onHost  string              // why it runs on the host whatever the site; "": it need not
}

// session is the identity of a stream that has attached probes.
type session struct{ _ byte }

// store holds the attached probes, by number and by name.
type store struct {
	log    *slog.Logger
	guest  Guest
	engine *probe.Engine
	hub    *event.Hub
	epoch  int64     // on the hub's clock; times of events count from here
	since  time.Time // the same moment

	// listeners counts the open event streams. Without any, hits make no
	// events: nobody would read them.
	listeners atomic.Int64
	listenMu  sync.Mutex // serialises listen

	programs *program.Runtime
	objects  objects

	// mu serialises what clients change. It is never taken on the hit path; the
	// engine's own lock is inside it.
	mu     sync.Mutex
	byID   map[uint64]*attached
	byName map[string]*attached
	lastID uint64
	closed bool
	gone   chan struct{} // closed and replaced when probes go
}

func newStore(log *slog.Logger, g Guest) *store {
	hub := event.NewHub(len(g.State().VCPUs), event.HubOptions{})
	st := &store{
		log: log, guest: g, engine: g.Engine(), hub: hub, epoch: hub.Now(), since: time.Now(),
		byID: map[uint64]*attached{}, byName: map[string]*attached{}, gone: make(chan struct{}),
	}
	st.programs = newPrograms(log, g, hub)
	hub.SetFeed(st.programs)
	return st
}

// listen notes that an event stream has come (1) or gone (-1).
func (st *store) listen(d int64) {
	st.listenMu.Lock()
	defer st.listenMu.Unlock()
	st.programs.Want(st.listeners.Add(d) > 0)
}

// attach attaches all of specs or none, for a stream where own is not nil.
func (st *store) attach(specs []api.ProbeSpec, own *session) ([]api.Probe, error) {
	return st.attachAll(specs, own, nil)
}

// attachAll is attach. Where obj is not nil, specs are the places of its
// programs.
func (st *store) attachAll(specs []api.ProbeSpec, own *session, obj *object) ([]api.Probe, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return nil, errClosing
	}
	if len(st.byID)+len(specs) > maxProbes {
		return nil, &api.Error{Code: api.CodeTooMany, Errno: "ENOSPC", Message: fmt.Sprintf("more than %d probes", maxProbes)}
	}
	firstID := st.lastID
	batch := make([]*attached, 0, len(specs))
	probes, order := make([]probe.Probe, 0, len(specs)), make([]int, 0, len(specs))
	var watches []*probe.Watch
	var watchOrder []int
	names := make(map[string]bool, len(specs))
	release := func() {
		st.dropPrograms(batch)
		for _, a := range batch {
			a.source.Close()
		}
		st.lastID = firstID // nobody has seen them
	}
	for i, spec := range specs {
		a, err := st.compile(spec, names)
		if err == nil {
			a.stream, a.stay = own, own == nil || spec.Stay
			batch = append(batch, a)
			if obj != nil {
				a.object, a.prog = obj, obj.Programs[i]
				st.attachProgram(a)
			} else {
				err = st.define(a)
			}
		}
		if err != nil {
			release()
			return nil, atIndex(err, i)
		}
		if a.watch == nil {
			probes = append(probes, a.probe)
			order = append(order, i)
		} else {
			watches = append(watches, a.watch)
			watchOrder = append(watchOrder, i)
		}
	}
	if err := st.register(probes, order, watches, watchOrder); err != nil {
		release()
		var refused *probe.Error
		if errors.As(err, &refused) && refused.Index < len(batch) {
			return nil, atIndex(batch[refused.Index].def.Refused(err), refused.Index)
		}
		return nil, err
	}
	for _, a := range batch {
		st.byID[a.id] = a
		st.byName[a.kprobe.Name] = a
	}
	if obj != nil {
		st.objects.add(obj, batch, &st.listeners)
	}
	return st.describe(batch), nil
}

// find returns the probe that a client calls name: by number, by group/event,
// or by event where only one group has it. Once the daemon stops nothing is
// found, and the answer is that, not that there never was such a probe. Callers
// hold mu.
func (st *store) find(name string) (*attached, error) {
	if st.closed {
		return nil, errClosing
	}
	if id, err := strconv.ParseUint(name, 10, 64); err == nil {
		if a := st.byID[id]; a != nil {
			return a, nil
		}
	}
	if a := st.byName[name]; a != nil {
		return a, nil
	}
	var found []*attached
	if !strings.Contains(name, "/") {
		for full, a := range st.byName {
			if _, event, _ := strings.Cut(full, "/"); event == name {
				found = append(found, a)
			}
		}
	}
	switch len(found) {
	case 0:
		return nil, &api.Error{Code: api.CodeProbeNotFound, Errno: "ENOENT", Message: fmt.Sprintf("no probe %q is attached", name)}
	case 1:
		return found[0], nil
	}
	var names []string
	for _, a := range found {
		names = append(names, a.kprobe.Name)
	}
	slices.Sort(names)
	return nil, &api.Error{
		Code: api.CodeAmbiguousName, Errno: "EADDRNOTAVAIL", Message: fmt.Sprintf("%d probes are called %q", len(found), name),
		Detail: "say which: " + strings.Join(names, ", "),
	}
}

// get describes one probe.
func (st *store) get(name string) (api.Probe, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	a, err := st.find(name)
	if err != nil {
		return api.Probe{}, err
	}
	return st.settled([]*attached{a})[0], nil
}

// setEnabled enables or disables one probe.
func (st *store) setEnabled(name string, on bool) (api.Probe, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	a, err := st.find(name)
	if err != nil {
		return api.Probe{}, err
	}
	if a.watch != nil {
		err = st.switchWatch(a, on)
	} else if on {
		err = st.engine.Enable(a.kprobe)
	} else {
		err = st.engine.Disable(a.kprobe)
	}
	if err != nil {
		return api.Probe{}, err
	}
	return st.wire(a), nil
}

// detach removes one probe.
func (st *store) detach(name string) (api.Probe, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	a, err := st.find(name)
	if err != nil {
		return api.Probe{}, err
	}
	ps, err := st.remove([]*attached{a})
	if err != nil {
		return api.Probe{}, err
	}
	return ps[0], nil
}

// detachIf removes the probes that drop chooses.
func (st *store) detachIf(drop func(*attached) bool) ([]api.Probe, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.remove(st.sorted(drop))
}

// close removes all probes for good and ends the event streams behind the last
// event. It may be repeated.
func (st *store) close() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
	_, err := st.remove(st.sorted(func(*attached) bool { return true }))
	st.hub.Close()
	return err
}

// remove takes probes out and returns their final state. A probe whose text
// could not be restored is forgotten all the same: the engine has logged it,
// and the error says so. Callers hold mu.
func (st *store) remove(as []*attached) ([]api.Probe, error) {
	if len(as) == 0 {
		return []api.Probe{}, nil
	}
	var kprobes []*probe.Kprobe
	var watches []*probe.Watch
	out := st.describe(as)
	for _, a := range as {
		if a.watch != nil {
			watches = append(watches, a.watch)
		} else {
			kprobes = append(kprobes, a.kprobe)
		}
	}
	err := st.unregister(kprobes, watches)
	if errors.Is(err, probe.ErrInHandler) {
		return nil, err
	}
	st.dropPrograms(as)
	for i, a := range as {
		delete(st.byID, a.id)
		delete(st.byName, a.kprobe.Name)
		st.settleReturns(a)
		a.source.Close()
		out[i].Armed = false
		out[i].Stats = st.stats(a)
		if a.def.Kind == event.KindReturn {
			out[i].InUse = underWay(out[i].Stats)
		}
	}
	st.sync()
	close(st.gone)
	st.gone = make(chan struct{})
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

// sorted returns the probes that want chooses, by number. Callers hold mu.
func (st *store) sorted(want func(*attached) bool) []*attached {
	var as []*attached
	for _, a := range st.byID {
		if want(a) {
			as = append(as, a)
		}
	}
	slices.SortFunc(as, func(a, b *attached) int { return cmp.Compare(a.id, b.id) })
	return as
}

// choose returns the probes of these names, or nil for no names.
func (st *store) choose(names []string) (map[*attached]bool, error) {
	if len(names) == 0 {
		return nil, nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	only := make(map[*attached]bool, len(names))
	for _, n := range names {
		a, err := st.find(n)
		if err != nil {
			return nil, err
		}
		only[a] = true
	}
	return only, nil
}

// ofStream returns the probes that a stream has brought.
func (st *store) ofStream(own *session) map[*attached]bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	only := map[*attached]bool{}
	for _, a := range st.byID {
		if a.stream == own {
			only[a] = true
		}
	}
	return only
}

// listOf describes the probes of only that are attached, or all for nil.
func (st *store) listOf(only map[*attached]bool) []api.Probe {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.settled(st.sorted(func(a *attached) bool { return only == nil || only[a] }))
}

// noneOf reports whether all of the probes were detached. When the daemon stops
// it says no: their streams have another end then.
func (st *store) noneOf(only map[*attached]bool) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	for a := range only {
		if st.byID[a.id] == a {
			return false
		}
	}
	return !st.closed
}

// changed returns a channel that is closed when probes have gone.
func (st *store) changed() <-chan struct{} {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.gone
}

// count returns the number of probes.
func (st *store) count() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.byID)
}

func (st *store) armed() bool { return st.engine.Armed() }

func (st *store) setArmed(on bool) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if on {
		return st.engine.ArmAll()
	}
	return st.engine.DisarmAll()
}
