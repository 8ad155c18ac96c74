package api

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// RecordType names what a line of a stream holds.
type RecordType string

// The record types. A reader must skip types that it does not know.
const (
	RecordStart     RecordType = "start"     // first line: Start
	RecordHit       RecordType = "hit"       // Hit
	RecordBoot      RecordType = "boot"      // Boot: the guest has been booted anew before the next hit
	RecordStop      RecordType = "stop"      // Stop: a probe has stopped a vCPU, behind its hit; also for those that are stopped when the stream begins
	RecordConsole   RecordType = "console"   // Console
	RecordOutput    RecordType = "output"    // Output
	RecordMaps      RecordType = "maps"      // ScriptMaps
	RecordWarning   RecordType = "warning"   // Warning: of a script
	RecordInterval  RecordType = "interval"  // Interval: of a script with RunScript.IntervalMS, behind what it has printed for one
	RecordHeartbeat RecordType = "heartbeat" // Heartbeat, when nothing else was sent for a while
	RecordStack     RecordType = "stack"     // Stack: of a profile
	RecordGraph     RecordType = "graph"     // likewise, its flame graph: {unit, root}, where a node is a list of its name, 1 for kernel code, samples or hits, 0, a colour, and its callees
	RecordCounts    RecordType = "counts"    // Counted
	RecordLost      RecordType = "lost"      // Lost: records are missing here
	RecordMap       RecordType = "map"       // MapSample: no daemon sends it, 'guestprobe trace --map' puts it between the others
	RecordEnd       RecordType = "end"       // last line: End; a stream without it was cut off
)

// Record is one line of a stream.
type Record struct {
	Type RecordType      `json:"type"`
	Data json.RawMessage `json:"data,omitempty"`
}

// hitBefore is what a daemon's line of a hit begins with.
var hitBefore = []byte(`{"type":"hit","data":`)

// ReadRecord reads a line of a stream. A hit's data is taken as it stands there: whoever reads it finds out
// whether it is JSON, and of a flood it would be read twice as often else.
func ReadRecord(line []byte) (r Record, err error) {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if data, ok := bytes.CutPrefix(line, hitBefore); ok && len(data) > 0 && data[len(data)-1] == '}' {
		return Record{Type: RecordHit, Data: bytes.Clone(data[:len(data)-1])}, nil
	}
	err = json.Unmarshal(line, &r)
	return r, err
}

// StreamEvents is the body of POST /v1/events: probes to attach for the life
// of the stream, all or none. With no body, or with no Probes, the stream
// carries the hits of the probes named in Names, or of all probes, present and
// future.
type StreamEvents struct {
	Probes []ProbeSpec `json:"probes,omitempty"`
	Names  []string    `json:"names,omitempty"`
}

// MaxProfileHz is the largest StreamProfile.Hz.
const MaxProfileHz = 1000

// StreamProfile is the body of POST /v1/profile: stacks are gathered until the stream is asked to
// end, and are sent then. One of Hz and probes is given.
type StreamProfile struct {
	Hz     int         `json:"hz,omitempty"`     // each vCPU that runs is looked at so often a second
	Probes []ProbeSpec `json:"probes,omitempty"` // of their hits; they are attached for the time of the profile
	Names  []string    `json:"names,omitempty"`  // likewise of probes at the places of these attached ones, with their filters
	Graph  bool        `json:"graph,omitempty"`  // in the place of the stacks their flame graph is sent, as profiles' pages have it: of a quarter of a million addresses at most
}

// Stack is a stack of a profile, and how often it was seen on a vCPU.
type Stack struct {
	Count      uint64  `json:"count"`
	DurationNS int64   `json:"durationNs,omitempty"` // of a return probe: the sum of the times since the entries, as Hit has them
	CPU        int     `json:"cpu"`
	Task       *Task   `json:"task,omitempty"`  // where the guest's tasks are known
	Probe      string  `json:"probe,omitempty"` // whose hits these were; "": samples
	Cut        bool    `json:"cut,omitempty"`   // there may be more frames
	Frames     []Frame `json:"frames"`          // innermost first
}

