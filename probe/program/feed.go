package program

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/evbpf"
)

// feed is the rings that are drained: an event.Feed.
type feed struct {
	mu    sync.Mutex // guards all below, and is held while rings are read
	rings []*ring

	all, returns bool // whose records are wanted
}

// ring is a ring that is drained.
type ring struct {
	m     *bpf.Map
	to    func(bpf.Record)
	after func() // behind each pass; may be nil
	guest bool   // the guest writes into it, and cannot wake anyone
	timed bool   // it is of definitions: its records have the times at which they were made
	own   bool   // whoever has it reads it, and nobody else: it does not matter what is wanted
	seen  []pass // of a timed one, those that still say something
}

// pass is that a ring was looked at: what has a place from head on was reserved later,
// and has a later time.
type pass struct {
	time int64
	head uint64
}

const (
	// slack is how long after its time a record may be reserved: one with texts is made
	// elsewhere first.
	slack = time.Millisecond
	// patience is how long a record that is being written keeps later ones from being
	// sure. It is not less than the hub's window.
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

// drain takes out what is published, and returns how much, and the time before which
// nothing more will come. A producer that never stops does not hold it up: a ring is
// read once around.
func (r *ring) drain(now int64) (n int, sure int64) {
	d := r.empty()
	if !r.timed {
		return d.Records, now
	}
	sure = now
	for _, at := range d.Open {
		if t, ok := r.reserved(at); ok && now-t < int64(patience) {
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

// reserved returns a time before the one at which the record at a position was
// reserved; ok is false when it is too long ago.
func (r *ring) reserved(at uint64) (t int64, ok bool) {
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

// drained begins to drain a ring: the guest, which writes into it, wakes nobody.
func (rt *Runtime) drained(r *ring) {
	f := &rt.feed
	f.mu.Lock()
	f.rings = append(f.rings, r)
	f.mu.Unlock()
	rt.cfg.Wake()
}

// wants reports whether records are wanted that this gate lets pass.
func (rt *Runtime) wants(g evbpf.Gate) bool { return evbpf.Gate(rt.gateNow.Load()) >= g }

// Want says whether anyone reads all records. Without a reader definitions make none, and
// those of objects stay in their rings, as long as there is room. The first reader gets
// none of these: nobody knows their times any more.
func (rt *Runtime) Want(on bool) { rt.want(&rt.feed.all, on) }

// WantReturns is Want for one who reads the records of definitions of returns alone: others
// make none for that.
func (rt *Runtime) WantReturns(on bool) { rt.want(&rt.feed.returns, on) }

// want changes who reads records. Callers call it one at a time.
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

// empty takes out of a ring all that is published. Callers hold the feed's mu.
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

// remove drains a ring for the last time and forgets it.
func (f *feed) remove(r *ring) {
	f.flush(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rings = slices.DeleteFunc(f.rings, func(have *ring) bool { return have == r })
}

// renew is for memory that begins anew.
func (f *feed) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rings {
		r.empty() // it finds out
		r.seen = nil
	}
}
