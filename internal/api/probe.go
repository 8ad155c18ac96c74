package api

// ProbeSpec asks for one probe.
type ProbeSpec struct {
	// Def is one line of the kprobe_events language: "p:myread vfs_read
	// fd=%di:s32".
	Def string `json:"def"`

	// Disabled registers the probe without arming it.
	Disabled bool `json:"disabled,omitempty"`

	// Post also reports the registers after the probed instruction, as a
	// second record with stage "post". The definition language has no form for
	// it.
	Post bool `json:"post,omitempty"`

	// Regs adds the registers to the first record of a hit too.
	Regs bool `json:"regs,omitempty"`

	// Stay keeps a probe that was attached together with a stream when the
	// stream ends. Probes attached by POST /v1/probes always stay.
	Stay bool `json:"stay,omitempty"`
}

// CreateProbes is the body of POST /v1/probes: either one ProbeSpec in place,
// or several in Probes, of which all are attached or none.
type CreateProbes struct {
	ProbeSpec
	Probes []ProbeSpec `json:"probes,omitempty"`
}

// PatchProbe is the body of PATCH /v1/probes/{probe}.
type PatchProbe struct {
	Enabled *bool `json:"enabled"`
}

// ProbeList is the answer wherever probes are listed or created.
type ProbeList struct {
	Probes []Probe `json:"probes"`
}

// Probe describes one attached probe.
type Probe struct {
	ID     uint64 `json:"id"`   // never used again by this daemon
	Name   string `json:"name"` // group/event
	Def    string `json:"def"`  // the definition in the form in which it reads back
	Kind   string `json:"kind"` // "k", the letter of the kernel's list
	Symbol string `json:"symbol,omitempty"`
	Offset uint64 `json:"offset"`
	Size   uint64 `json:"size,omitempty"` // bytes of the symbol
	Addr   Hex    `json:"addr"`
	User   bool   `json:"user"` // in CPL3 text

	Enabled bool `json:"enabled"` // as asked for
	Armed   bool `json:"armed"`   // the site is patched
	Gone    bool `json:"gone"`    // the code went away
	Post    bool `json:"post"`
	Regs    bool `json:"regs"`
	Stay    bool `json:"stay"`

	Plan   string `json:"plan"`             // how the displaced instruction is executed
	Reason string `json:"reason,omitempty"` // why not in a cheaper way

	Stats Stats `json:"stats"`
}

// Stats are the counters of one probe. Hits = Handled + Filtered + Missed, in
// total and per vCPU.
type Stats struct {
	Hits     uint64 `json:"hits"`
	Handled  uint64 `json:"handled"`
	Filtered uint64 `json:"filtered"`
	Missed   uint64 `json:"missed"`
	Lost     uint64 `json:"lost"` // events that found no room in a vCPU's ring

	CPUs []CPUStats `json:"cpus,omitempty"`
}

// CPUStats are the counters of one probe on one vCPU.
type CPUStats struct {
	CPU      int    `json:"cpu"`
	Hits     uint64 `json:"hits"`
	Handled  uint64 `json:"handled"`
	Filtered uint64 `json:"filtered"`
	Missed   uint64 `json:"missed"`
}

// Knobs are the engine's global switches.
type Knobs struct {
	Enabled *bool `json:"enabled"` // false: every probe is disarmed, none forgotten
}

// Blacklist lists what may not be probed.
type Blacklist struct {
	Entries []BlacklistEntry `json:"entries"`
}

// BlacklistEntry is one half-open range that may not be probed.
type BlacklistEntry struct {
	Start  Hex    `json:"start"`
	End    Hex    `json:"end"`
	Symbol string `json:"symbol"`
	Reason string `json:"reason"`
}
