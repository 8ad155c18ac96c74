package machine

import "github.com/guestprobe/guestprobe/guest"

// Phase is the stage of a machine's life.
type Phase string

// The phases. In Created, Exited and Crashed the vCPUs rest, as in Paused; only
// Reset leaves Exited and Crashed.
const (
	PhaseCreated Phase = "created" // parked before the first instruction
	PhaseRunning Phase = "running"
	PhasePaused  Phase = "paused"
	PhaseExited  Phase = "exited"  // wrote an exit code to port 0xf4
	PhaseCrashed Phase = "crashed" // State.Crash describes it
	PhaseClosed  Phase = "closed"
)

// over reports whether the guest has ended.
func (p Phase) over() bool { return p == PhaseExited || p == PhaseCrashed || p == PhaseClosed }

// State is a snapshot of a machine.
type State struct {
	Phase    Phase
	ExitCode uint32       // with PhaseExited
	Exit     *ExitReport  // with PhaseExited: more about it
	Crash    *CrashReport // with PhaseCrashed
	Checks   CheckReports // self-check failures that the guest reported
	VCPUs    []VCPUState
	Outside  bool // the guest is of another VMM: with PhaseExited, that VMM has ended, and there is no exit code
}

// ExitReport describes an exit. It is taken on the vCPU that asked for it.
type ExitReport struct {
	CPU     int
	Symbol  string   // where, name+0xoffset, or ""
	Console []string // its last lines
}

// CheckReports counts the guest's writes to the self-check port (0xf7).
type CheckReports struct {
	Count uint64 // all since boot
	Last  uint32 // the newest code
}

// VCPUActivity is the activity of a vCPU.
type VCPUActivity string

// The activities of a vCPU.
const (
	VCPURunning VCPUActivity = "running" // in guest mode or handling an exit
	VCPUIdle    VCPUActivity = "idle"    // hlt with interrupts on
	VCPUHalted  VCPUActivity = "halted"  // hlt with interrupts off: a safe point, or the end
	VCPUStopped VCPUActivity = "stopped" // at a hit, by a handler (probe.Context.Stop), or after a step
	VCPUParked  VCPUActivity = "parked"  // kept at rest by the machine: paused, not started, ended
)

// VCPUState is a snapshot of one vCPU. RIP, Symbol, CPL and Space are valid when
// the vCPU is not running, else zero.
type VCPUState struct {
	ID       int
	Activity VCPUActivity
	RIP      guest.GVA
	Symbol   string // name+0xoffset, or ""
	CPL      uint8
	Space    guest.GPA // its top-level page table, as in Kprobe.Space
	Stop     *Stop     // why it is stopped, or nil
}
