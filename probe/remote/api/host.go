package api

// Host answers GET /v1/host: the results of calibrating this machine's /dev/kvm by running code on it. `guestprobe
// doctor` prints the same.
type Host struct {
	KVM   HostKVM   `json:"kvm"`
	Traps HostTraps `json:"traps,omitzero"` // absent where KVM is not usable
	Jail  string    `json:"jail"`           // the means by which a daemon can be confined here

	NoLinux string `json:"noLinux,omitempty"` // why Linux guests cannot boot here; absent if they can
}

// HostKVM says whether /dev/kvm can be used, and what it offers.
type HostKVM struct {
	Usable      bool   `json:"usable"`
	API         int    `json:"api,omitempty"`    // KVM_GET_API_VERSION: 12 since Linux 2.6.22
	Path        string `json:"path"`             // the device
	Reason      string `json:"reason,omitempty"` // why it is not usable
	Hint        string `json:"hint,omitempty"`   // the cure
	Vendor      string `json:"vendor,omitempty"` // CPUID vendor string that guests see
	SyncRegs    bool   `json:"syncRegs"`         // registers travel in kvm_run
	ReadonlyMem bool   `json:"readonlyMem"`      // memory that guests cannot write
	MaxVCPUs    int    `json:"maxVcpus,omitempty"`
	Elapsed     string `json:"elapsed,omitempty"` // the time that calibration took
}

// HostTraps is how traps arrive at each privilege level.
type HostTraps struct {
	CPL0 TrapReport `json:"cpl0"`
	CPL3 TrapReport `json:"cpl3"`
}

// TrapReport says how each kind of trap arrives at one privilege level.
type TrapReport struct {
	Int3    string `json:"int3" openapi:"enum=debug-exit|emulation-exit|vector|none|loops|hangs|broken"` // debug-exit, emulation-exit or vector; or how it fails
	Inject  string `json:"inject,omitempty"`                                                             // how a breakpoint of the guest's own is returned to it
	Step    string `json:"step" openapi:"enum=works|vector|none|loops|hangs|broken"`                     // works, or how it fails
	HWBreak string `json:"hwbreak" openapi:"enum=works|vector|none|loops|hangs|broken"`                  // works, or how it fails
	Watch   string `json:"watch" openapi:"enum=works|vector|none|loops|hangs|broken"`                    // works, or how it fails
}