// Start is the first record of an event stream: events are flowing from here
// on.
type Start struct {
	Stream uint64    `json:"stream"` // its number, for DELETE /v1/events/{stream}
	Epoch  time.Time `json:"epoch"`  // where the times of hits count from
	TimeNS int64     `json:"timeNs"` // when the stream was asked for, as in Hit
	BootNS int64     `json:"bootNs"` // when the guest began to run from its start, as in Hit
	Probes []Probe   `json:"probes"`

	Skipped []Skipped `json:"skipped,omitempty"` // as in ProbeList

	Attached int           `json:"attached,omitempty"` // of a script: how many it has, with BEGIN, END and intervals
	Idle     []ProgramInfo `json:"idle,omitempty"`     // of these the programs at no place of the guest, on the host; the section is the probe as it was written
}

// Boot is where the hits of a guest that was booted anew begin.
type Boot struct {
	BootNS int64 `json:"bootNs"` // as in Start
}

// Stop is a vCPU that a probe has stopped: a definition with ProbeSpec.Stop, or stop() of a script.
type Stop struct {
	TimeNS int64     `json:"timeNs"` // when, as in Hit
	Since  time.Time `json:"since"`  // the same
	CPU    int       `json:"cpu"`
	Probe  string    `json:"probe"` // group/event; of a program its section, of a script the probe as it was written
	RIP    Hex       `json:"rip"`   // where it stands
	Symbol string    `json:"symbol,omitempty"`
	All    bool      `json:"all,omitempty"` // the other vCPUs were stopped with it
}

// Hit is one arrival at a probe.
type Hit struct {
	TimeNS int64  `json:"timeNs"`         // monotonic, since Start.Epoch; with Stage program when its record came out of the ring
	Late   bool   `json:"late,omitempty"` // this stream has had one with a later time
	CPU    int    `json:"cpu"`
	Probe  string `json:"probe"` // group/event
	ID     uint64 `json:"id"`
	Stage  string `json:"stage"` // "pre", "post" or "return"; "program": a record that a program has written into a ring
	Addr   Hex    `json:"addr"`  // the probed address; of stage "return" the function's
	Symbol string `json:"symbol"`

	// Of stage "return": where the function has returned to, and the time since
	// its entry, traps included.
	Ret        Hex    `json:"ret,omitempty"`
	RetSymbol  string `json:"retSymbol,omitempty"`
	DurationNS int64  `json:"durationNs,omitempty"`

	// Of stage "program": the ring, and the record's bytes (base64).
	Value json.RawMessage `json:"value,omitempty"` // by the object's types, where it has them
	Map   string          `json:"map,omitempty"`
	Data  []byte          `json:"data,omitempty"`

	CPL     uint8          `json:"cpl"`
	IRQsOff bool           `json:"irqsOff,omitempty"` // interrupts were off (RFLAGS.IF); of stage "program" not known
	Task    *Task          `json:"task,omitempty"`    // where the guest's tasks are known
	Args    []Arg          `json:"args,omitempty"`
	Regs    map[string]Hex `json:"regs,omitempty"`
	Stack   []Frame        `json:"stack,omitempty"`
	Text    string         `json:"text"` // as ftrace prints it, without task, vCPU and time
}

// Frame is a function on a stack, innermost first.
type Frame struct {
	Addr    Hex    `json:"addr"`              // where it stands, or goes on when what it has called returns
	Symbol  string `json:"symbol"`            // NAME+0xOFFSET/0xSIZE; NAME of one that is inlined; empty where it is not known
	Name    string `json:"name,omitempty"`    // of the function in its source, where the linker mangles names (C++, Rust)
	Source  string `json:"source,omitempty"`  // FILE:LINE that runs or calls, where the guest's debug information has it
	User    bool   `json:"user,omitempty"`    // code of CPL3
	Inlined bool   `json:"inlined,omitempty"` // into the function that comes next, whose Addr it has
}

// Text is the function with its offset, by the name in its source where that is known; "" where neither is.
func (f Frame) Text() string {
	if f.Name == "" {
		return f.Symbol
	}
	if i := strings.LastIndex(f.Symbol, "+0x"); i > 0 && !f.Inlined {
		return f.Name + f.Symbol[i:]
	}
	return f.Name
}

// Task is the task of the guest that was interrupted.
type Task struct {
	PID  int32  `json:"pid"`
	Comm string `json:"comm"`
}

