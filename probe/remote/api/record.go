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
	RecordBoot      RecordType = "boot"      // Boot: the guest was booted again before the next hit
	RecordStop      RecordType = "stop"      // Stop: a probe has stopped a vCPU, after its hit; also for each vCPU that is stopped when the stream begins
	RecordConsole   RecordType = "console"   // Console
	RecordOutput    RecordType = "output"    // Output
	RecordMaps      RecordType = "maps"      // ScriptMaps
	RecordWarning   RecordType = "warning"   // Warning: of a script
	RecordInterval  RecordType = "interval"  // Interval: of a script with RunScript.IntervalMS, after its output for one
	RecordHeartbeat RecordType = "heartbeat" // Heartbeat, when nothing else was sent for a while
	RecordStack     RecordType = "stack"     // Stack: of a profile
	RecordGraph     RecordType = "graph"     // likewise, its flame graph: {unit, root}, where a node is a list of its name, 1 for kernel code, samples or hits, 0, a colour, and its callees
	RecordCounts    RecordType = "counts"    // Counted
	RecordLost      RecordType = "lost"      // Lost: records are missing here
	RecordMap       RecordType = "map"       // MapSample: no daemon sends it, 'guestprobe trace --map' puts it between the others
	RecordEnd       RecordType = "end"       // last line: End; a stream without it was cut off
)

// Record is one line of a stream. Its Type says what Data is. A reader must skip types that it does not know.
type Record struct {
	Type RecordType      `json:"type"` // unknown types are to be skipped
	Data json.RawMessage `json:"data,omitempty" openapi:"type=object"`
}

// HitPrefix begins a daemon's line of a hit. The data follows, and a closing brace.
const HitPrefix = `{"type":"hit","data":`

var hitBefore, newline = []byte(HitPrefix), []byte("\n")

// HitData returns the data of a hit, which is a part of line, if line is a daemon's line of one. Whether the data is JSON is not checked.
func HitData(line []byte) ([]byte, bool) {
	data, ok := bytes.CutPrefix(bytes.TrimSuffix(line, newline), hitBefore)
	if !ok || len(data) == 0 || data[len(data)-1] != '}' {
		return nil, false
	}
	return data[:len(data)-1], true
}

// ReadRecord reads a line of a stream. A hit's data is not parsed: its reader finds out
// whether it is JSON, and a flood of hits is parsed once instead of twice.
func ReadRecord(line []byte) (Record, error) {
	if data, ok := HitData(line); ok {
		return Record{Type: RecordHit, Data: bytes.Clone(data)}, nil
	}
	var r Record
	err := json.Unmarshal(line, &r)
	return r, err
}

// StreamEvents is the body of POST /v1/events: probes to attach for the life
// of the stream, all or none. With no body, or with no Probes, the stream
// carries the hits of the probes named in Names, or of all probes, present and
// future.
type StreamEvents struct {
	Probes []ProbeSpec `json:"probes,omitempty"` // to attach
	Names  []string    `json:"names,omitempty"`  // attached probes, as the parameter probe of GET takes them
}

// MaxProfileHz is the largest StreamProfile.Hz.
const MaxProfileHz = 1000

// StreamProfile is the body of POST /v1/profile: stacks are gathered until a client ends the stream, and are sent then.
// Give either Hz, or Probes and Names of attached ones.
type StreamProfile struct {
	Hz     int         `json:"hz,omitempty" openapi:"minimum=1,maximum=1000"` // samples of each running vCPU per second, 1 to MaxProfileHz
	Probes []ProbeSpec `json:"probes,omitempty"`                              // whose hits have the stacks; they are attached for the life of the profile
	Names  []string    `json:"names,omitempty"`                               // likewise of probes at the places of these attached ones, with their filters

	// Send the flame graph instead of the stacks, as a record of type graph, of at most a quarter of a million
	// addresses; the rest is lost.
	Graph bool `json:"graph,omitempty"`
}

// Stack is a stack of a profile, and how often it was seen on a vCPU.
type Stack struct {
	Count      uint64  `json:"count"`
	DurationNS int64   `json:"durationNs,omitempty"` // of a return probe: the sum of the times since the entries, traps included
	CPU        int     `json:"cpu"`
	Task       *Task   `json:"task,omitempty"`  // if the guest's tasks are known
	Probe      string  `json:"probe,omitempty"` // whose hits these were; absent: they are samples
	Cut        bool    `json:"cut,omitempty"`   // there may be more frames
	Frames     []Frame `json:"frames"`          // innermost first
}

