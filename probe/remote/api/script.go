package api

import (
	"encoding/json"
	"regexp"
	"time"
)

// RunScript is the body of POST /v1/scripts: a script in bpftrace's language, which runs
// for the life of the stream that is the answer, or with Detach until it is stopped.
type RunScript struct {
	Script  string   `json:"script"`
	Name    string   `json:"name,omitempty"`    // in messages; by default stdin
	Args    []string `json:"args,omitempty"`    // $1 and so on
	Format  string   `json:"format,omitempty"`  // of what it prints: ScriptText, which is the default, or ScriptJSON
	OnHost  bool     `json:"onHost,omitempty"`  // its programs run at an exit, although they could run in the guest
	Emulate bool     `json:"emulate,omitempty"` // its watchpoints protect pages instead of taking debug registers

	// What is printed comes in an Output for each time, with that, and maps as ScriptMaps instead of being printed: for who
	// adds those of several guests.
	Data bool `json:"data,omitempty"`

	Unsafe bool `json:"unsafe,omitempty"` // it may change what the guest does: override, return of a number, setreg, poke

	IntervalMS uint64 `json:"intervalMs,omitempty"` // print all maps and clear them, so often; 0: at the end alone
	Metrics    bool   `json:"metrics,omitempty"`    // with Detach: its maps are in /metrics
	Detach     string `json:"detach,omitempty"`     // go on without a client, by this name; the answer is its ScriptInfo
}

// MaxScriptName bounds RunScript.Detach, in bytes.
const MaxScriptName = 64

// ScriptName says what RunScript.Detach may be.
var ScriptName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// ScriptList is the body of the answer to GET /v1/scripts.
type ScriptList struct {
	Scripts []ScriptInfo `json:"scripts"`
}

// ScriptInfo describes a script that runs without a client, or has ended and was not
// stopped yet.
type ScriptInfo struct {
	Name     string    `json:"name"`
	Script   string    `json:"script"`
	Args     []string  `json:"args,omitempty"`
	Format   string    `json:"format"`
	Since    time.Time `json:"since"`
	Origin   string    `json:"origin,omitempty"` // as Probe.Origin
	Attached int       `json:"attached"`         // how many probes it has, with BEGIN, END and intervals
	Hits     uint64    `json:"hits"`             // of those of them that are in the guest
	Written  uint64    `json:"written"`          // records of printf, print and so on
	Lost     uint64    `json:"lost"`             // of those

	Ended string `json:"ended,omitempty"` // why, as End.Reason; "": it runs
	Code  *int64 `json:"code,omitempty"`  // as End.Code

	Warnings []string `json:"warnings,omitempty"` // of the beginning; in the answer to POST alone
	Begin    *Start   `json:"begin,omitempty"`    // as a stream's first record; in the answer to POST alone
	Maps     *string  `json:"maps,omitempty"`     // as they are now, printed; of GET /v1/scripts/{script} alone, while it runs

	States json.RawMessage `json:"states,omitempty"` // with ScriptData, instead of Maps: as ScriptMaps.Maps
	Left   int             `json:"left,omitempty"`   // as ScriptMaps.Left
}

// ScriptMaps are the maps of a script with RunScript.Data: at its end, for each interval what they had in it, and
// without intervals once a second, or less often where they are large, as they are then.
type ScriptMaps struct {
	TimeNS int64           `json:"timeNs"`          // when, as in Hit
	Part   bool            `json:"part,omitempty"`  // they were emptied: what comes next comes on top
	Final  bool            `json:"final,omitempty"` // nothing comes behind them
	More   bool            `json:"more,omitempty"`  // the next record has others of the same moment
	Maps   json.RawMessage `json:"maps"`            // what probe/script adds: MapState of each
	Left   int             `json:"left,omitempty"`  // elements that are not in it, because they are too many
}

// Formats of RunScript.
const (
	ScriptText = "text" // as bpftrace prints
	ScriptJSON = "json" // as bpftrace -f json prints, a line each
	ScriptData = "data" // of GET /v1/scripts/{script} alone: maps as those of several guests can be added
)

// PlaceList is the body of the answer to GET /v1/places.
type PlaceList struct {
	Places []Place `json:"places"`
}

// Place is where a script may have a probe.
type Place struct {
	Probe     string     `json:"probe"`               // as a script says it: kprobe:vfs_read
	Prototype *Prototype `json:"prototype,omitempty"` // of a function, where types were asked for and are known
}
