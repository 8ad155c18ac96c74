package timeline

// nesting says which slices can stand on one track, where each is within another or beside it. They
// come in the order of their ends.
type nesting struct {
	closed []span // beside each other, in order; what is within them is left out
}

type span struct{ from, to int64 }

// Of a track the last maxSpans are remembered: so many calls that one call makes are known to be within it. All
// tracks together remember some allSpans, each at least minSpans.
const (
	minSpans = 1 << 6
	maxSpans = 1 << 12
	allSpans = 1 << 20
)

// put adds a slice of one of so many tracks, or says that it would overlap.
func (n *nesting) put(from, to int64, tracks int) bool {
	i := len(n.closed)
	for i > 0 && n.closed[i-1].from > from {
		i--
	}
	// What begins with it and ends before it would be taken for what is around it.
	if i > 0 && (n.closed[i-1].to > from || n.closed[i-1].from == from && to > from) {
		return false
	}
	if i < len(n.closed) && n.closed[len(n.closed)-1].to > to { // it came late
		return false
	}
	n.closed = append(n.closed[:i], span{from, to})
	if len(n.closed) > min(maxSpans, max(minSpans, allSpans/tracks)) {
		// The older half counts as one: what would begin within it goes to another track.
		half := len(n.closed) / 2
		n.closed[half-1].from = n.closed[0].from
		n.closed = append(n.closed[:0], n.closed[half-1:]...)
	}
	return true
}
