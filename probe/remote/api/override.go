package api

// Override makes the function that a probe is at return a value without running, for some
// of the probe's hits: those that pass its filter, and of these the ones that the other
// fields choose, as the kernel's fault injection does with the attributes of the same names
// (Documentation/fault-injection).
type Override struct {
	// Value is what the function returns.
	Value int64 `json:"value"`

	// Probability is how many percent of the hits are chosen, 0 to 100; nil stands for all.
	// Which they are depends on Seed and on their number alone.
	Probability *float64 `json:"probability,omitempty"`

	// Interval considers only each hit whose number is a multiple of it; 0 stands for 1.
	Interval uint64 `json:"interval,omitempty"`

	// Times is after how many of them no more are chosen, exactly, whatever vCPUs they come
	// from; nil, and -1, stand for no limit.
	Times *int64 `json:"times,omitempty"`

	// After is how many hits are left alone before all that. The kernel's word is space.
	After uint64 `json:"after,omitempty"`

	// Seed is what the choice by Probability begins with; 0 has the daemon take one, which
	// ProbeOverride says.
	Seed uint64 `json:"seed,omitempty"`
}

// ProbeOverride is the Override of a probe, with all that the daemon has chosen, and what
// has become of it.
type ProbeOverride struct {
	Override
	Injected uint64 `json:"injected"` // how many calls have returned Value without running
}
