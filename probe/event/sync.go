package event

import (
	"context"
	"slices"
)

// waiter is a Sync that has not returned.
type waiter struct {
	time  int64 // it waits for events up to this time
	begun bool  // a pass has begun since then
	fed   bool  // and has polled the Feed
	done  chan struct{}
}

// Sync returns when every event that was stored before the call, and all that the
// Feed has by then, has been passed to the subscribers, or with ctx's error. Call it
// before ending a stream, or after unregistering a probe, so that the last events are
// not missed.
func (h *Hub) Sync(ctx context.Context) error {
	w := waiter{time: h.clock(), done: make(chan struct{})}
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		return nil
	}
	h.waiters = append(h.waiters, w)
	h.mu.Unlock()
	h.kick()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// noteBegun records that a pass begins.
func (h *Hub) noteBegun() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.waiters {
		h.waiters[i].begun = true
	}
}

// noteFed records that a pass has polled the Feed, whose events may be as late as
// now: the guest's clock may be ahead of the host's.
func (h *Hub) noteFed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.waiters {
		if w := &h.waiters[i]; w.begun && !w.fed {
			w.fed, w.time = true, max(w.time, h.clock())
		}
	}
}

// release ends the waits that are over, given the time of the earliest event that has
// not been passed on; all of them if the hub has ended. Callers hold the mutex.
func (h *Hub) release(time int64) {
	h.waiters = slices.DeleteFunc(h.waiters, func(w waiter) bool {
		if !h.ended && (!w.fed || time <= w.time) {
			return false
		}
		close(w.done)
		return true
	})
}
