package report

import "math/bits"

// Latency is the duration of calls, in nanoseconds. Mean, least and largest are
// exact, the quantiles to 0.8 %.
type Latency struct {
	Count  uint64 `json:"count"`
	MeanNS uint64 `json:"meanNs"`
	MinNS  uint64 `json:"minNs"`
	P50NS  uint64 `json:"p50Ns"`
	P90NS  uint64 `json:"p90Ns"`
	P99NS  uint64 `json:"p99Ns"`
	MaxNS  uint64 `json:"maxNs"`
	From   string `json:"from"` // fromReturns or fromPairs
}

// Where latencies come from.
const (
	fromReturns = "returns" // of return probes, which record the entry time
	fromPairs   = "pairs"   // of a probe at a ret, and one at the entry of its function
)

// Values are counted in 128 buckets for each power of two; values below 128 have
// a bucket each.
const (
	subBits = 7
	buckets = (64 - subBits + 1) << subBits
)

// histogram counts the durations of calls.
type histogram struct {
	counts   []uint64
	n        uint64
	low, max uint64
	hi, sum  uint64 // of all, in 128 bits
}

// bucket returns the bucket of a value.
func bucket(v uint64) int {
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)<<subBits + int(v>>shift) - 1<<subBits
}

// largestValue returns the largest value of a bucket.
func largestValue(b int) uint64 {
	if b < 1<<subBits {
		return uint64(b)
	}
	shift := b>>subBits - 1
	return (uint64(b&(1<<subBits-1))+1<<subBits+1)<<shift - 1
}

func (h *histogram) add(v uint64) {
	if h.counts == nil {
		h.counts, h.low = make([]uint64, buckets), v
	}
	h.counts[bucket(v)]++
	h.n++
	h.low, h.max = min(h.low, v), max(h.max, v)
	var carry uint64
	h.sum, carry = bits.Add64(h.sum, v, 0)
	h.hi += carry
}

// quantile returns the least value that is at least as large as percent of all
// values, or a little more.
func (h *histogram) quantile(percent uint64) uint64 {
	hi, lo := bits.Mul64(h.n, percent)
	want, rest := bits.Div64(hi, lo, 100)
	if rest > 0 {
		want++
	}
	seen := uint64(0)
	for b, n := range h.counts {
		if seen += n; seen >= want {
			return min(largestValue(b), h.max)
		}
	}
	return h.max
}

func (h *histogram) latency(from string) *Latency {
	if h.n == 0 {
		return nil
	}
	mean, _ := bits.Div64(h.hi, h.sum, h.n)
	return &Latency{h.n, mean, h.low, h.quantile(50), h.quantile(90), h.quantile(99), h.max, from}
}
