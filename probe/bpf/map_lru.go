package bpf

// An LRU hash is a hash that makes room when it is full. Each slot has the time of
// its latest use, after the values: a lookup by a program, or an update. The least
// recently used element is evicted: of all elements in a map of up to lruSample
// slots, and of lruSample adjacent slots in a larger one. Linux's LRU is approximate
// too.

const (
	lruSample = 256  // slots that are examined, a power of two
	lruMost   = 4096 // if those have no element
	hdrClock  = 64   // uses so far
	hdrHand   = 128  // slots examined so far
)

// noteUse records that the element in a slot was used.
func (m *Map) noteUse(slot int) {
	if lruMaps.has(m.spec.Kind) {
		store64(m.area.Bytes, m.extra+8*slot, add64(m.area.Bytes, hdrClock, 1))
	}
}

// evict deletes the least recently used element of the n slots from one on. It
// returns false if there is no element, or if the hash keeps all.
func (m *Map) evict(from, n int) bool {
	if !lruMaps.has(m.spec.Kind) {
		return false
	}
	mem := m.area.Bytes
	for range hashSpins {
		oldest, word, when := -1, uint64(0), ^uint64(0)
		for i := range min(n, m.entries) {
			slot := (from + i) & int(m.hash.mask)
			w := load64(mem, slotWord(slot))
			if at := load64(mem, m.extra+8*slot); w&slotState == slotLive && at < when {
				oldest, word, when = slot, w, at
			}
		}
		switch {
		case oldest >= 0 && cas64(mem, slotWord(oldest), word, word^slotLive^slotGone):
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
