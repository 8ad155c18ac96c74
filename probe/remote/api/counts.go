package api

// StreamCounts is the body of POST /v1/counts: the counts of probes and vCPUs, every interval.
type StreamCounts struct {
	Names      []string `json:"names,omitempty"`                                         // probes, as DELETE /v1/probes takes them; empty: all probes, present and future
	IntervalMS int      `json:"intervalMs,omitempty" openapi:"minimum=10,maximum=60000"` // MinInterval to MaxInterval; without it 1000

	// Also report how long the calls of return probes took: of at most 500 calls of each probe in an interval, of
	// fewer if there are fast ones. The probes record events for that.
	Durations bool `json:"durations,omitempty"`
}

// The least and the largest StreamCounts.IntervalMS, in milliseconds.
const (
	MinInterval = 10
	MaxInterval = 60_000
)

// Counted has the counts until a moment. A moment with many probes is several records, of which all but the last have
// More.
type Counted struct {
	TimeNS   int64         `json:"timeNs"`             // since Start.Epoch
	Guest    *Guest        `json:"guest,omitempty"`    // in the first record of a moment
	Probes   []ProbeCounts `json:"probes"`             // the probes that are new to the stream or have changed since the previous moment
	Detached []uint64      `json:"detached,omitempty"` // the numbers of probes that are gone
	More     bool          `json:"more,omitempty"`     // the next record has more probes of the same moment
}

// ProbeCounts are the counts of a probe, with the fields of Probe and of Stats.
type ProbeCounts struct {
	ID        uint64 `json:"id"`
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Symbol    string `json:"symbol,omitempty"`
	Offset    uint64 `json:"offset,omitempty"`
	Addr      Hex    `json:"addr"`
	Enabled   bool   `json:"enabled"`
	Armed     bool   `json:"armed"`
	Optimized bool   `json:"optimized"`
	Runs      string `json:"runs,omitempty"`
	Plan      string `json:"plan"`

	Hits     uint64 `json:"hits"`
	Handled  uint64 `json:"handled"`
	Filtered uint64 `json:"filtered"`
	Missed   uint64 `json:"missed"`
	Lost     uint64 `json:"lost"`
	Returns  uint64 `json:"returns,omitempty"`
	InUse    int    `json:"inUse,omitempty"`

	Durations *Durations `json:"durations,omitempty"` // since the previous moment
}

// Durations are how long calls of a return probe took since the previous moment, from a function's entry to its return,
// traps included. Of very many returns it has a part: the first ones since the previous moment.
type Durations struct {
	Count   uint64      `json:"count"`
	SumNS   uint64      `json:"sumNs"`
	Buckets []MapBucket `json:"buckets"` // in nanoseconds, ascending, without empty ones; each a quarter of a power of two wide
}
