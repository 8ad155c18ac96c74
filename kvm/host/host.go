package host

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// Report describes how this host's KVM delivers traps, found out by running a
// calibration guest. Its JSON form is part of the API.
type Report struct {
	KVM   KVM   `json:"kvm"`
	Traps Traps `json:"traps"`
}

// KVM describes the KVM device.
type KVM struct {
	Usable   bool   `json:"usable"`
	API      int    `json:"api,omitempty"`      // KVM_GET_API_VERSION, always 12
	Path     string `json:"path"`               // the device
	SyncRegs bool   `json:"syncRegs"`           // registers travel in kvm_run (KVM_CAP_SYNC_REGS)
	Reason   string `json:"reason,omitempty"`   // why it is not usable
	Hint     string `json:"hint,omitempty"`     // what to do about it
	Elapsed  string `json:"elapsed,omitempty"`  // duration of the calibration
	Vendor   string `json:"vendor,omitempty"`   // CPUID vendor string that guests see
	Readonly bool   `json:"readonlyMem"`        // read-only memory slots (KVM_CAP_READONLY_MEM)
	MaxVCPUs int    `json:"maxVcpus,omitempty"` // KVM_CAP_MAX_VCPUS
}

// Traps holds the deliveries at both privilege levels.
type Traps struct {
	CPL0 TrapReport `json:"cpl0"`
	CPL3 TrapReport `json:"cpl3"`
}

// TrapReport says how each kind of trap arrives at one privilege level.
type TrapReport struct {
	Int3    Delivery `json:"int3"`
	Step    Delivery `json:"step"`
	HWBreak Delivery `json:"hwbreak"`
	Watch   Delivery `json:"watch"`
	// Inject says where RIP must be for a #BP that the host injects.
	Inject InjectRIP `json:"inject"`
}

// InjectRIP says where RIP must be when the host injects #BP, so that the
// guest's handler finds the address after the int3 in its frame.
type InjectRIP string

// The places.
const (
	InjectAt    InjectRIP = "at"     // at the int3: the host adds its length
	InjectAfter InjectRIP = "behind" // after it: the host pushes RIP as it is
	InjectNone  InjectRIP = "none"   // injection does not work, or was not tried
)

// Delivery is the way in which a trap reaches the host.
type Delivery string

// The deliveries. For int3 the first three serve probes; for the others only
// DeliveryWorks means that the machine can use it.
const (
	// DeliveryDebugExit: KVM_EXIT_DEBUG with exception 3, RIP at the int3.
	DeliveryDebugExit Delivery = "debug-exit"
	// DeliveryEmulation: KVM_EXIT_INTERNAL_ERROR, suberror 1 (emulation), RIP
	// at the int3, first instruction byte cc.
	DeliveryEmulation Delivery = "emulation-exit"
	// DeliveryVector: the guest's own IDT gets the exception; the host sees it
	// only where the guest forwards it (port 0xf3 or 0xf1).
	DeliveryVector Delivery = "vector"
	// DeliveryNone: no trap was delivered, and the guest ran on.
	DeliveryNone Delivery = "none"
	// DeliveryWorks: KVM_EXIT_DEBUG with the right address and DR6.
	DeliveryWorks Delivery = "works"
	// DeliveryLoops: debug exits at the same RIP for ever.
	DeliveryLoops Delivery = "loops"
	// DeliveryHangs: KVM_RUN did not come back until it was kicked.
	DeliveryHangs Delivery = "hangs"
	// DeliveryBroken: something else; the log has the exit.
	DeliveryBroken Delivery = "broken"
)

// Breakpoints reports whether an int3 that arrives in this way can serve a
// probe. forwards is whether the guest forwards vector 3 to the host.
func (d Delivery) Breakpoints(forwards bool) bool {
	switch d {
	case DeliveryDebugExit, DeliveryEmulation:
		return true
	case DeliveryVector:
		return forwards
	}
	return false
}

// CPL returns the report for privilege level 0, or for any other level that
// of CPL3.
func (t Traps) CPL(cpl uint8) TrapReport {
	if cpl == 0 {
		return t.CPL0
	}
	return t.CPL3
}

// NoBreakReason returns why an int3 in kernel or user code does not reach the
// engine on this host, or "" if it does. forwards is whether the guest forwards
// vector 3.
func (h Report) NoBreakReason(user, forwards bool) string {
	cpl, name := uint8(0), "kernel"
	if user {
		cpl, name = 3, "user"
	}
	switch d := h.Traps.CPL(cpl).Int3; {
	case d.Breakpoints(forwards):
		return ""
	case d == DeliveryVector:
		return fmt.Sprintf("this host delivers an int3 in %s code to the guest's own vector 3, and the guest has no stub that hands it to the host (out %%al,$%#x; iretq)", name, guest.PortBreakpoint)
	default:
		return fmt.Sprintf("this host does not deliver an int3 in %s code (calibration: %s)", name, d)
	}
}

// NoLinuxReason returns why a Linux guest cannot boot on this host, or "" if it can.
func (h Report) NoLinuxReason() string {
	if h.Traps.CPL0.Int3 != DeliveryEmulation {
		return ""
	}
	// KVM's emulator has no cmpxchg16b, xrstor and fwait, and kvm_pvm does not allow hiding
	// them from the guest (docs/linux.md).
	return "this host emulates the kernel code of guests instruction by instruction; after some minutes of boot, Linux executes an instruction that KVM does not emulate"
}

// NoWatchReason says why this host cannot watch accesses to a variable of the
// kernel's or of a user's, by the debug registers or, with emulate, by other
// means: "" where it can.
func (h Report) NoWatchReason(a probe.Access, user, emulate bool) string {
	if emulate {
		if a&probe.AccessRead == 0 && !h.KVM.Readonly {
			return "this host has no read-only memory (KVM_CAP_READONLY_MEM)"
		}
		return ""
	}
	// A variable of the kernel's is accessed by the kernel; one of a user's, by
	// either.
	levels := []uint8{0}
	if user {
		levels = []uint8{0, 3}
	}
	for _, cpl := range levels {
		r := h.Traps.CPL(cpl)
		if a == probe.AccessExec {
			if user && cpl == 0 {
				continue
			}
			if r.HWBreak != DeliveryWorks {
				return fmt.Sprintf("it does not deliver execute breakpoints of the debug registers at CPL%d (calibration: %s); --emulate uses a breakpoint instead", cpl, r.HWBreak)
			}
			if r.Int3 != DeliveryDebugExit {
				// KVM's emulator looks at the breakpoints and not at RFLAGS.RF: the
				// same instruction would be reported for ever.
				return fmt.Sprintf("it emulates code at CPL%d, and reports the same execute breakpoint again when the guest resumes; --emulate uses a breakpoint instead", cpl)
			}
		} else if r.Watch != DeliveryWorks {
			return fmt.Sprintf("it does not deliver watchpoints of the debug registers at CPL%d (calibration: %s); --emulate protects the page instead", cpl, r.Watch)
		}
	}
	return ""
}
