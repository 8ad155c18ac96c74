package program

import (
	"slices"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// How often rings that the guest fills are looked at: soon after there was
// something, ever less often while there is nothing.
const (
	minPoll = time.Millisecond
	maxPoll = 32 * time.Millisecond
)

// drainer takes records out of rings, in one goroutine that runs while there
// are rings.
type drainer struct {
	wake chan struct{} // capacity 1

	mu     sync.Mutex // guards all below, and is held while rings are read
	rings  []*ring
	done   chan struct{} // closed by the goroutine at its end; nil: there is none
	closed bool
}

// ring is a ring that is drained.
type ring struct {
	m     *bpf.Map
	to    func(bpf.Record)
	after func() // behind each pass; may be nil
	guest bool   // the guest writes into it, and cannot wake anyone
}

func (d *drainer) init() {
	d.wake = make(chan struct{}, 1)
}

// kick says that a ring has something. It never blocks.
func (d *drainer) kick() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// add begins to drain a ring.
func (d *drainer) add(r *ring) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rings = append(d.rings, r)
	if d.done == nil && !d.closed {
		d.done = make(chan struct{})
		go d.run(d.done)
	}
	d.kick()
}

// remove drains a ring for the last time and forgets it. With the last ring the
// goroutine ends.
func (d *drainer) remove(r *ring) {
	d.pass()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rings = slices.DeleteFunc(d.rings, func(have *ring) bool { return have == r })
	d.kick()
}

// pass empties all rings once and returns how many records there were. A
// producer that never stops does not hold it up: a ring is read once around.
func (d *drainer) pass() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.rings {
		n += r.m.Drain(func(rec bpf.Record) bool {
			r.to(rec)
			return true
		})
		if r.after != nil {
			r.after()
		}
	}
	return n
}

// next says how the goroutine goes on: whether it ends, and whether some ring
// has to be looked at without being asked to.
func (d *drainer) next() (end, poll bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.rings) == 0 || d.closed {
		d.done = nil
		return true, false
	}
	return false, slices.ContainsFunc(d.rings, func(r *ring) bool { return r.guest })
}

func (d *drainer) run(done chan struct{}) {
	defer close(done)
	timer := time.NewTimer(minPoll)
	defer timer.Stop()
	wait := minPoll
	for {
		if d.pass() > 0 {
			wait = minPoll
		} else {
			wait = min(2*wait, maxPoll)
		}
		end, poll := d.next()
		if end {
			return
		}
		var soon <-chan time.Time
		if poll {
			timer.Reset(wait)
			soon = timer.C
		}
		select {
		case <-d.wake:
		case <-soon:
		}
	}
}

// close ends the goroutine behind a last pass. It may be repeated.
func (d *drainer) close() {
	d.mu.Lock()
	d.closed = true
	done := d.done
	d.mu.Unlock()
	d.kick()
	if done != nil {
		<-done
	}
}
