package api

// Host answers GET /v1/host: what calibration found out about this machine's
// /dev/kvm by running code on it. `guestprobe doctor` prints the same.
type Host struct {
	KVM   HostKVM  `json:"kvm"`
	Traps HostTrap `json:"traps"`
}

// HostKVM says whether /dev/kvm can be used.
type HostKVM struct {
	Usable       bool            `json:"usable"`
	API          int             `json:"api,omitempty"`    // 12 since Linux 2.6.22
	Reason       string          `json:"reason,omitempty"` // why it is not usable
	Advice       string          `json:"advice,omitempty"` // what to do about it
	Module       string          `json:"module,omitempty"` // kvm_intel, kvm_amd, ...
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

// HostTrap is how traps arrive at each privilege level.
type HostTrap struct {
	CPL0 Traps `json:"cpl0"`
	CPL3 Traps `json:"cpl3"`
}

// Traps says how each kind of trap arrives.
type Traps struct {
	Int3    string `json:"int3"`    // debug-exit, emulation-exit, vector or none
	Step    string `json:"step"`    // works, or how it fails
	HWBreak string `json:"hwbreak"` // works, or how it fails
	Watch   string `json:"watch"`   // works, or how it fails
}