// Arg is one captured argument.
type Arg struct {
	Name  string   `json:"name"`
	Type  string   `json:"type"`
	Value any      `json:"value"`         // number; string where a float64 would lose bits, or for text; null after a fault
	Text  string   `json:"text"`          // as ftrace prints it; between quotes with \", \\ and \xNN, as strconv.Unquote reads it
	Cut   bool     `json:"cut,omitempty"` // text was longer than a record holds
	Raw   [][]byte `json:"raw,omitempty"` // base64, where text is not valid UTF-8
}

// Console is one line of the guest's console output. Exactly one of Text and
// Bytes is set: Text where the line is valid UTF-8.
type Console struct {
	Seq     uint64 `json:"seq"` // without gaps, over the life of the daemon
	Text    string `json:"text"`
	Bytes   []byte `json:"bytes,omitempty"`   // base64
	Partial bool   `json:"partial,omitempty"` // the guest has not ended the line
}

// Warning is what has gone wrong in a script while it ran.
type Warning struct {
	Text string `json:"text"` // of several lines: the place in the script, and what happened
}

// Interval is the end of one for which a script has printed its maps.
type Interval struct {
	TimeNS int64 `json:"timeNs"` // when, as in Hit
}

// Output is what the guest wrote to its console, or a script has printed, as it is: parts of lines, several lines. Exactly
// one of Text and Bytes is set: Text where it is valid UTF-8.
type Output struct {
	Text  string `json:"text"`
	Bytes []byte `json:"bytes,omitempty"` // base64

	TimeNS int64 `json:"timeNs,omitempty"` // of a script with RunScript.Data: when its record came out of the ring, as in Hit
}

// Heartbeat shows that the stream is alive.
type Heartbeat struct {
	Delivered uint64 `json:"delivered"`
	Lost      uint64 `json:"lost"`
}

// Lost says that records are missing here because this reader, or the daemon
// itself, was too slow. The guest was never stopped for it.
type Lost struct {
	Lost  uint64 `json:"lost"`  // since the last such record
	Total uint64 `json:"total"` // in this stream
}

// MapSample is what 'guestprobe trace --map' has seen in a map, at a time of its own.
type MapSample struct {
	TimeNS int64      `json:"timeNs"` // as in Hit
	Map    string     `json:"map"`
	Values []MapCount `json:"values"`         // of the keys with numbers
	Left   int        `json:"left,omitempty"` // keys that were left out, because they are too many
}

// MapCount is the number at a key of a map: of one for each vCPU their sum.
type MapCount struct {
	Key   string `json:"key"`
	Value int64  `json:"value"`
}

// Reasons in End.
const (
	EndGuestExit  = "guest_exit"  // Code is the guest's
	EndGuestCrash = "guest_crash" // see GET /v1/guest
	EndShutdown   = "shutdown"    // the daemon is stopping
	EndHistory    = "history"     // a console stream without follow has shown everything
	EndDetached   = "detached"    // every probe of the stream is gone
	EndSlow       = "slow"        // the client has not read for guestprobed's --stall-timeout
	EndAsked      = "asked"       // DELETE /v1/events/{stream}
	EndExit       = "exit"        // a script has called exit: Code is its status
)

// End is the last record of a stream. Delivered + Lost is everything that the
// stream was to carry.
type End struct {
	Reason    string `json:"reason"`
	Code      *int64 `json:"code,omitempty"`
	Delivered uint64 `json:"delivered"`
	Lost      uint64 `json:"lost"`
	Late      uint64 `json:"late,omitempty"` // of those delivered: behind one with a later time

	// Probes are those that the stream has attached and that have gone, with their
	// final counts. Where it has attached all of its probes and none is left,
	// Delivered + Lost is the sum of their Stats.Events.
	Probes []Probe `json:"probes,omitempty"`

	// Strict is what a script with config = { strict = 1 } has missed or lost, in words: it has failed.
	Strict string `json:"strict,omitempty"`

	// Unshown is what 'guestprobe trace' has left out of Delivered, because they came
	// when it had as many as it was to show. No daemon sends it.
	Unshown uint64 `json:"unshown,omitempty"`
}
