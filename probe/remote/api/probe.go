package api

// ProbeSpec asks for one probe.
type ProbeSpec struct {
	// Def is one line of the kprobe_events language: "p:myread vfs_read fd=%di:s32". A deletion, as "-:myread",
	// detaches probes; the other fields mean nothing then. A line without a command does nothing.
	Def string `json:"def"`

	// Disabled registers the probe without arming it.
	Disabled bool `json:"disabled,omitempty"`

	// Post also reports the registers after the probed instruction, as a
	// second record with stage "post". The definition language has no form for
	// it.
	Post bool `json:"post,omitempty"`

	// Regs reports the registers with every hit.
	Regs bool `json:"regs,omitempty"`

	// Stack reports with every hit the address of the guest and its callers. It is not for the second record of Post.
	Stack bool `json:"stack,omitempty"`

	// Space binds the probe to the address space with this top-level page table (CR3); 0 means all.
	Space Hex `json:"space,omitempty"`

	// Filter is an expression over the definition's values and the fields of every
	// record; a hit for which it is false counts as filtered. "count > 100 && fd ==
	// 3". docs/definitions.md has the language.
	Filter string `json:"filter,omitempty" openapi:"maxLength=4095"`

	// OnHost serves the probe at an exit, even if it could be served in the guest.
	OnHost bool `json:"onHost,omitempty"`

	// Stop stops the vCPU at each hit that passes the filter (StopVCPU), or all vCPUs (StopAll): at the probed
	// instruction, or for a return probe at the return address. POST /v1/guest/resume resumes them.
	Stop string `json:"stop,omitempty"`

	// AtRets makes an r definition probes of one event at the function's returns and jumps to other functions, and
	// leaves the return address alone. Registers and $retval are the ones before such an instruction; arguments from
	// the entry are not available.
	AtRets bool `json:"atRets,omitempty"`

	// Emulate has a watch (w:...) served by protecting the page, or by a breakpoint
	// for x, instead of by a debug register.
	Emulate bool `json:"emulate,omitempty"`

	// Args makes a p definition at a function's entry a jprobe. Its records have the function's first Args arguments
	// (System V ABI: six in registers, the others on the stack), 1 to MaxArgs, after the arguments that Def names.
	// Arguments that Def itself has, as $argN of any type, are not repeated.
	Args int `json:"args,omitempty" openapi:"minimum=0,maximum=32"`

	// Mirror makes a p definition at a function's entry a jprobe: this function of the guest runs before the probed
	// one, with the same registers and stack. When it ends in MirrorEnd, registers and MirrorStack bytes of the stack
	// are restored, and the probed function runs.
	Mirror string `json:"mirror,omitempty"`

	// MirrorEnd is the function that the mirror ends in; "" means jprobe_return.
	MirrorEnd string `json:"mirrorEnd,omitempty" openapi:"default=jprobe_return"`

	// MirrorStack is the number of bytes of the stack that are restored after the mirror, at most 4096; 0 means 64.
	MirrorStack int `json:"mirrorStack,omitempty" openapi:"minimum=0,maximum=4096"`

	// Strict rejects a Def whose place is a pattern, as "vfs_*", if one of the matching functions cannot be probed.
	// Otherwise such functions are left out, and the answer lists them.
	Strict bool `json:"strict,omitempty"`

	// Override makes a p definition's function return a value without running, which
	// changes what the guest does: Unsafe allows it.
	Override *Override `json:"override,omitempty"`

	// Unsafe allows the probe to change the behavior of the guest, by Override.
	Unsafe bool `json:"unsafe,omitempty"`

	// Stay keeps a probe that was attached together with a stream when the
	// stream ends. Probes attached by POST /v1/probes always stay.
	Stay bool `json:"stay,omitempty"`
}

// The values of ProbeSpec.Stop.
const (
	StopVCPU = "vcpu"
	StopAll  = "all"
)

// MaxArgs is the largest ProbeSpec.Args.
const MaxArgs = 32

// CreateProbes is the body of POST /v1/probes: either one ProbeSpec in place,
// or several in Probes, of which all are carried out, in their order, or none.
type CreateProbes struct {
	ProbeSpec
	Probes []ProbeSpec `json:"probes,omitempty"`
}

