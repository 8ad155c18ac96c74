package snapshot

import (
	"encoding/json"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
)

// Snapshot is a machine between two instructions of each of its vCPUs. What is in memory and
// registers is the guest's own: it has nothing of an engine's. It is not changed once it is made.
type Snapshot struct {
	Config Config
	CPUID  []kvm.CPUIDEntry // what the host could show to the guest
	CPUs   []CPU            // by number
	Memory []Run            // ascending, apart from one another; all else is zeros

	// Attached is what was on the guest from outside, in a form of its owner's.
	Attached json.RawMessage
}

// Config says what machine it was.
type Config struct {
	ID      string `json:"id"` // one for each snapshot
	Image   string `json:"image,omitempty"`
	SHA256  string `json:"sha256"` // of the image
	VCPUs   int    `json:"vcpus"`
	Memory  uint64 `json:"memory"` // bytes of RAM
	Cmdline string `json:"cmdline,omitempty"`
	TickUS  int64  `json:"tickUs"` // period of the timer interrupt; 0: none
	Started bool   `json:"started"`
	Vendor  string `json:"vendor"` // of the processor, by CPUID

	LeftOut []string `json:"leftOut,omitempty"` // what was attached and is not in the snapshot, in words

	Checks  uint64 `json:"checks"` // self-checks that the guest has reported as failed
	LastBad uint32 `json:"lastBad,omitempty"`

	Tables int `json:"tables"` // bytes of page tables in use of what was set aside for them
	// KernelFar and UserFar are the pages, by address, that the guest's tables map for an engine; nothing is in them.
	KernelFar map[guest.GVA]guest.GPA `json:"kernelFar,omitempty"`
	UserFar   map[guest.GVA]guest.GPA `json:"userFar,omitempty"`
}

// Tick returns the period of the timer interrupt, 0 for none.
func (c *Config) Tick() time.Duration { return time.Duration(c.TickUS) * time.Microsecond }

// CPU is one vCPU.
type CPU struct {
	Regs   kvm.Regs
	Sregs  kvm.Sregs // without the interrupt that is on its way: Events has it
	Debug  kvm.DebugRegs
	Events kvm.Events
	XCRs   kvm.XCRs
	State  kvm.MPState
	Asleep bool // in hlt, behind which RIP is
	Tick   bool // a timer interrupt is due
	XSave  []byte
	MSRs   []kvm.MSR
}

// Run is some pages of memory, in a row: at most RunSize bytes.
type Run struct {
	At    guest.GPA
	Bytes []byte
}

// RunSize bounds a run.
const RunSize = 1 << 20

// Len returns how many bytes of memory the snapshot has.
func (s *Snapshot) Len() (n int) {
	for _, r := range s.Memory {
		n += len(r.Bytes)
	}
	return n
}
