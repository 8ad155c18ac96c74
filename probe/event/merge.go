package event

import (
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
	held                   // some wait for a ring in which an event is being made
)

// run is the hub's goroutine.
func (h *Hub) run() {
	defer close(h.done)
	cursors := make([]cursor, len(h.prods))
	var since time.Time // since when events have been held
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	wait := func(d time.Duration) {
		timer.Reset(d)
		select {
		case <-h.wake:
		case <-timer.C:
		}
	}
	for {
		seq := h.seq
		out := h.pass(cursors, !since.IsZero() && time.Since(since) >= h.window)
		if out == later {
			continue
		}
		closing := h.closing.Load()
		if closing && h.quiet(cursors) {
			break
		}
		if h.seq != seq && !closing && h.coalesce > 0 {
			since = time.Time{}
			h.nap.Store(resting)
			if !h.full() {
				wait(h.coalesce)
			}
			h.nap.Store(awake)
			continue
		}
		timeout := time.Hour // only a held event has a deadline
		if out != held {
			since = time.Time{}
		} else {
			if since.IsZero() {
				since = time.Now()
			}
			timeout = max(0, h.window-time.Since(since))
		}
		h.nap.Store(asleep)
		if !h.news(cursors) && closing == h.closing.Load() {
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
	h.release()
}

// news reports whether a ring is not as cursors have it.
func (h *Hub) news(cursors []cursor) bool {
	for i, p := range h.prods {
		if c := &cursors[i]; p.head.Load() != c.end || p.busy.Load() == c.idle {
			return true
		}
	}
	return false
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

// quiet reports whether nothing is stored any more and all has been handed on.
// closing was set before: an event that begins after a ring was seen idle is
// lost, so each ring has to be seen so only once.
func (h *Hub) quiet(cursors []cursor) bool {
	all := true
	for i, p := range h.prods {
		c := &cursors[i]
		c.quiet = c.quiet || !p.busy.Load()
		all = all && c.quiet && p.head.Load() == p.tail.Load()
	}
	return all
}

// pass hands on, in the order of their times, the events whose turn it surely
// is: those before which no event can come any more. With force it does not
// wait for rings in which an event is being made.
func (h *Hub) pass(cursors []cursor, force bool) outcome {
	h.mu.Lock()
	closed := len(h.closed)
	h.mu.Unlock()
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
			i, sure := earliest(cursors)
			out := drained
			switch {
			case i < 0:
			case !sure && !force:
				out = held
			case cursors[i].next.time > now:
				out = later
			default:
				h.handOn(i, &cursors[i])
				continue
			}
			if idle && closed > 0 {
				h.retire(closed)
			}
			h.release()
			h.mu.Unlock()
			return out
		}
		h.mu.Unlock()
	}
}

// earliest returns the cursor with the earliest event, or -1, and whether no
// event can come before it any more: not so while an empty ring is busy.
func earliest(cursors []cursor) (first int, sure bool) {
	first, sure = -1, true
	for i := range cursors {
		c := &cursors[i]
		switch {
		case c.pos == c.end:
			sure = sure && c.idle
		case first < 0 || c.next.time < cursors[first].next.time:
			first = i
		}
	}
	return first, sure
}

// handOn gives the next event of ring i to the subscribers. The mutex is held.
func (h *Hub) handOn(i int, c *cursor) {
	p, e := h.prods[i], c.next
	src := h.sources[le.Uint32(e.rec[RecordMark:])>>2]
	ev := Event{Source: src, CPU: e.cpu, Time: e.time, Seq: h.seq}
	h.seq++
	if e.time < h.lastTime {
		h.reordered++
	}
	h.lastTime = max(h.lastTime, e.time)
	for _, s := range h.subs {
		if e.pos < s.from[i] {
			continue // stored before the subscription
		}
		if s.filter != nil && !s.filter(ev) {
			continue
		}
		if ev.Data == nil {
			ev.Data = h.copy(e.rec)
		}
		s.push(ev)
	}
	c.pos = e.next
	p.release(e.next)
	if c.pos < c.end {
		c.next = p.peek(c.pos)
	}
	src.drained++
}

// copy returns a copy of rec that is never written again.
func (h *Hub) copy(rec []byte) []byte {
	// Small, because one event that a slow reader holds keeps the whole chunk.
	const chunk = 4 << 10
	if len(rec) > len(h.arena) {
		h.arena = make([]byte, max(chunk, len(rec)))
	}
	c := h.arena[:len(rec):len(rec)]
	h.arena = h.arena[len(rec):]
	copy(c, rec)
	return c
}