// PatchProbe is the body of PATCH /v1/probes/{probe}: Enabled or Filter.
type PatchProbe struct {
	Enabled *bool `json:"enabled,omitempty"`

	// Another filter for definitions, which replaces the old one while the guest is stopped for a moment; "" and "0"
	// remove it. Counts continue.
	Filter *string `json:"filter,omitempty"`
}

// PatchProbes is the body of PATCH /v1/probes: Enabled or Filter, for all of Names or none; without Names for all
// probes.
type PatchProbes struct {
	PatchProbe
	Names []string `json:"names,omitempty"` // the probes, as the parameter probe of GET takes them; empty: all
}

// ProbeList is the answer wherever probes are listed or created.
type ProbeList struct {
	Probes []Probe `json:"probes"`

	// Detached are the probes that deletions have detached, with their final counts.
	Detached []Probe `json:"detached,omitempty"`

	// Skipped are the functions that a pattern for a place has left out.
	Skipped []Skipped `json:"skipped,omitempty"`

	// Notes are, for an object file, the differences from the file: sizes of maps,
	// and maps that are not pinned.
	Notes []string `json:"notes,omitempty"`
}

// Skipped is a definition for one of the functions that a pattern for a place matches, and why that was left out.
type Skipped struct {
	Def   string `json:"def"`
	Error Error  `json:"error"`
}

// Kinds are the letters of Probe.Kind: "k" a kprobe on kernel code, "r" a
// function's return, "j" a jprobe, "u" a kprobe on CPL3 code, "w" a watch, "t" a tracepoint of the guest's kernel. Of the
// other kinds Probe.User tells which code they are on.
const Kinds = "krjuwt"

// Values of Probe.Origin.
const (
	OriginStart    = "start"    // by the daemon's flags or its configuration
	OriginFleet    = "fleet"    // by a definition of the fleet
	OriginRestored = "restored" // by a client of the daemon before (--state), or of the one that saved the guest (--restore)
)

// Probe describes one attached probe.
type Probe struct {
	ID     uint64 `json:"id"`                              // never used again by this daemon
	Name   string `json:"name"`                            // group/event
	Def    string `json:"def"`                             // the definition in the form in which it reads back
	Kind   string `json:"kind" openapi:"enum=k|r|j|u|w|t"` // a letter of Kinds: k for a kprobe, r for a return probe, j for a jprobe, u for a kprobe on CPL3 code, w for a watch, t for a tracepoint
	Symbol string `json:"symbol,omitempty"`
	Offset uint64 `json:"offset"`
	Size   uint64 `json:"size,omitempty"` // bytes of the symbol

	// Of a probe at the entry of a function: other functions that the compiler has made from it (NAME.part.0,
	// NAME.cold, NAME.constprop.0), which this probe does not cover.
	Parts []string `json:"parts,omitempty"`

	Addr Hex  `json:"addr"`
	User bool `json:"user"` // in CPL3 text

	Enabled bool `json:"enabled"` // as asked for
	Armed   bool `json:"armed"`   // the site is patched
	Gone    bool `json:"gone"`    // the code no longer exists

	// The tracepoint that the probe is at.
	Tracepoint string `json:"tracepoint,omitempty"`

	// Its place is MODULE:SYMBOL and that module is not loaded: the probe is armed when the module is, and has no
	// address until then. Or it is at a tracepoint that the guest's kernel has not switched on yet.
	Pending bool `json:"pending"`
	Changed bool `json:"changed"` // the guest has changed the instruction: the probe is not armed until the image's bytes are back
	Post    bool `json:"post"`
	Regs    bool `json:"regs"`
	Stack   bool `json:"stack"`
	Stay    bool `json:"stay"`

	// Start: the daemon has attached it when it started; fleet: a definition of its fleet; restored: a client of an
	// earlier daemon (--state), or of the daemon that saved the guest (--restore); absent: a client of this daemon.
	Origin string `json:"origin,omitempty" openapi:"enum=start|fleet|restored"`

	Stop string `json:"stop,omitempty"` // what its hits stop: vcpu or all

	Space Hex `json:"space,omitempty"` // the only address space it is for (CR3)

	Filter  string       `json:"filter,omitempty"`
	Program *ProgramInfo `json:"program,omitempty"`
	Runs    string       `json:"runs,omitempty" openapi:"enum=guest|host"` // where its handlers run now: RunsInGuest or RunsOnHost
	OnHost  string       `json:"onHost,omitempty"`                         // why they run on the host

	Override *ProbeOverride `json:"override,omitempty"`

	Mirror      string `json:"mirror,omitempty"`      // of a jprobe: the function that runs before the probed one
	MirrorStack int    `json:"mirrorStack,omitempty"` // of a jprobe: the bytes of the stack that are restored after Mirror

	Access string `json:"access,omitempty" openapi:"enum=r|w|rw|x"` // of a watch: r, w, rw or x
	Len    int    `json:"len,omitempty"`                            // of a watch: the number of bytes
	Cost   string `json:"cost,omitempty"`                           // of a watch: its cost

	MaxActive int `json:"maxActive,omitempty"` // of a return probe: the number of calls that it can follow at a time
	InUse     int `json:"inUse,omitempty"`     // of a return probe: the calls that it follows now: handled - returns - abandoned
	HighWater int `json:"highWater,omitempty"` // of a return probe: the largest InUse ever

	// How the displaced instruction runs: emulate, boost, step or in_place; or how a watch is served: debug_register,
	// page or breakpoint; empty while the probe is pending.
	Plan string `json:"plan" openapi:"enum=emulate|boost|step|in_place|debug_register|page|breakpoint|"`
	Insn string `json:"insn"` // the displaced instruction, hexadecimal

	Optimized   bool         `json:"optimized"`             // the site has a jump to a detour instead of an int3
	Region      int          `json:"region,omitempty"`      // the bytes that the jump displaces
	Unoptimized *Unoptimized `json:"unoptimized,omitempty"` // why the site has no jump

	Stats Stats `json:"stats"`
}

