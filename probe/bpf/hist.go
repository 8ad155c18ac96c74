package bpf

// HistBuckets is the number of buckets of a log2 histogram.
const HistBuckets = 64

// Hist is a log2 histogram.
type Hist [HistBuckets]uint64

// Total returns the number of values counted.
func (h *Hist) Total() uint64 {
	var n uint64
	for _, c := range h {
		n += c
	}
	return n
}

// Range returns the first and the last bucket that is not empty; ok is false
// when all are.
func (h *Hist) Range() (lo, hi int, ok bool) {
	for i, c := range h {
		if c == 0 {
			continue
		}
		if !ok {
			lo = i
		}
		hi, ok = i, true
	}
	return lo, hi, ok
}

// HistBounds returns the smallest and the largest value that bucket i counts.
func HistBounds(i int) (lo, hi uint64) {
	if i == 0 {
		return 0, 1
	}
	return 1 << i, 1<<i<<1 - 1
}

// Hist reads an array or per-CPU array of counters of 8 bytes, one for each
// bucket, as a histogram, the vCPUs' counters added up. Errors are ErrMapKind
// when the map is of another shape.
func (m *Map) Hist() (*Hist, error) {
	s := &m.spec
	if s.Kind != Array && s.Kind != PerCPUArray || s.ValueSize != 8 || s.MaxEntries > HistBuckets {
		return nil, m.fail("read a histogram", ErrMapKind)
	}
	h := new(Hist)
	for i := range int(s.MaxEntries) {
		for c := range m.copies() {
			h[i] += load64(m.valueAt(i, c), 0)
		}
	}
	return h, nil
}
