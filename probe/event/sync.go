package event

import (
	"context"
	"time"
)

// syncPoll is how often Sync looks. The hub's goroutine does not sleep while a
// ring holds something, so it is only ever a moment behind.
const syncPoll = 100 * time.Microsecond

// Sync returns when every event that was stored before the call has been
// handed to the subscribers, or with ctx's error. Whoever ends a stream, or has
// just unregistered a probe, calls it so that the last events are not missed.
func (h *Hub) Sync(ctx context.Context) error {
	heads := make([]uint64, len(h.prods))
	for i, p := range h.prods {
		heads[i] = p.head.Load()
	}
	tick := time.NewTicker(syncPoll)
	defer tick.Stop()
	for i, p := range h.prods {
		// handOn releases an entry behind having pushed it.
		for p.tail.Load() < heads[i] {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}
