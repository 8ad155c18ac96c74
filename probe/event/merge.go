package event

import (
	"math"
	"time"
)

// cursor is the hub's view of one ring during a pass.
type cursor struct {
	pos, end uint64 // the rest: from pos up to end
	idle     bool   // the ring was not busy when end was read
	quiet    bool   // it was not busy at some time after closing was set
	next     entry  // at pos, if pos < end
}

// batch is the number of events that the hub passes on before it releases its mutex
// for others.
const batch = 256

// outcome is the result of a pass.
type outcome int

const (
	drained outcome = iota // every event seen was passed on
	later                  // some are newer than the pass: the next one takes them
	waiting                // some wait because earlier ones may still come
)

// run is the hub's goroutine.
func (h *Hub) run() {
	defer close(h.done)
	cursors := make([]cursor, len(h.prods))
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	wait := func(d time.Duration) {
		timer.Reset(d)
		select {
		case <-h.wake:
		case <-timer.C:
		}
	}
	poll := minPoll
	for {
		closing, seq := h.closing.Load(), h.seq
		h.noteBegun()
		fed, sure, active := h.poll()
		h.noteFed()
		if closing {
			sure = math.MaxInt64
		}
		out, next := h.deliverDue(cursors, sure)
		if out == later {
			continue
		}
		if closing && h.isDrained(cursors) {
			break
		}
		if fed > 0 || out == waiting {
			poll = minPoll
		} else {
			poll = min(2*poll, maxPoll)
		}
		timeout := time.Hour
		if active {
			timeout = poll
		}
		if out == waiting {
			timeout = max(0, min(timeout, h.window-time.Duration(h.clock()-next)))
		}
		if h.seq != seq && !closing && h.coalesce > 0 {
			h.nap.Store(resting)
			if !h.full() {
				wait(min(h.coalesce, timeout))
			}
			h.nap.Store(awake)
			continue
		}
		h.nap.Store(asleep)
		if !h.hasNews(cursors) && closing == h.closing.Load() {
			wait(timeout)
		}
		h.nap.Store(awake)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for _, s := range h.subs {
		s.end()
	}
	h.subs = nil
	h.release(math.MaxInt64)
}

// poll polls the Feed, if there is one.
func (h *Hub) poll() (n int, sure int64, active bool) {
	f := h.feed.Load()
	if f == nil {
		return 0, math.MaxInt64, false
	}
	n, sure, active = (*f).Poll()
	if !active {
		sure = math.MaxInt64
	}
	return n, sure, active
}

// hasNews reports whether a ring differs from cursors, or an event was put.
func (h *Hub) hasNews(cursors []cursor) bool {
	for i, p := range h.prods {
		if c := &cursors[i]; p.head.Load() != c.end || p.busy.Load() == c.idle {
			return true
		}
	}
	return h.hasPut()
}

// hasPut reports whether an event was put since the last pass.
func (h *Hub) hasPut() bool {
	h.putMu.Lock()
	defer h.putMu.Unlock()
	return len(h.inbox) > 0
}

// full reports whether any ring is full.
func (h *Hub) full() bool {
	for _, p := range h.prods {
		if p.full() {
			return true
		}
	}
	return false
}

// isDrained reports whether no more events are stored and all have been passed on.
// closing must be set: an event that begins after a ring was seen idle is lost, so
// each ring has to be seen idle only once.
func (h *Hub) isDrained(cursors []cursor) bool {
	all := len(h.held) == 0
	for i, p := range h.prods {
		c := &cursors[i]
		c.quiet = c.quiet || !p.busy.Load()
		all = all && c.quiet && p.head.Load() == p.tail.Load()
	}
	return all && !h.hasPut()
}

// deliverDue passes on, in the order of their times, the events whose turn it surely
// is: those before which no event can come any more, neither from a ring in which one
// is being made nor, before the time sure, from the Feed; and those that have waited
// long enough. next is the time of the earliest event left.
func (h *Hub) deliverDue(cursors []cursor, sure int64) (out outcome, next int64) {
	h.mu.Lock()
	closed := len(h.closed)
	h.mu.Unlock()
	h.putMu.Lock()
	for _, e := range h.inbox {
		h.held.push(e)
	}
	h.inbox = emptyQueue(h.inbox)
	h.putMu.Unlock()
	// Any event begun after this has a later time.
	now, idle := h.clock(), true
	for i, p := range h.prods {
		c := &cursors[i]
		c.idle = !p.busy.Load() // before head: see ring.busy
		idle = idle && c.idle
		c.pos, c.end = p.tail.Load(), p.head.Load()
		if c.pos < c.end {
			c.next = p.peek(c.pos)
		}
	}
	for {
		h.mu.Lock()
		for range batch {
			i, time, certain := h.earliestEvent(cursors)
			out = drained
			switch {
			case i < 0:
			case (!certain || time >= sure) && time > now-int64(h.window):
				out = waiting
			case time > now:
				out = later
			default:
				h.deliverNext(i, cursors)
				continue
			}
			if idle && closed > 0 {
				h.retire(closed)
			}
			if len(h.held) == 0 {
				h.held = emptyQueue(h.held)
			}
			h.release(time)
			h.mu.Unlock()
			return out, time
		}
		h.mu.Unlock()
	}
}

// earliestEvent returns the earliest event: the number of its ring (the number after
// the rings' for held), or -1; its time; and whether no earlier event can come from a
// ring any more, which is not so while an empty ring is busy.
func (h *Hub) earliestEvent(cursors []cursor) (first int, time int64, certain bool) {
	first, time, certain = -1, math.MaxInt64, true
	for i := range cursors {
		c := &cursors[i]
		switch {
		case c.pos == c.end:
			certain = certain && c.idle
		case first < 0 || c.next.time < time:
			first, time = i, c.next.time
		}
	}
	if len(h.held) > 0 && (first < 0 || h.held[0].time < time) {
		first, time = len(cursors), h.held[0].time
	}
	return first, time, certain
}

// deliverNext passes the next event of ring i, or of held, to the subscribers.
// Callers hold the mutex.
func (h *Hub) deliverNext(i int, cursors []cursor) {
	if i == len(cursors) {
		e := h.held.pop()
		h.heldBytes.Add(-int64(len(e.rec)))
		h.deliver(Event{CPU: e.cpu, Time: e.time, Data: e.rec}, e.rec, i, e.number)
		return
	}
	c, p := &cursors[i], h.prods[i]
	e := c.next
	h.deliver(Event{CPU: e.cpu, Time: e.time}, e.rec, i, e.pos)
	c.pos = e.next
	p.release(e.next)
	if c.pos < c.end {
		c.next = p.peek(c.pos)
	}
}

// deliver passes an event, the one at pos of a ring, to the subscribers that want it.
// If ev has no Data it gets a copy of rec once a subscriber wants it.
func (h *Hub) deliver(ev Event, rec []byte, ring int, pos uint64) {
	ev.Source, ev.Seq = h.sources[le.Uint32(rec[RecordMark:])>>2], h.seq
	h.seq++
	if ev.Time < h.lastTime {
		h.reordered++
	}
	h.lastTime = max(h.lastTime, ev.Time)
	data := ev.Data
	ev.Data = nil // filters get none
	for _, s := range h.subs {
		if pos < s.from[ring] {
			continue // stored before the subscription
		}
		if s.filter != nil && !s.filter(ev) {
			continue
		}
		if data == nil {
			data = h.arena.take(len(rec))
			copy(data, rec)
		}
		with := ev
		with.Data = data
		s.push(with)
	}
	ev.Source.drained++
}
