package api

// StreamCounts is the body of POST /v1/counts: what probes and vCPUs have counted, every interval.
type StreamCounts struct {
	Names      []string `json:"names,omitempty"`      // these probes, as DELETE /v1/probes takes them; none: all, present and future
	IntervalMS int      `json:"intervalMs,omitempty"` // MinInterval to MaxInterval; 0: 1000
	Durations  bool     `json:"durations,omitempty"`  // also how long the calls of return probes took
}

// The least and the largest StreamCounts.IntervalMS, in milliseconds.
const (
	MinInterval = 10
	MaxInterval = 60_000
)

// Counted is what was counted until a moment. A moment with many probes is several records, of which all but
// the last have More.
type Counted struct {
	TimeNS   int64         `json:"timeNs"`          // when, as Hit has it
	Guest    *Guest        `json:"guest,omitempty"` // in the first record of a moment
	Probes   []ProbeCounts `json:"probes"`          // those that are new to the stream, or have changed since the moment before
	Detached []uint64      `json:"detached,omitempty"`
	More     bool          `json:"more,omitempty"`
}

// ProbeCounts are the counts of a probe, as Probe has them.
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

	Durations *Durations `json:"durations,omitempty"` // since the moment before
}

// Durations are how long calls took, from a function's entry to its return, traps included. Of very many returns
// they are those of a part: the first of the time since the moment before.
type Durations struct {
	Count   uint64      `json:"count"`
	SumNS   uint64      `json:"sumNs"`
	Buckets []MapBucket `json:"buckets"` // in nanoseconds, ascending, those with something in them; each a quarter of a power of two wide
}
