package bpf

// An LRU hash is a hash that makes room when it is full. Each slot has the moment of its
// latest use, behind the values: a look up by a program, or an update. What has not been
// used for longest goes, of all elements in a map of up to lruSample slots, of as many
// that stand together in a larger one: Linux's is approximate too.

const (
	lruSample = 256  // slots that are looked at, a power of two
	lruMost   = 4096 // where there is nothing in those
	hdrClock  = 64   // uses so far
	hdrHand   = 128  // slots looked at so far
)

// noteUse notes that the element in a slot was used.
func (m *Map) noteUse(slot int) {
	if lruMaps.has(m.spec.Kind) {
		store64(m.area.Bytes, m.extra+8*slot, add64(m.area.Bytes, hdrClock, 1))
	}
}

// evict deletes the element that was not used for longest of those in n slots from one
// on. It returns false where there is none, or in a hash that keeps all.
func (m *Map) evict(from, n int) bool {
	if !lruMaps.has(m.spec.Kind) {
		return false
	}
	mem := m.area.Bytes
	for range hashSpins {
		oldest, word, when := -1, uint64(0), ^uint64(0)
		for i := range min(n, m.entries) {
			slot := (from + i) & int(m.hash.mask)
			w := load64(mem, m.slotWord(slot))
			if at := load64(mem, m.extra+8*slot); w&slotState == slotLive && at < when {
				oldest, word, when = slot, w, at
			}
		}
		switch {
		case oldest >= 0 && cas64(mem, m.slotWord(oldest), word, word^slotLive^slotGone):
			add64(mem, hdrCount, ^uint64(0))
			return true
		case oldest < 0 && n >= min(lruMost, m.entries):
			return false
		case oldest < 0:
			n = 2 * n
		}
	}
	return false
}
