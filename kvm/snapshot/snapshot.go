package snapshot

import (
	"bytes"
	"encoding/json"
	"sort"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
)

// Snapshot is a machine between two instructions of each of its vCPUs. Memory
// and registers are the guest's own, without anything of an engine's. It is not
// changed once it is made.
type Snapshot struct {
	Config Config
	CPUID  []kvm.CPUIDEntry // the leaves that the host could show to the guest
	Board  kvm.Board        // of a Linux kernel's machine
	CPUs   []CPU            // by number
	Memory []Run            // ascending, apart from one another; all else is zeros

	// Attached describes the attachments to the guest, in a form of the owner's.
	Attached json.RawMessage
}

// Config describes the machine.
type Config struct {
	ID      string `json:"id"`                // one for each snapshot
	Image   string `json:"image,omitempty"`   // file
	Debug   string `json:"debug,omitempty"`   // file of its debug information
	Symbols string `json:"symbols,omitempty"` // file of its names
	SHA256  string `json:"sha256"`            // of the image
	VCPUs   int    `json:"vcpus"`
	Memory  uint64 `json:"memory"` // bytes of RAM
	Cmdline string `json:"cmdline,omitempty"`
	TickUS  int64  `json:"tickUs"` // period of the timer interrupt; 0: none
	Started bool   `json:"started"`

	// Ended is "exited" or "crashed" for a guest that cannot resume, but can be
	// inspected. ExitCode belongs to the first; Crash, in a form of the owner's,
	// to the second.
	Ended    string          `json:"ended,omitempty"`
	ExitCode uint32          `json:"exitCode,omitempty"`
	Crash    json.RawMessage `json:"crash,omitempty"`

	Activity []string `json:"activity,omitempty"` // the activity of each vCPU, in a word

	// Inside describes, in words, the vCPUs and tasks of an ended guest that were
	// in the handlers of a probe. Their registers are the handlers' registers, at
	// the address of the probe.
	Inside []string `json:"inside,omitempty"`
	Vendor string   `json:"vendor"` // of the processor, by CPUID

	LeftOut []string `json:"leftOut,omitempty"` // attachments that are not in the snapshot, in words

	Checks  uint64 `json:"checks"` // self-checks that the guest has reported as failed
	LastBad uint32 `json:"lastBad,omitempty"`

	RAM   []Range `json:"ram"`             // where the guest's memory is, ascending
	Linux *Linux  `json:"linux,omitempty"` // of a Linux kernel

	Tables int `json:"tables"` // bytes of page tables in use, out of the memory that was set aside for them
	// KernelFar and UserFar are the pages, by address, that the guest's tables map
	// for an engine; they are empty.
	KernelFar map[guest.GVA]guest.GPA `json:"kernelFar,omitempty"`
	UserFar   map[guest.GVA]guest.GPA `json:"userFar,omitempty"`
}

// Initrd returns the file of a Linux kernel's initial RAM disk, or "".
func (c *Config) Initrd() string {
	if c.Linux == nil {
		return ""
	}
	return c.Linux.Initrd
}

// Linux is the additional state of a Linux kernel's machine.
type Linux struct {
	CoreInfo string `json:"vmcoreinfo,omitempty"` // the kernel's information for readers of its memory (its admin-guide/kdump/vmcoreinfo.rst)
	Initrd   string `json:"initrd,omitempty"`     // file
	// InitrdSHA256 is that of the file's bytes: another file of that name is not the guest's.
	InitrdSHA256 string          `json:"initrdSha256,omitempty"`
	Disks        []Disk          `json:"disks,omitempty"`
	Slide        uint64          `json:"slide"`         // of the kernel's addresses
	Image        uint64          `json:"image"`         // bytes of the kernel's image that its own mapping has
	PMD          guest.GPA       `json:"pmd,omitempty"` // the kernel's tables, in which an engine's memory is mapped; 0: not mapped
	PUD          guest.GPA       `json:"pud,omitempty"`
	Root         guest.GPA       `json:"root,omitempty"`   // of the kernel's own page tables; 0: they are not known
	Tables       guest.GPA       `json:"engineTables"`     // where the engine's are
	Used         uint64          `json:"engineTablesUsed"` // bytes of the tables in use
	Past         bool            `json:"past"`             // the kernel was past its boot, as far as the engine is concerned
	Devices      json.RawMessage `json:"devices"`          // in a form of their owner's
}

// Range is memory in a row, whole pages.
type Range struct {
	Base guest.GPA `json:"base"`
	Size uint64    `json:"size"`
}

// Disk is one of the guest's disks. Its contents are not in the snapshot.
type Disk struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Tick returns the period of the timer interrupt, 0 for none.
func (c *Config) Tick() time.Duration { return time.Duration(c.TickUS) * time.Microsecond }

// CPU is one vCPU.
type CPU struct {
	Regs   kvm.Regs
	Sregs  kvm.Sregs // without the pending interrupt, which is in Events
	Debug  kvm.DebugRegs
	Events kvm.Events
	XCRs   kvm.XCRs
	State  kvm.MPState
	Asleep bool      // in hlt; RIP is after it
	Tick   bool      // a timer interrupt is due
	LAPIC  kvm.LAPIC // where there are interrupt controllers
	XSave  []byte
	MSRs   []kvm.MSR
}

// Run is some pages of memory, in a row: at most runSize bytes.
type Run struct {
	At    guest.GPA
	Bytes []byte
}

// Find returns the bytes from pa on, to the end of the run that contains them.
// It returns nil for zeros.
func Find(runs []Run, pa guest.GPA) []byte {
	i := sort.Search(len(runs), func(i int) bool { return runs[i].At > pa }) - 1
	if i < 0 || uint64(pa-runs[i].At) >= uint64(len(runs[i].Bytes)) {
		return nil
	}
	return runs[i].Bytes[pa-runs[i].At:]
}

// runSize bounds a run.
const runSize = 1 << 20

// AppendRuns adds the pages of b, which is memory from at on, to runs. It leaves
// out pages of zeros, and copies the others. Existing runs are at lower
// addresses.
func AppendRuns(runs []Run, at guest.GPA, b []byte) []Run {
	for len(b) > 0 {
		n := 0 // bytes of pages that are not zero
		for n < min(len(b), runSize) && !bytes.Equal(b[n:n+guest.PageSize], zeroPage[:]) {
			n += guest.PageSize
		}
		if n > 0 {
			runs = append(runs, Run{At: at, Bytes: bytes.Clone(b[:n])})
		} else {
			n = guest.PageSize
		}
		b, at = b[n:], at+guest.GPA(n)
	}
	return runs
}

var zeroPage [guest.PageSize]byte

// Len returns how many bytes of memory the snapshot has.
func (s *Snapshot) Len() (n int) {
	for _, r := range s.Memory {
		n += len(r.Bytes)
	}
	return n
}
