package event

// held are events that were made elsewhere (Source.Put) and wait for their turn: a
// heap, the earliest at first, and of those of one time the one that came first.
type held []heldEvent

// heldEvent is one of them; rec is nobody else's.
type heldEvent struct {
	time   int64
	number uint64 // counts them
	cpu    int
	rec    []byte
}

// maxHeld bounds the bytes of the events that wait, and keepHeld the number of those for
// which there is room when none does.
const (
	maxHeld  = 16 << 20
	keepHeld = 1 << 10
)

// emptied returns q without its events, and without its memory where that is much.
func emptied[T any](q []T) []T {
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

// pop takes out the earliest event, which there is.
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
