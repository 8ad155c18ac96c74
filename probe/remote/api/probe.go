package api

// ProbeSpec asks for one probe.
type ProbeSpec struct {
	// Def is one line of the kprobe_events language: "p:myread vfs_read
	// fd=%di:s32". A deletion, as "-:myread", takes probes away; what else is asked for
	// says nothing then. A line without a command does nothing.
	Def string `json:"def"`

	// Disabled registers the probe without arming it.
	Disabled bool `json:"disabled,omitempty"`

	// Post also reports the registers after the probed instruction, as a
	// second record with stage "post". The definition language has no form for
	// it.
	Post bool `json:"post,omitempty"`

	// Regs adds the registers to the first record of a hit too.
	Regs bool `json:"regs,omitempty"`

	// Stack adds to each hit where the guest stands and its callers. It is not for
	// the second record of Post.
	Stack bool `json:"stack,omitempty"`

	// Space binds the probe to the address space with this top-level page table
	// (CR3); 0 stands for all.
	Space Hex `json:"space,omitempty"`

	// Filter is an expression over the definition's values and the fields of every
	// record; a hit for which it is false counts as filtered. "count > 100 && fd ==
	// 3". docs/definitions.md has the language.
	Filter string `json:"filter,omitempty"`

	// OnHost has the probe served at an exit, although it could be in the guest.
	OnHost bool `json:"onHost,omitempty"`

	// Stop stops the vCPU at each hit that passes the filter, StopVCPU, or with it all others, StopAll: at the probed
	// instruction, of a return probe where the function returns to. POST /v1/guest/resume lets it go on.
	Stop string `json:"stop,omitempty"`

	// AtRets makes an r definition probes of one event at the instructions by which its
	// function is left, its returns and jumps to other functions, instead of a probe
	// that replaces the return address. Registers and $retval are those before such
	// an instruction; arguments from the entry there are none.
	AtRets bool `json:"atRets,omitempty"`

	// Emulate has a watch (w:...) served by protecting the page, or by a breakpoint
	// for x, instead of by a debug register.
	Emulate bool `json:"emulate,omitempty"`

	// Args makes a p definition at a function's entry a jprobe whose records have
	// the function's first Args arguments (System V ABI: six in registers, the
	// others on the stack), 1 to MaxArgs, behind those that Def names. Those that
	// Def itself has, as $argN of any type, are not repeated.
	Args int `json:"args,omitempty"`

	// Mirror makes a p definition at a function's entry a jprobe whose mirror, the
	// function of the guest with this name, runs before the probed one, with the
	// same registers and stack. It ends in MirrorEnd ("" = jprobe_return); then
	// registers and MirrorStack bytes of the stack (0 = 64, at most 4096) are put
	// back, and the probed function runs.
	Mirror      string `json:"mirror,omitempty"`
	MirrorEnd   string `json:"mirrorEnd,omitempty"`
	MirrorStack int    `json:"mirrorStack,omitempty"`

	// Strict refuses a Def whose place is a pattern, as "vfs_*", when one of the functions
	// that match cannot be probed. Otherwise those are left out, and the answer says so.
	Strict bool `json:"strict,omitempty"`

	// Override makes a p definition's function return a value without running, which
	// changes what the guest does: Unsafe allows it.
	Override *Override `json:"override,omitempty"`
	Unsafe   bool      `json:"unsafe,omitempty"`

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

// PatchProbe is the body of PATCH /v1/probes/{probe}: one of the two.
type PatchProbe struct {
	Enabled *bool   `json:"enabled,omitempty"`
	Filter  *string `json:"filter,omitempty"` // another filter; "" and "0": none. Counts go on
}

// PatchProbes is the body of PATCH /v1/probes, for all of Names or none; without Names
// for all probes.
type PatchProbes struct {
	PatchProbe
	Names []string `json:"names,omitempty"`
}

// ProbeList is the answer wherever probes are listed or created.
type ProbeList struct {
	Probes []Probe `json:"probes"`

	// Detached are the probes that deletions have taken away, with their final counts.
	Detached []Probe `json:"detached,omitempty"`

	// Skipped are the functions that a pattern for a place has left out.
	Skipped []Skipped `json:"skipped,omitempty"`
}

// Skipped is a definition for one of the functions that a pattern stands for, and why it
// was left out.
type Skipped struct {
	Def   string `json:"def"`
	Error Error  `json:"error"`
}

// Kinds are the letters of Probe.Kind: "k" a kprobe on kernel code, "r" a
// function's return, "j" a jprobe, "u" a kprobe on CPL3 code, "w" a watch. Of the
// other kinds Probe.User tells which code they are on.
const Kinds = "krjuw"

// Values of Probe.Origin.
const (
	OriginStart    = "start"    // by the daemon's flags or its configuration
	OriginFleet    = "fleet"    // by a definition of the fleet
	OriginRestored = "restored" // by a client of the daemon before (--state), or of the one that saved the guest (--restore)
)

// Probe describes one attached probe.
type Probe struct {
	ID     uint64 `json:"id"`   // never used again by this daemon
	Name   string `json:"name"` // group/event
	Def    string `json:"def"`  // the definition in the form in which it reads back
	Kind   string `json:"kind"` // one of Kinds
	Symbol string `json:"symbol,omitempty"`
	Offset uint64 `json:"offset"`
	Size   uint64 `json:"size,omitempty"` // bytes of the symbol

	// Of a probe at the entry of a function: those that the compiler has made of it
	// (NAME.part.0, NAME.cold, NAME.constprop.0), which this probe is not on.
	Parts []string `json:"parts,omitempty"`

	Addr Hex  `json:"addr"`
	User bool `json:"user"` // in CPL3 text

	Enabled bool `json:"enabled"` // as asked for
	Armed   bool `json:"armed"`   // the site is patched
	Gone    bool `json:"gone"`    // the code went away
	Pending bool `json:"pending"` // it is on a module that is not there: it is armed when that comes
	Changed bool `json:"changed"` // the guest has changed the instruction: not armed until the image's bytes are back
	Post    bool `json:"post"`
	Regs    bool `json:"regs"`
	Stack   bool `json:"stack"`
	Stay    bool `json:"stay"`

	Origin string `json:"origin,omitempty"` // one of these; "": a client has attached it

	Stop string `json:"stop,omitempty"` // what its hits stop: vcpu or all

	Space Hex `json:"space,omitempty"` // the only address space it is for (CR3)

	Filter  string       `json:"filter,omitempty"`
	Program *ProgramInfo `json:"program,omitempty"`
	Runs    string       `json:"runs,omitempty"`   // where its handlers run now: RunsInGuest or RunsOnHost
	OnHost  string       `json:"onHost,omitempty"` // why on the host

	Override *ProbeOverride `json:"override,omitempty"`

	// Of a jprobe with a mirror: the mirror, and the bytes of stack that are put
	// back behind it.
	Mirror      string `json:"mirror,omitempty"`
	MirrorStack int    `json:"mirrorStack,omitempty"`

	// Of a watch: the accesses (r, w, rw, x), how many bytes, and what it costs.
	Access string `json:"access,omitempty"`
	Len    int    `json:"len,omitempty"`
	Cost   string `json:"cost,omitempty"`

	// Of a return probe: how many calls it can follow at a time, how many it
	// follows now, and the most it ever did.
	MaxActive int `json:"maxActive,omitempty"`
	InUse     int `json:"inUse,omitempty"`
	HighWater int `json:"highWater,omitempty"`

	Plan string `json:"plan"` // how the displaced instruction runs: emulate, boost, step or in_place; what serves a watch: debug_register, page or breakpoint
	Insn string `json:"insn"` // its bytes, hexadecimal

	// Optimized: the site has a jump to a detour instead of an int3, of which it
	// displaces Region bytes. Otherwise Unoptimized says why it has none.
	Optimized   bool         `json:"optimized"`
	Region      int          `json:"region,omitempty"`
	Unoptimized *Unoptimized `json:"unoptimized,omitempty"`

	Stats Stats `json:"stats"`
}

// Stats are the counters of one probe. Hits = Handled + Filtered + Missed, in
// total and per vCPU, at any time.
type Stats struct {
	Counts

	// Of a return probe: handled = returns + abandoned + Probe.InUse while it is
	// attached, and in the answer to its detaching handled = returns + abandoned +
	// underWay. Nobody knows the vCPU of these.
	Abandoned uint64 `json:"abandoned"` // activations that were left in another way
	UnderWay  uint64 `json:"underWay"`  // at detach: they return without the probe

	Events uint64 `json:"events"` // records made, whether or not anyone was there to read them
	Lost   uint64 `json:"lost"`   // of these: found no room in a vCPU's ring

	// Rejected counts the returns, and the accesses to a watched variable, whose
	// record the filter ended. They are handled hits.
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

	Returns uint64 `json:"returns"` // of a return probe: activations that have returned
}

// CPUStats are the counters of one probe on one vCPU.
type CPUStats struct {
	CPU int `json:"cpu"`
	Counts
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
