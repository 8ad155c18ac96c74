package api

// Optimization is the answer of GET and PUT /v1/kprobes/optimization: the knob,
// and what the optimizer has done since the daemon was started.
type Optimization struct {
	Enabled     bool   `json:"enabled"`
	Now         int    `json:"now"`         // sites that have a jump
	Waiting     int    `json:"waiting"`     // sites that the next pass will look at
	Optimized   uint64 `json:"optimized"`   // times that a site got its jump
	Unoptimized uint64 `json:"unoptimized"` // times that one lost it
	Passes      uint64 `json:"passes"`      // stops of the guest for that
	StoppedNs   int64  `json:"stoppedNs"`   // of all passes: from asking the vCPUs to stop until they ran again
	LongestNs   int64  `json:"longestNs"`   // of these the longest
}

// SetOptimization is the body of PUT /v1/kprobes/optimization.
type SetOptimization struct {
	Enabled *bool `json:"enabled,omitempty"` // false: no site has a jump any more
	Now     bool  `json:"now,omitempty"`     // run the optimizer before the answer
}

// Unoptimized is why a probe's site has no jump.
type Unoptimized struct {
	Reason  string `json:"reason"`            // machine-readable; docs/optimization.md lists them
	Meaning string `json:"meaning,omitempty"` // of the reason, in a sentence without its capital and full stop
	Detail  string `json:"detail,omitempty"`  // for people: the details of this case
}
