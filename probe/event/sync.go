package event

import (
	"context"
	"slices"
)

// waiter is a Sync that has not returned.
type waiter struct {
	time  int64 // what it waits for is not later
	begun bool  // a pass has begun since
	done  chan struct{}
}

// Sync returns when every event that was stored before the call, and all that the
// Feed has by then, has been handed to the subscribers, or with ctx's error. Whoever
// ends a stream, or has just unregistered a probe, calls it so that the last events are
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

// noteBegun notes that a pass begins.
func (h *Hub) noteBegun() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.waiters {
		h.waiters[i].begun = true
	}
}

// release ends the waits that are over, where the earliest event that has not been
// handed on is of that time; all of them when the hub has ended. The mutex is held.
func (h *Hub) release(time int64) {
	h.waiters = slices.DeleteFunc(h.waiters, func(w waiter) bool {
		if !h.ended && (!w.begun || time <= w.time) {
			return false
		}
		close(w.done)
		return true
	})
}
