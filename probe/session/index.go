package session

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

// index finds the attached probes. Its lock is only held briefly, however many probes
// there are and however many are added or removed: a lookup never waits for a change.
// Changes are made by one goroutine at a time.
type index struct {
	mu    sync.Mutex
	named map[uint64]named // by the hash of each of Probe.names
	seed  maphash.Seed     // of the hashes
	gone  chan struct{}    // closed and replaced when probes are removed

	// all has the probes by number. The slice is never changed, so a listing is a
	// snapshot without the lock.
	all atomic.Pointer[[]*Probe]
}

// named are the probes of one name, or of several with the same hash, by number. Nearly every name
// has one probe, for which a list would take more memory than the probe's place in the index.
type named struct {
	one  *Probe    // instead of more, if there is only one
	more *[]*Probe // replaced when probes are removed; others may be reading it
}

func (x *index) init() {
	x.named, x.seed, x.gone = map[uint64]named{}, maphash.MakeSeed(), make(chan struct{})
	x.all.Store(new([]*Probe))
}

// hash returns the hash of a name in parts.
func (x *index) hash(parts ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(x.seed)
	for _, p := range parts {
		_, _ = h.WriteString(p) // never fails
	}
	return h.Sum64()
}

// hashes returns the hashes of Probe.names.
func (x *index) hashes(a *Probe) [3]uint64 {
	return [3]uint64{x.hash(a.def.Group, "/", a.def.Event), x.hash(a.def.Event), x.hash(a.def.Group, "/")}
}

// atOnce bounds the probes that are added or removed while the lock is held once.
const atOnce = 500

// add adds probes, whose numbers are above all others.
func (x *index) add(as []*Probe) {
	for part := range slices.Chunk(as, atOnce) {
		x.mu.Lock()
		for _, a := range part {
			for _, h := range x.hashes(a) {
				x.named[h] = x.named[h].appendProbe(a)
			}
		}
		x.mu.Unlock()
	}
	all := append(slices.Clip(x.snapshot()), as...)
	x.all.Store(&all)
}

// appendProbe returns n and a.
func (n named) appendProbe(a *Probe) named {
	switch {
	case n.more != nil:
		*n.more = append(*n.more, a)
	case n.one != nil:
		n = named{more: &[]*Probe{n.one, a}}
	default:
		n.one = a
	}
	return n
}

// list returns the probes. It must not be changed.
func (n named) list() []*Probe {
	switch {
	case n.more != nil:
		return *n.more
	case n.one != nil:
		return []*Probe{n.one}
	}
	return nil
}

// remove removes probes.
func (x *index) remove(as []*Probe) {
	going, hashes := make(map[*Probe]bool, len(as)), map[uint64]bool{}
	for _, a := range as {
		going[a] = true
		for _, h := range x.hashes(a) {
			hashes[h] = true
		}
	}
	isGoing := func(a *Probe) bool { return going[a] }
	all := slices.DeleteFunc(slices.Clone(x.snapshot()), isGoing)
	x.all.Store(&all)
	for h := range hashes {
		// Lists are replaced, not changed: others may be reading them.
		left := slices.DeleteFunc(slices.Clone(x.byHash(h)), isGoing)
		x.mu.Lock()
		switch len(left) {
		case 0:
			delete(x.named, h)
		case 1:
			x.named[h] = named{one: left[0]}
		default:
			x.named[h] = named{more: &left}
		}
		x.mu.Unlock()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.named) == 0 {
		x.named = map[uint64]named{} // a map never gives memory back
	}
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

// byHash returns the probes with a name of that hash, by number. It must not be changed.
func (x *index) byHash(h uint64) []*Probe {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.named[h].list()
}

// probesByName returns the probes of a name, by number. It must not be changed.
func (x *index) probesByName(name string) []*Probe {
	found := x.byHash(x.hash(name))
	other := func(a *Probe) bool { return !a.hasName(name) }
	if slices.ContainsFunc(found, other) { // another name has the same hash
		found = slices.DeleteFunc(slices.Clone(found), other)
	}
	return found
}

// number returns the probe of a number, or nil.
func (x *index) number(id uint64) *Probe {
	all := x.snapshot()
	if i, ok := slices.BinarySearchFunc(all, id, func(a *Probe, id uint64) int { return cmp.Compare(a.id, id) }); ok {
		return all[i]
	}
	return nil
}

// has reports whether a is attached.
func (x *index) has(a *Probe) bool { return x.number(a.id) == a }
