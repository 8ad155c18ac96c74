package timeline

// nesting decides which slices fit on one track, where each is within another or
// beside it. They come in the order of their ends.
type nesting struct {
	closed []span // beside each other, in order; slices within them are left out
}

type span struct{ from, to int64 }

// For each track the last maxSpans slices are remembered. So a call is known to
// contain the calls that it makes, up to that many. All tracks together remember
// about allSpans, each at least minSpans.
const (
	minSpans = 1 << 6
	maxSpans = 1 << 12
	allSpans = 1 << 20
)

// put adds a slice, where tracks is the number of tracks, or reports false
// because it would overlap.
func (n *nesting) put(from, to int64, tracks int) bool {
	i := len(n.closed)
	for i > 0 && n.closed[i-1].from > from {
		i--
	}
	// A slice that begins with another and ends before it would be shown as the
	// outer one.
	if i > 0 && (n.closed[i-1].to > from || n.closed[i-1].from == from && to > from) {
		return false
	}
	if i < len(n.closed) && n.closed[len(n.closed)-1].to > to { // it arrived late
		return false
	}
	n.closed = append(n.closed[:i], span{from, to})
	if len(n.closed) > min(maxSpans, max(minSpans, allSpans/tracks)) {
		// The older half counts as one slice: slices that would begin within it go to
		// another track.
		half := len(n.closed) / 2
		n.closed[half-1].from = n.closed[0].from
		n.closed = append(n.closed[:0], n.closed[half-1:]...)
	}
	return true
}
