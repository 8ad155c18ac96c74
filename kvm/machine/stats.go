package machine

// VCPUStats counts what one vCPU did since the machine was created; a reset
// does not clear it.
type VCPUStats struct {
	ID    int               `json:"id"`
	Exits map[string]uint64 `json:"exits"` // by the name of the KVM exit reason; only those that happened
	Total uint64            `json:"total"` // all exits

	Hits        uint64 `json:"hits"`        // breakpoints that the engine took
	TrapExits   uint64 `json:"trapExits"`   // exits that breakpoints, steps and forwarded faults caused
	Foreign     uint64 `json:"foreign"`     // breakpoints given back to the guest
	InPlace     uint64 `json:"inPlace"`     // instructions stepped with the world stopped
	TextWrites  uint64 `json:"textWrites"`  // writes of a kernel to its own text that were followed
	Ticks       uint64 `json:"ticks"`       // timer interrupts delivered
	TicksMerged uint64 `json:"ticksMerged"` // timer periods that passed while one was still pending

	TrapNs uint64 `json:"trapNs,omitempty"` // with Config.TimeHits: nanoseconds outside KVM_RUN for TrapExits
}

// Stats is a snapshot of the counters of all vCPUs. It is not atomic across
// vCPUs.
type Stats struct {
	VCPUs []VCPUStats `json:"vcpus"`
}
