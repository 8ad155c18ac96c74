package event

import (
	"math"
	"time"
)

// cursor is the hub's view of one ring during a pass.
type cursor struct {
	pos, end uint64 // what is left: from pos up to end
	idle     bool   // the ring was not busy when end was read
	quiet    bool   // it was not busy at some time after closing was set
	next     entry  // at pos, when pos < end
}

// batch is the number of events that the hub hands on before it lets others
// have its mutex.
const batch = 256

// outcome says how a pass ended.
type outcome int

const (
	drained outcome = iota // every event that was seen has been handed on
	later                  // some are younger than the pass: the next one takes them
	waiting                // some wait for what may come before them
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

// hasNews reports whether a ring is not as cursors have it, or something was put.
func (h *Hub) hasNews(cursors []cursor) bool {
	for i, p := range h.prods {
		if c := &cursors[i]; p.head.Load() != c.end || p.busy.Load() == c.idle {
			return true
		}
	}
	return h.hasPut()
}

// hasPut reports whether something was put since the last pass.
func (h *Hub) hasPut() bool {
	h.putMu.Lock()
	defer h.putMu.Unlock()
	return len(h.inbox) > 0
}

// full reports whether a ring is.
func (h *Hub) full() bool {
	for _, p := range h.prods {
		if p.full() {
			return true
		}
	}
	return false
}

// isDrained reports whether nothing is stored any more and all has been handed on.
// closing was set before: an event that begins after a ring was seen idle is
// lost, so each ring has to be seen so only once.
func (h *Hub) isDrained(cursors []cursor) bool {
	all := len(h.held) == 0
	for i, p := range h.prods {
		c := &cursors[i]
		c.quiet = c.quiet || !p.busy.Load()
		all = all && c.quiet && p.head.Load() == p.tail.Load()
	}
	return all && !h.hasPut()
}

// deliverDue hands on, in the order of their times, the events whose turn it surely
// is: those before which no event can come any more, neither out of a ring in which one
// is being made nor, before the time sure, from the Feed; and those that have waited for
// long enough. Next is the time of the earliest event that is left.
func (h *Hub) deliverDue(cursors []cursor, sure int64) (out outcome, next int64) {
	h.mu.Lock()
	closed := len(h.closed)
	h.mu.Unlock()
	h.putMu.Lock()
	for _, e := range h.inbox {
		h.held.push(e)
	}
	h.inbox = emptied(h.inbox)
	h.putMu.Unlock()
	// What is begun after this has a later time.
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
			i, time, certain := h.earliest(cursors)
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
				h.held = emptied(h.held)
			}
			h.release(time)
			h.mu.Unlock()
			return out, time
		}
		h.mu.Unlock()
	}
}

// earliest returns where the earliest event is: the number of its ring, that behind the
// rings' for one of held, or -1; its time; and whether no event of a ring can come before
// it any more: not so while an empty ring is busy.
func (h *Hub) earliest(cursors []cursor) (first int, time int64, certain bool) {
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

// deliverNext gives the next event of ring i, or of held, to the subscribers. The mutex is
// held.
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

// deliver gives an event, the one at pos of a ring, to those who want it. Where ev has no
// Data it gets a copy of rec when somebody does.
func (h *Hub) deliver(ev Event, rec []byte, ring int, pos uint64) {
	ev.Source, ev.Seq = h.sources[le.Uint32(rec[RecordMark:])>>2], h.seq
	h.seq++
	if ev.Time < h.lastTime {
		h.reordered++
	}
	h.lastTime = max(h.lastTime, ev.Time)
	data := ev.Data
	ev.Data = nil // filters have none
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
