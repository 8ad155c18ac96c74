package api

import "encoding/json"

// AttachProgram is the body of POST /v1/programs: an object file as clang makes
// them for eBPF. All of its programs are attached, or none.
type AttachProgram struct {
	Object      []byte            `json:"object"`                // an object file of clang's bpf target, or a program of the host that contains one, as base64; at most 16 MiB
	Section     string            `json:"section,omitempty"`     // only the programs in this section, or in these: names and patterns with commas between; "": all
	At          string            `json:"at,omitempty"`          // the place of the only program, instead of the place in its section name; or NAME=PLACE,... for the names in sections
	SkipMissing bool              `json:"skipMissing,omitempty"` // leave out programs at functions that the guest does not have
	Set         map[string]string `json:"set,omitempty"`         // constants (.rodata) by name: numbers, true and false, names of enumerations, texts
	MapEntries  map[string]uint32 `json:"mapEntries,omitempty"`  // sizes of maps by name, in place of those in the file: entries, or bytes of a ring
	OnHost      bool              `json:"onHost,omitempty"`      // run at an exit, even if they could run in the guest
	Disabled    bool              `json:"disabled,omitempty"`    // register without arming
	Space       Hex               `json:"space,omitempty"`       // as in ProbeSpec
	Strict      bool              `json:"strict,omitempty"`      // refuse programs with warnings
	Unsafe      bool              `json:"unsafe,omitempty"`      // programs may change the behavior of the guest: override_return, set_reg, poke, probe_write_user
}

// Places in Probe.Runs.
const (
	RunsInGuest = "guest" // in the detour of an optimized site, without an exit
	RunsOnHost  = "host"  // at an exit
)

// ProgramInfo is a probe's eBPF program.
type ProgramInfo struct {
	Name    string   `json:"name"`            // of the function in the object file
	Section string   `json:"section"`         // "kprobe/vfs_read"
	Maps    []string `json:"maps"`            // by MapInfo.Name
	Runs    uint64   `json:"runs"`            // begun
	InGuest uint64   `json:"inGuest"`         // of these the runs in the guest, as the guest reports them
	Faults  uint64   `json:"faults"`          // runs that ended early, because of a forbidden operation
	Missed  uint64   `json:"missed"`          // hits in the guest during another run on the same vCPU
	Fault   string   `json:"fault,omitempty"` // the latest fault

	Instructions int   `json:"instructions"`        // in slots of 8 bytes
	CodeBytes    int   `json:"codeBytes,omitempty"` // of machine code in the guest; absent if the program runs on the host
	Budget       int64 `json:"budget"`              // at this number of steps a run is ended
	Steps        int64 `json:"steps,omitempty"`     // of an object file: the largest number of steps that a run can make

	Warnings []ProgramWarning `json:"warnings,omitempty"` // mistakes that it makes on some path for certain
}

// ProgramWarning is a mistake that a program certainly makes, on some path at least.
// It runs nevertheless; a fault ends the run.
type ProgramWarning struct {
	Instruction int    `json:"instruction"`      // slot
	Text        string `json:"text"`             // the instruction
	What        string `json:"what"`             // the mistake
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
	Kind      string   `json:"kind" openapi:"enum=hash|array|prog_array|perf_event_array|percpu_hash|percpu_array|stack_trace|cgroup_array|lru_hash|lru_percpu_hash|lpm_trie|array_of_maps|hash_of_maps|queue|stack|ringbuf|task_storage|bloom_filter"` // as Linux calls it
	KeySize   int      `json:"keySize"`
	ValueSize int      `json:"valueSize"`
	Entries   int      `json:"entries"` // at most; of a ring its bytes
	Bytes     int      `json:"bytes"`   // of memory
	PerCPU    bool     `json:"perCpu"`
	ReadOnly  bool     `json:"readOnly"` // programs may not write it
	Shared    bool     `json:"shared"`   // in memory that the guest sees
	Hist      bool     `json:"hist"`     // has the form of a log2 histogram
	Probes    []string `json:"probes"`   // whose programs refer to it
}

// MapDump is the contents of a map: the answer to GET /v1/maps/{map}. It has Values, Buckets or Ring.
type MapDump struct {
	MapInfo
	Values    []MapEntry  `json:"values,omitempty"`
	Truncated bool        `json:"truncated"` // there are more values than MaxMapEntries
	Buckets   []MapBucket `json:"buckets,omitempty"`
	Ring      *MapRing    `json:"ring,omitempty"`
	Lost      uint64      `json:"lost,omitempty"` // of a task_storage: calls of bpf_task_storage_get that found no room for a value
}

// MaxMapEntries is the most entries that one dump has.
const MaxMapEntries = 1 << 16

// MapEntry is one key with its values: one, or one for each vCPU. All are bytes in
// hexadecimal, in the order of memory.
type MapEntry struct {
	Key    string   `json:"key"`    // bytes, hexadecimal
	Values []string `json:"values"` // bytes, hexadecimal: one, or one for each vCPU

	Stack []Frame `json:"stack,omitempty"` // of a map of stack traces: the address of the hit, then the return address of each call

	KeyData json.RawMessage   `json:"keyData,omitempty"` // the key by its type: a number, a text or an object; absent if the object file has no types
	Data    []json.RawMessage `json:"data,omitempty"`    // the values by their type, likewise
}

// MapBucket is one bucket of a log2 histogram.
type MapBucket struct {
	Low   Hex    `json:"low"`  // smallest value counted
	High  Hex    `json:"high"` // largest
	Count uint64 `json:"count"`
}

// MapRing are the counts of a ring.
type MapRing struct {
	Read      uint64 `json:"read"` // records that were read for streams, or dropped to make room for the first stream's
	Lost      uint64 `json:"lost"` // records that found no room; the guest can write to the memory of this count
	Discarded uint64 `json:"discarded"`
	Corrupted uint64 `json:"corrupted"` // times that the contents made no sense
	Pending   uint64 `json:"pending"`   // bytes
}
