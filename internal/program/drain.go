package program

import (
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
// are any.
type drainer struct {
	wake chan struct{} // capacity 1
	stop chan struct{}
	done chan struct{}

	mu      sync.Mutex // guards the rings, and is held while they are read
	rings   []*ring
	running bool
	closed  bool
}

// ring is a ring that is drained.
type ring struct {
	m     *bpf.Map
	to    func(bpf.Record)
	after func() // behind each pass; may be nil
	guest bool   // the guest writes into it, and cannot wake anyone
}

func (d *drainer) init() {
	d.wake, d.stop, d.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
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
	if !d.running && !d.closed {
		d.running = true
		go d.run()
	}
	d.kick()
}

// remove drains a ring for the last time and forgets it.
func (d *drainer) remove(r *ring) {
	d.pass()
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, have := range d.rings {
		if have == r {
			d.rings = append(d.rings[:i:i], d.rings[i+1:]...)
			return
		}
	}
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

// polls reports whether some ring has to be looked at without being asked to.
func (d *drainer) polls() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.rings {
		if r.guest {
			return true
		}
	}
	return false
}

func (d *drainer) run() {
	defer close(d.done)
	timer := time.NewTimer(minPoll)
	defer timer.Stop()
	wait := minPoll
	for {
		if d.pass() > 0 {
			wait = minPoll
		} else {
			wait = min(2*wait, maxPoll)
		}
		var poll <-chan time.Time
		if d.polls() {
			timer.Reset(wait)
			poll = timer.C
		}
		select {
		case <-d.wake:
		case <-poll:
		case <-d.stop:
			d.pass()
			return
		}
	}
}

func (d *drainer) close() {
	d.mu.Lock()
	closed, running := d.closed, d.running
	d.closed = true
	d.mu.Unlock()
	if closed {
		return
	}
	close(d.stop)
	if running {
		<-d.done
	}
}