// Stats are the counters of one probe. Hits = Handled + Filtered + Missed, in total and per vCPU, at any time. Of a
// return probe also Handled = Returns + Abandoned + Probe.InUse while it is attached, and in the answer to its
// detaching Handled = Returns + Abandoned + UnderWay.
type Stats struct {
	Counts

	Abandoned uint64 `json:"abandoned"` // calls that did not end with a return
	UnderWay  uint64 `json:"underWay"`  // calls that were running when the probe was detached: they return without it

	Events uint64 `json:"events"` // records made while a stream was open
	Lost   uint64 `json:"lost"`   // of these the records that found no room in a vCPU's ring

	// Rejected counts returns, and accesses to a watched variable, whose record the filter has dropped. They are
	// handled hits.
	Rejected uint64 `json:"rejected"`

	CPUs []CPUStats `json:"cpus,omitempty"`
}

// Counts are what the engine counts for a probe.
type Counts struct {
	Hits        uint64 `json:"hits"`
	Handled     uint64 `json:"handled"`
	Filtered    uint64 `json:"filtered"`
	Missed      uint64 `json:"missed"`      // came from inside a handler, or found no instance: the kernel's nmissed
	Elsewhere   uint64 `json:"elsewhere"`   // besides Hits: arrivals in other address spaces than Probe.Space
	Skipped     uint64 `json:"skipped"`     // besides Hits: a newer probe on the site took the hit
	SecondExits uint64 `json:"secondExits"` // exits beside the one of each hit
	Faults      uint64 `json:"faults"`      // of the probed instruction
	Panics      uint64 `json:"panics"`      // of the probe's handlers
	BadAccesses uint64 `json:"badAccesses"` // guest memory that its handlers could not access

	Returns uint64 `json:"returns"` // of a return probe: calls that have returned, on the vCPU of the return
}

// CPUStats are the counters of one probe on one vCPU. The vCPU of calls that end without a return is not known.
type CPUStats struct {
	CPU int `json:"cpu"`
	Counts
}

// Knobs are the engine's global switches.
type Knobs struct {
	Enabled *bool `json:"enabled"` // false: every probe is disarmed, none forgotten
}

// Blacklist lists the ranges that cannot be probed.
type Blacklist struct {
	Entries []BlacklistEntry `json:"entries"`
}

// BlacklistEntry is one half-open range that cannot be probed.
type BlacklistEntry struct {
	Start  Hex    `json:"start"`
	End    Hex    `json:"end"`
	Symbol string `json:"symbol"`
	Reason string `json:"reason"`
}