// Start is the first record of an event stream: events are flowing from here
// on.
type Start struct {
	Stream uint64    `json:"stream"` // its number, for DELETE /v1/events/{stream}
	Epoch  time.Time `json:"epoch"`  // the origin of the times of hits
	TimeNS int64     `json:"timeNs"` // when the stream was asked for, since Epoch
	BootNS int64     `json:"bootNs"` // when the guest began to run from its start, since Epoch
	Probes []Probe   `json:"probes"`

	Skipped []Skipped `json:"skipped,omitempty"` // as in ProbeList

	Attached int           `json:"attached,omitempty"` // of a script: the number of its probes, with BEGIN, END and intervals
	Notes    []string      `json:"notes,omitempty"`    // of a script: on parts of it that have no effect, each with its place
	Idle     []ProgramInfo `json:"idle,omitempty"`     // of these the programs at no place of the guest, which run on the host; the section is the probe as it was written
}

// Boot precedes the first hit of a guest that was booted again.
type Boot struct {
	BootNS int64 `json:"bootNs"` // as in Start
}

// Stop is a vCPU that a probe has stopped: a definition with ProbeSpec.Stop, or stop() of a script. It is also the data
// of the record of type stop.
type Stop struct {
	TimeNS int64     `json:"timeNs"` // when, as in Hit
	Since  time.Time `json:"since"`  // the same as a date
	CPU    int       `json:"cpu"`
	Probe  string    `json:"probe"` // group/event; of a program its section, of a script the probe as it was written
	RIP    Hex       `json:"rip"`   // the address of the vCPU
	Symbol string    `json:"symbol,omitempty"`
	All    bool      `json:"all,omitempty"` // the other vCPUs were stopped with it
}

// Hit is one arrival at a probe.
type Hit struct {
	TimeNS int64  `json:"timeNs"`         // monotonic, since Start.Epoch; with Stage program the time when its record was read from the ring
	Late   bool   `json:"late,omitempty"` // the stream has had an event with a later time before
	CPU    int    `json:"cpu"`
	Probe  string `json:"probe"` // group/event
	ID     uint64 `json:"id"`
	Stage  string `json:"stage" openapi:"enum=pre|post|return|program"` // pre, post or return; program: a record that a program has written into a ring
	Addr   Hex    `json:"addr"`                                         // the probed address; with Stage return the address of the function
	Symbol string `json:"symbol"`

	Ret        Hex    `json:"ret,omitempty"`        // with Stage return: the return address
	RetSymbol  string `json:"retSymbol,omitempty"`  // of Ret, with offset
	DurationNS int64  `json:"durationNs,omitempty"` // with Stage return: the time since the entry, traps included

	Value json.RawMessage `json:"value,omitempty"` // with Stage program: Data by its type; absent if the type is not known
	Map   string          `json:"map,omitempty"`   // with Stage program: the ring that the record was written into
	Data  []byte          `json:"data,omitempty"`  // with Stage program: the bytes of the record, as base64

	CPL     uint8          `json:"cpl" openapi:"enum=0|3"`
	IRQsOff bool           `json:"irqsOff,omitempty"` // interrupts were off (RFLAGS.IF); not known with Stage program
	Task    *Task          `json:"task,omitempty"`    // if the guest's tasks are known
	Args    []Arg          `json:"args,omitempty"`
	Regs    map[string]Hex `json:"regs,omitempty"`
	Stack   []Frame        `json:"stack,omitempty"` // innermost first, of probes that were attached with ProbeSpec.Stack
	Text    string         `json:"text"`            // as ftrace prints it, without task, vCPU and time; strings as in Arg.Text
}

