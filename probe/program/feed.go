package program

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/evbpf"
)

// feed is the set of rings to drain: an event.Feed.
type feed struct {
	mu    sync.Mutex // guards all fields below, and is held while rings are read
	rings []*ring

	all, returns bool // whether all records, or only records of returns, are wanted
}

// ring is a ring to drain.
type ring struct {
	m     *bpf.Map
	to    func(bpf.Record)
	after func() // called after each pass; may be nil
	guest bool   // the guest writes to it, and cannot wake the hub
	timed bool   // it belongs to definitions: its records have the times at which they were made
	own   bool   // only its owner reads it: it is drained whether or not records are wanted
	seen  []pass // of a timed one, the passes that still matter
}

// pass records a look at a ring: a record at or after head was reserved later, and
// has a later time.
type pass struct {
	time int64
	head uint64
}

const (
	// slack is how long after its time a record may be reserved: one with texts is made
	// elsewhere first.
	slack = time.Millisecond
	// patience is how long a record that is being written delays later ones. It is
	// not less than the hub's window.
	patience = 50 * time.Millisecond
)

// Poll implements event.Feed.
func (rt *Runtime) Poll() (n int, sure int64, active bool) {
	f := &rt.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	sure = math.MaxInt64
	for _, r := range f.rings {
		if !r.timed && !r.own && !rt.wants(evbpf.Open) {
			continue
		}
		now := rt.cfg.Now()
		k, from := r.drain(now)
		n, active = n+k, active || r.guest
		if r.timed {
			sure = min(sure, from-int64(slack))
		}
	}
	return n, sure, active
}

// drain takes out the published records, and returns their number, and a time before
// which no more will come. It reads a ring only once around, so a producer that never
// stops does not hold it up.
func (r *ring) drain(now int64) (n int, sure int64) {
	d := r.empty()
	if !r.timed {
		return d.Records, now
	}
	sure = now
	for _, at := range d.Open {
		if t, ok := r.reserveTime(at); ok && now-t < int64(patience) {
			sure = t
			break
		}
	}
	r.seen = append(r.seen, pass{now, d.Head})
	for len(r.seen) > 1 && now-r.seen[1].time >= int64(patience) {
		r.seen = r.seen[1:]
	}
	return d.Records, sure
}

// reserveTime returns a time before the reservation of the record at a position; ok
// is false if that is too long ago.
func (r *ring) reserveTime(at uint64) (t int64, ok bool) {
	for _, p := range r.seen {
		if p.head <= at {
			t, ok = p.time, true
		}
	}
	return t, ok
}

func (r *ring) take(rec bpf.Record) bool {
	r.to(rec)
	return true
}

// startDraining begins to drain a ring that the guest writes to, because the guest
// cannot wake the hub.
func (rt *Runtime) startDraining(r *ring) {
	f := &rt.feed
	f.mu.Lock()
	f.rings = append(f.rings, r)
	f.mu.Unlock()
	rt.cfg.Wake()
}

// wants reports whether records that this gate lets pass are wanted.
func (rt *Runtime) wants(g evbpf.Gate) bool { return evbpf.Gate(rt.gateNow.Load()) >= g }

// Want says whether there is a reader of all records. Without a reader definitions
// make no records, and records of objects stay in their rings, as long as there is
// room. The first reader does not get them, because their times are no longer known.
func (rt *Runtime) Want(on bool) { rt.want(&rt.feed.all, on) }

// WantReturns is Want for a reader of only the records of definitions of returns: for
// it, other definitions make no records.
func (rt *Runtime) WantReturns(on bool) { rt.want(&rt.feed.returns, on) }

// want changes which records are wanted. Callers call it one at a time.
func (rt *Runtime) want(who *bool, on bool) {
	f := &rt.feed
	f.mu.Lock()
	*who = on
	to := evbpf.Closed
	switch {
	case f.all:
		to = evbpf.Open
	case f.returns:
		to = evbpf.Returns
	}
	for _, r := range f.rings {
		if to == evbpf.Open && !r.timed && !r.own && !rt.wants(to) {
			r.empty()
		}
	}
	rt.gateNow.Store(uint64(to))
	f.mu.Unlock()
	setGate(rt.gate, to)
	for i := range rt.defs {
		rt.defs[i].want(to)
	}
	rt.cfg.Wake()
}

// empty takes all published records out of a ring. Callers hold the feed's mu.
func (r *ring) empty() bpf.Drained {
	d := r.m.DrainPast(true, r.take)
	if r.after != nil {
		r.after()
	}
	return d
}

// flush empties a ring.
func (f *feed) flush(r *ring) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.empty()
}

// remove drains a ring for the last time and drops it.
func (f *feed) remove(r *ring) {
	f.flush(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rings = slices.DeleteFunc(f.rings, func(have *ring) bool { return have == r })
}

// renew is called when the memory of rings was reset.
func (f *feed) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rings {
		r.empty()
		r.m.ExpectReset(false)
		r.seen = nil
	}
}

// expectReset is called before the memory of rings is reset, after their last records were read; with false, if it is not reset after all.
func (f *feed) expectReset(yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rings {
		r.m.ExpectReset(yes)
	}
}
