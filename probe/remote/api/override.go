package api

// Override makes the function of a p definition return a value without running, for some of the probe's hits: the ones
// that pass its filter and that the other fields choose, as the kernel's fault injection does with the attributes of
// the same names (Documentation/fault-injection).
type Override struct {
	// Value is returned by the function.
	Value int64 `json:"value"`

	// Probability is the share of the hits that is chosen, in percent, 0 to 100; nil means all. The choice depends on
	// Seed and on the numbers of the hits alone.
	Probability *float64 `json:"probability,omitempty" openapi:"minimum=0,maximum=100,default=100"`

	// Interval considers only each hit whose number is a multiple of it; 0 means 1.
	Interval uint64 `json:"interval,omitempty" openapi:"minimum=0"`

	// Times is the exact number of hits after which no more are chosen, from all vCPUs together; nil and -1 mean no
	// limit.
	Times *int64 `json:"times,omitempty" openapi:"default=-1"`

	// After is the number of hits that are skipped first. The kernel's word is space.
	After uint64 `json:"after,omitempty" openapi:"minimum=0"`

	// Seed is the start of the choice by Probability; with 0 the daemon chooses one, which ProbeOverride reports.
	Seed uint64 `json:"seed,omitempty" openapi:"minimum=0"`
}

// ProbeOverride is the Override of a probe, with all values that the daemon has chosen, and with its effect.
type ProbeOverride struct {
	Override
	Injected uint64 `json:"injected"` // the number of calls that have returned Value without running
}