// Frame is a function on a stack, innermost first.
type Frame struct {
	Addr    Hex    `json:"addr"`              // the address of the instruction, or the return address of a caller
	Symbol  string `json:"symbol"`            // NAME+0xOFFSET/0xSIZE; NAME of an inlined function; empty if it is not known
	Name    string `json:"name,omitempty"`    // of the function in its source, if the compiler mangles names (C++, Rust)
	Source  string `json:"source,omitempty"`  // FILE:LINE that runs or calls, if the guest's debug information has it
	User    bool   `json:"user,omitempty"`    // code of CPL3
	Inlined bool   `json:"inlined,omitempty"` // into the next function, whose Addr it has
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
	Name  string `json:"name"`
	Type  string `json:"type"`
	Value any    `json:"value"` // a number; a string for text and for numbers above 2^53; an array; null after a fault

	// As ftrace prints it; between quotes a backslash before a quote and a backslash, and \xNN for bytes that are no
	// printable UTF-8, as strconv.Unquote reads it.
	Text string   `json:"text"`
	Cut  bool     `json:"cut,omitempty"` // the text was longer than a record holds
	Raw  [][]byte `json:"raw,omitempty"` // as base64, if the text is not valid UTF-8
}

// Console is one line of the guest's console output. Exactly one of Text and Bytes is set: Text if the line is valid
// UTF-8.
type Console struct {
	Seq     uint64 `json:"seq"` // without gaps, over the life of the daemon
	Text    string `json:"text"`
	Bytes   []byte `json:"bytes,omitempty"`   // instead of Text, as base64, if it is not valid UTF-8
	Partial bool   `json:"partial,omitempty"` // the guest has not ended the line
}

// Warning is a failure in a script while it ran.
type Warning struct {
	Text string `json:"text"` // several lines: the place in the script, its line, and the failure
}

// Interval ends an interval of a script, after the maps of that interval.
type Interval struct {
	TimeNS int64 `json:"timeNs"` // since Start.Epoch
}

// Output is output of the guest on its console, or of a script, as it is: parts of lines, several lines. Exactly one of
// Text and Bytes is set: Text if it is valid UTF-8.
type Output struct {
	Text  string `json:"text"`
	Bytes []byte `json:"bytes,omitempty"` // instead of Text, as base64, if it is not valid UTF-8

	TimeNS int64 `json:"timeNs,omitempty"` // of a script with RunScript.Data: when its record was read from the ring, as in Hit
}

// Heartbeat shows that the stream is alive.
type Heartbeat struct {
	Delivered uint64 `json:"delivered"`
	Lost      uint64 `json:"lost"`
}

// Lost says that records are missing here because this reader, or the daemon itself, was too slow. The guest was never
// stopped for it.
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

// End is the last record of a stream. Delivered + Lost is everything that the stream should have carried.
type End struct {
	// Guest_exit: Code is the status of the guest; guest_crash: see GET /v1/guest; shutdown: the daemon stops;
	// history: a console stream without follow has shown everything; detached: all probes of the stream are gone;
	// asked: DELETE /v1/events/{stream}; slow: the client has not read for the --stall-timeout of guestprobed; exit: a
	// script has called exit, and Code is its status.
	Reason    string `json:"reason" openapi:"enum=guest_exit|guest_crash|shutdown|history|detached|asked|slow|exit"`
	Code      *int64 `json:"code,omitempty"` // the guest's exit code; with reason exit the script's
	Delivered uint64 `json:"delivered"`
	Lost      uint64 `json:"lost"`           // with Delivered everything that the stream should have carried
	Late      uint64 `json:"late,omitempty"` // of the delivered ones: after one with a later time

	// Probes are those that the stream has attached and that have gone, with their
	// final counts. Where it has attached all of its probes and none is left,
	// Delivered + Lost is the sum of their Stats.Events.
	Probes []Probe `json:"probes,omitempty"`

	// Strict says which hits or events a script with config = { strict = 1 } has missed or lost: it has failed.
	Strict string `json:"strict,omitempty"`

	// Cut is how many runs of a script's programs ended early, because of a fault or the instruction budget: of its probes, BEGIN and END,
	// intervals and samples. CutWhy is the first of them, with its place in the script.
	Cut    uint64 `json:"cut,omitempty"`
	CutWhy string `json:"cutWhy,omitempty"`

	// Unshown is the part of Delivered that 'guestprobe trace' has not shown, because it came after the last event to
	// show. No daemon sends it.
	Unshown uint64 `json:"unshown,omitempty"`
}
