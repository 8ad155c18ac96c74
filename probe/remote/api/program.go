package api

import "encoding/json"

// AttachProgram is the body of POST /v1/programs: an object file as clang makes
// them for eBPF. All of its programs are attached, or none.
type AttachProgram struct {
	Object      []byte            `json:"object"`                // the file, or a program of the host that carries one; base64; at most 16 MiB
	Section     string            `json:"section,omitempty"`     // only the programs in this section, or these: names and patterns with commas between; "" = all
	At          string            `json:"at,omitempty"`          // where the only program goes, instead of what its section says, or NAME=PLACE,... for what sections name
	SkipMissing bool              `json:"skipMissing,omitempty"` // leave out programs at functions that the guest does not have
	Set         map[string]string `json:"set,omitempty"`         // constants (.rodata) by name: numbers, true and false, names of enumerations, texts
	OnHost      bool              `json:"onHost,omitempty"`      // at an exit, although they could run in the guest
	Disabled    bool              `json:"disabled,omitempty"`    // register without arming
	Space       Hex               `json:"space,omitempty"`       // as in ProbeSpec
	Strict      bool              `json:"strict,omitempty"`      // refuse programs with warnings
	Unsafe      bool              `json:"unsafe,omitempty"`      // programs may change what the guest does: override_return, set_reg, poke
}

// Places in Probe.Runs.
const (
	RunsInGuest = "guest" // in the detour of an optimized site, without an exit
	RunsOnHost  = "host"  // at an exit
)

// ProgramInfo is a probe's eBPF program.
type ProgramInfo struct {
	Name    string   `json:"name"`    // of the function in the object file
	Section string   `json:"section"` // "kprobe/vfs_read"
	Maps    []string `json:"maps"`    // by MapInfo.Name
	Runs    uint64   `json:"runs"`    // begun
	InGuest uint64   `json:"inGuest"` // of these: in the guest, as it says itself
	Faults  uint64   `json:"faults"`  // ended early, for something that a program may not do
	Missed  uint64   `json:"missed"`  // hits in the guest while a run was going on
	Fault   string   `json:"fault,omitempty"`

	Instructions int   `json:"instructions"`        // in slots of 8 bytes
	CodeBytes    int   `json:"codeBytes,omitempty"` // of machine code, in the guest
	Budget       int64 `json:"budget"`              // steps that a run may take at most

	Warnings []ProgramWarning `json:"warnings,omitempty"`
}

// ProgramWarning is a mistake that a program certainly makes, on some path at least.
// It runs nevertheless; what goes wrong in a run ends that.
type ProgramWarning struct {
	Instruction int    `json:"instruction"` // slot
	Text        string `json:"text"`        // the instruction
	What        string `json:"what"`
	Source      string `json:"source,omitempty"` // file, line and text of the source, if the object has them
}

// MapList is the answer to GET /v1/maps.
type MapList struct {
	Maps []MapInfo `json:"maps"`
}

// MapInfo describes a map of an attached program.
type MapInfo struct {
	ID        uint64   `json:"id"` // never used again by this daemon
	Name      string   `json:"name"`
	Kind      string   `json:"kind"` // as Linux calls it
	KeySize   int      `json:"keySize"`
	ValueSize int      `json:"valueSize"`
	Entries   int      `json:"entries"` // at most; of a ring its bytes
	Bytes     int      `json:"bytes"`   // of memory
	PerCPU    bool     `json:"perCpu"`
	ReadOnly  bool     `json:"readOnly"` // programs may not write it
	Shared    bool     `json:"shared"`   // in memory that the guest sees, too
	Hist      bool     `json:"hist"`     // has the form of a log2 histogram
	Probes    []string `json:"probes"`   // whose programs refer to it
}

// MapDump is what is in a map: the answer to GET /v1/maps/{map}. Exactly one of
// Entries, Hist and Ring is set.
type MapDump struct {
	MapInfo
	Values    []MapEntry  `json:"values,omitempty"`
	Truncated bool        `json:"truncated"` // there are more than MaxMapEntries
	Buckets   []MapBucket `json:"buckets,omitempty"`
	Ring      *MapRing    `json:"ring,omitempty"`
}

// MaxMapEntries is the most entries that one dump has.
const MaxMapEntries = 1 << 16

// MapEntry is one key with its values: one, or one for each vCPU. All are bytes in
// hexadecimal, in the order of memory.
type MapEntry struct {
	Key    string   `json:"key"`
	Values []string `json:"values"`

	// The frames of a stack, in a map of stack traces: where the hit was, and then where each
	// call returns to.
	Stack []Frame `json:"stack,omitempty"`

	// The same by the types of the object, where it has them: numbers, texts, objects.
	KeyData json.RawMessage   `json:"keyData,omitempty"`
	Data    []json.RawMessage `json:"data,omitempty"`
}

// MapBucket is one bucket of a log2 histogram.
type MapBucket struct {
	Low   Hex    `json:"low"`  // smallest value counted
	High  Hex    `json:"high"` // largest
	Count uint64 `json:"count"`
}

// MapRing are the counts of a ring. Lost is what the memory says that the guest
// can write to.
type MapRing struct {
	Read      uint64 `json:"read"`
	Lost      uint64 `json:"lost"`
	Discarded uint64 `json:"discarded"`
	Corrupted uint64 `json:"corrupted"` // times that the contents made no sense
	Pending   uint64 `json:"pending"`   // bytes
}
