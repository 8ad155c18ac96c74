package daemon

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/internal/api"
)

// index finds the attached probes. Its lock is held for moments only, however many
// probes there are and however many of them come or go: who looks one up never waits for
// a change. Changes are made by one goroutine at a time.
type index struct {
	mu      sync.Mutex
	byID    map[uint64]*attached
	byName  map[string]*attached   // by GROUP/EVENT
	byEvent map[string][]*attached // by EVENT alone
	gone    chan struct{}          // closed and replaced when probes go

	// all has them by number. What it points to is never changed, so that a listing is
	// of one moment without the lock.
	all atomic.Pointer[[]*attached]
}

func (x *index) init() {
	x.byID, x.byName, x.byEvent, x.gone = map[uint64]*attached{}, map[string]*attached{}, map[string][]*attached{}, make(chan struct{})
	x.all.Store(new([]*attached))
}

// atOnce bounds how many probes come or go while the lock is held once.
const atOnce = 500

// add makes probes known, whose numbers are above all others.
func (x *index) add(as []*attached) {
	for part := range slices.Chunk(as, atOnce) {
		x.mu.Lock()
		for _, a := range part {
			x.byID[a.id] = a
			x.byName[a.kprobe.Name] = a
			x.byEvent[a.def.Event] = append(x.byEvent[a.def.Event], a)
		}
		x.mu.Unlock()
	}
	all := append(slices.Clip(x.snapshot()), as...)
	x.all.Store(&all)
}

// remove forgets probes.
func (x *index) remove(as []*attached) {
	going, events := make(map[*attached]bool, len(as)), map[string]bool{}
	for _, a := range as {
		going[a], events[a.def.Event] = true, true
	}
	isGoing := func(a *attached) bool { return going[a] }
	all := slices.DeleteFunc(slices.Clone(x.snapshot()), isGoing)
	x.all.Store(&all)
	for event := range events {
		x.mu.Lock()
		if x.byEvent[event] = slices.DeleteFunc(x.byEvent[event], isGoing); len(x.byEvent[event]) == 0 {
			delete(x.byEvent, event)
		}
		x.mu.Unlock()
	}
	for part := range slices.Chunk(as, atOnce) {
		x.mu.Lock()
		for _, a := range part {
			delete(x.byID, a.id)
			delete(x.byName, a.kprobe.Name)
		}
		x.mu.Unlock()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	close(x.gone)
	x.gone = make(chan struct{})
}

// snapshot returns the probes by number. It is not to be changed.
func (x *index) snapshot() []*attached { return *x.all.Load() }

// changed returns a channel that is closed when probes have gone.
func (x *index) changed() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.gone
}

// taken reports whether a probe has this GROUP/EVENT.
func (x *index) taken(name string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byName[name] != nil
}

// has reports whether a is attached.
func (x *index) has(a *attached) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byID[a.id] == a
}

// maxNamed bounds how many probes an error lists.
const maxNamed = 8

// find returns the probe that a client calls name: by number, by GROUP/EVENT, or by
// EVENT where only one group has it.
func (x *index) find(name string) (*attached, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if id, err := strconv.ParseUint(name, 10, 64); err == nil {
		if a := x.byID[id]; a != nil {
			return a, nil
		}
	}
	if a := x.byName[name]; a != nil {
		return a, nil
	}
	found := x.byEvent[name]
	switch len(found) {
	case 0:
		return nil, noProbe(name)
	case 1:
		return found[0], nil
	}
	var names []string
	for _, a := range found[:min(len(found), maxNamed)] {
		names = append(names, a.kprobe.Name)
	}
	slices.Sort(names)
	more := ""
	if n := len(found) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return nil, &api.Error{
		Code: api.CodeAmbiguousName, Errno: "EADDRNOTAVAIL", Message: fmt.Sprintf("%d probes are called %q", len(found), name),
		Detail: "say which: " + strings.Join(names, ", ") + more,
	}
}

func noProbe(name string) error {
	return &api.Error{Code: api.CodeProbeNotFound, Errno: "ENOENT", Message: fmt.Sprintf("no probe %q is attached", name)}
}
