package session

import (
	"slices"
	"sync"
	"sync/atomic"
)

// index finds the attached probes. Its lock is only held briefly, however many probes
// there are and however many are added or removed: a lookup never waits for a change.
// Changes are made by one goroutine at a time.
type index struct {
	mu     sync.Mutex
	byID   map[uint64]*Probe
	byName map[string][]*Probe // by each of Probe.names, each list by number
	gone   chan struct{}       // closed and replaced when probes are removed

	// all has the probes by number. The slice is never changed, so a listing is a
	// snapshot without the lock.
	all atomic.Pointer[[]*Probe]
}

func (x *index) init() {
	x.byID, x.byName, x.gone = map[uint64]*Probe{}, map[string][]*Probe{}, make(chan struct{})
	x.all.Store(new([]*Probe))
}

// atOnce bounds the probes that are added or removed while the lock is held once.
const atOnce = 500

// add adds probes, whose numbers are above all others.
func (x *index) add(as []*Probe) {
	for part := range slices.Chunk(as, atOnce) {
		x.mu.Lock()
		for _, a := range part {
			x.byID[a.id] = a
			for _, name := range a.names() {
				x.byName[name] = append(x.byName[name], a)
			}
		}
		x.mu.Unlock()
	}
	all := append(slices.Clip(x.snapshot()), as...)
	x.all.Store(&all)
}

// remove removes probes.
func (x *index) remove(as []*Probe) {
	going, names := make(map[*Probe]bool, len(as)), map[string]bool{}
	for _, a := range as {
		going[a] = true
		for _, name := range a.names() {
			names[name] = true
		}
	}
	isGoing := func(a *Probe) bool { return going[a] }
	all := slices.DeleteFunc(slices.Clone(x.snapshot()), isGoing)
	x.all.Store(&all)
	for name := range names {
		// Lists are replaced, not changed: others may be reading them.
		list := slices.DeleteFunc(slices.Clone(x.probesByName(name)), isGoing)
		x.mu.Lock()
		if x.byName[name] = list; len(list) == 0 {
			delete(x.byName, name)
		}
		x.mu.Unlock()
	}
	for part := range slices.Chunk(as, atOnce) {
		x.mu.Lock()
		for _, a := range part {
			delete(x.byID, a.id)
		}
		x.mu.Unlock()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tellLocked()
}

// tell closes the channel returned by changed even if no probes were removed.
func (x *index) tell() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tellLocked()
}

func (x *index) tellLocked() {
	close(x.gone)
	x.gone = make(chan struct{})
}

// snapshot returns the probes by number. It must not be changed.
func (x *index) snapshot() []*Probe { return *x.all.Load() }

// changed returns a channel that is closed when probes have been removed.
func (x *index) changed() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.gone
}

// probesByName returns the probes of a name, by number. It must not be changed.
func (x *index) probesByName(name string) []*Probe {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byName[name]
}

// number returns the probe of a number, or nil.
func (x *index) number(id uint64) *Probe {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byID[id]
}

// has reports whether a is attached.
func (x *index) has(a *Probe) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byID[a.id] == a
}
