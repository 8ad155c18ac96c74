package event

// held is a heap of events that were made elsewhere (Source.Put) and wait for their
// turn: the earliest first, and of those with the same time the one that came first.
type held []heldEvent

// heldEvent is one of them; it owns rec.
type heldEvent struct {
	time   int64
	number uint64 // sequence number
	cpu    int
	rec    []byte
}

// maxHeld bounds the bytes of waiting events, and keepHeld is the number of events
// for which memory is kept when none waits.
const (
	maxHeld  = 16 << 20
	keepHeld = 1 << 10
)

// emptyQueue returns q without its events, and without its memory if that is large.
func emptyQueue[T any](q []T) []T {
	if cap(q) > keepHeld {
		return nil
	}
	clear(q)
	return q[:0]
}

func (e *heldEvent) before(f *heldEvent) bool {
	return e.time < f.time || e.time == f.time && e.number < f.number
}

// push adds an event.
func (h *held) push(e heldEvent) {
	q := append(*h, e)
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if !q[i].before(&q[up]) {
			break
		}
		q[i], q[up] = q[up], q[i]
		i = up
	}
	*h = q
}

// pop removes the earliest event; there must be one.
func (h *held) pop() heldEvent {
	q := *h
	first, n := q[0], len(q)-1
	q[0] = q[n]
	q[n] = heldEvent{}
	q = q[:n]
	*h = q
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			return first
		}
		if down+1 < n && q[down+1].before(&q[down]) {
			down++
		}
		if !q[down].before(&q[i]) {
			return first
		}
		q[i], q[down] = q[down], q[i]
		i = down
	}
}
