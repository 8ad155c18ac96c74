package event

import (
	"context"
	"slices"
)

// waiter is a Sync that has not returned.
type waiter struct {
	heads []uint64 // per vCPU: where in its ring what it waits for ends
	done  chan struct{}
}

// Sync returns when every event that was stored before the call has been
// handed to the subscribers, or with ctx's error. Whoever ends a stream, or has
// just unregistered a probe, calls it so that the last events are not missed.
func (h *Hub) Sync(ctx context.Context) error {
	w := waiter{done: make(chan struct{})}
	for _, p := range h.prods {
		w.heads = append(w.heads, p.head.Load())
	}
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

// release ends the waits that are over; all of them when the hub has ended.
// The mutex is held.
func (h *Hub) release() {
	h.waiters = slices.DeleteFunc(h.waiters, func(w waiter) bool {
		for i, p := range h.prods {
			if !h.ended && p.tail.Load() < w.heads[i] {
				return false
			}
		}
		close(w.done)
		return true
	})
}
