package api

import (
	"encoding/json"
	"regexp"
	"time"
)

// RunScript is the body of POST /v1/scripts: a script in bpftrace's language, which runs
// for the life of the stream that is the answer, or with Detach until it is stopped.
type RunScript struct {
	Script  string       `json:"script"`                                                 // in bpftrace's language, of at most 1 MiB
	Name    string       `json:"name,omitempty" openapi:"default=stdin"`                 // in messages; by default stdin
	Args    []string     `json:"args,omitempty"`                                         // $1 and so on
	Files   []ScriptFile `json:"files,omitempty"`                                        // those that the script imports, and that these import: at most 64, and with the script 1 MiB
	Format  string       `json:"format,omitempty" openapi:"enum=text|json,default=text"` // of its output: ScriptText, as bpftrace prints, which is the default, or ScriptJSON, as bpftrace -f json does
	OnHost  bool         `json:"onHost,omitempty"`                                       // its programs run at an exit, even if they could run in the guest
	Emulate bool         `json:"emulate,omitempty"`                                      // its watchpoints protect pages instead of using debug registers, as ProbeSpec.Emulate

	// Send output as Output with the time of each, and maps as ScriptMaps instead of as text, for clients that add up
	// the maps of several guests; not with Detach.
	Data bool `json:"data,omitempty"`

	Unsafe bool `json:"unsafe,omitempty"` // it may change the behavior of the guest: override, return of a number, setreg, poke

	IntervalMS uint64 `json:"intervalMs,omitempty" openapi:"default=0"` // print all maps and clear them at this interval, of up to a day; 0: only at the end
	Metrics    bool   `json:"metrics,omitempty"`                        // with Detach: its maps are in /metrics

	// Continue without a client, under this name of at most MaxScriptName bytes, until DELETE /v1/scripts/{script};
	// the answer is the ScriptInfo.
	Detach string `json:"detach,omitempty" openapi:"pattern=^[A-Za-z_][A-Za-z0-9_.-]*$"`
}

// ScriptFile is a file that a script imports, directly or through another one. The daemon reads no files for a script.
type ScriptFile struct {
	Name string `json:"name"` // its path from the script's folder, as lib/a.bt for import "lib/a.bt", or an absolute one
	Text string `json:"text"`
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
	Name     string       `json:"name"`
	Script   string       `json:"script"`
	Args     []string     `json:"args,omitempty"`
	Files    []ScriptFile `json:"files,omitempty"`                 // as RunScript.Files
	Format   string       `json:"format" openapi:"enum=text|json"` // of its output
	Since    time.Time    `json:"since"`
	Origin   string       `json:"origin,omitempty" openapi:"enum=start|fleet|restored"` // as Probe.Origin
	Attached int          `json:"attached"`                                             // the number of its probes, with BEGIN, END and intervals
	Hits     uint64       `json:"hits"`                                                 // of its probes in the guest
	Written  uint64       `json:"written"`                                              // records of printf, print and so on that were read
	Lost     uint64       `json:"lost"`                                                 // records that were lost

	Ended string `json:"ended,omitempty"` // why it has ended, as End.Reason; absent while it runs
	Code  *int64 `json:"code,omitempty"`  // as End.Code

	Warnings []string `json:"warnings,omitempty"` // of its beginning; only in the answer to POST
	Begin    *Start   `json:"begin,omitempty"`    // as a stream's first record; only in the answer to POST
	Maps     *string  `json:"maps,omitempty"`     // as they are now, printed; only in the answer to GET /v1/scripts/{script}, while it runs

	States json.RawMessage `json:"states,omitempty" openapi:"type=array"` // with ScriptData, instead of Maps: as ScriptMaps.Maps
	Left   int             `json:"left,omitempty"`                        // with ScriptData: elements that are not in States, because there are too many
}

// ScriptMaps are the maps of a script with RunScript.Data: for each interval the values of that interval; without
// intervals the current values once a second, or less often if they are large; and the final values at its end.
type ScriptMaps struct {
	TimeNS int64 `json:"timeNs"`          // as in Hit
	Part   bool  `json:"part,omitempty"`  // the maps were emptied: the next values are added to these
	Final  bool  `json:"final,omitempty"` // no more maps follow
	More   bool  `json:"more,omitempty"`  // the next record has others of the same moment

	// For each map its name, keyed, kind (count, sum, avg, min, max, stats, hist, lhist, tseries, or the kind of a
	// value), signed, the parameters of its kind (bits, low, high, step, mode), and elements: key (text, json, order),
	// and words, counts by bucket, series by interval, or text and json of a value.
	Maps json.RawMessage `json:"maps" openapi:"type=array"`
	Left int             `json:"left,omitempty"` // elements that are not in it, because there are too many
}

// Formats of RunScript.
const (
	ScriptText = "text" // as bpftrace prints
	ScriptJSON = "json" // as bpftrace -f json prints, a line each
	ScriptData = "data" // of GET /v1/scripts/{script} alone: maps in a form in which the maps of several guests can be added
)

// PlaceList is the body of the answer to GET /v1/places.
type PlaceList struct {
	Places []Place    `json:"places"`
	Types  []TypeInfo `json:"types,omitempty"` // for a pattern that begins with struct, union or enum
}

// TypeInfo is a type of the guest.
type TypeInfo struct {
	Name       string `json:"name"`                 // struct file
	Module     string `json:"module"`               // of the kernel that defines it; vmlinux is the kernel itself, or another guest's program
	Definition string `json:"definition,omitempty"` // in C, if types were asked for
}

// Place is a place where a script can have a probe.
type Place struct {
	Probe     string     `json:"probe"`               // as a script says it: kprobe:vfs_read
	Prototype *Prototype `json:"prototype,omitempty"` // of a function, if types were asked for and are known
}
