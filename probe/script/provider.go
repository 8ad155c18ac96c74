package script

import (
	"strings"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// providers are the supported providers' names, by each of their spellings.
var providers = map[string]string{
	"BEGIN": "begin", "begin": "begin", "END": "end", "end": "end",
	"kprobe": "kprobe", "k": "kprobe", "fentry": "kprobe", "kfunc": "kprobe", "f": "kprobe",
	"kretprobe": "kretprobe", "kr": "kretprobe", "fexit": "kretprobe", "kretfunc": "kretprobe", "fr": "kretprobe",
	"usdt": "usdt", "U": "usdt", "uprobe": "uprobe", "u": "uprobe", "uretprobe": "uretprobe", "ur": "uretprobe",
	"watchpoint": "watchpoint", "w": "watchpoint", "interval": "interval", "i": "interval", "vm": "vm",
	"profile": "profile", "p": "profile", "software": "software", "s": "software",
	"rawtracepoint": "rawtracepoint", "rt": "rawtracepoint", "tracepoint": "tracepoint", "t": "tracepoint",
}

// elsewhere has suggestions for providers of bpftrace that are not supported.
var elsewhere = map[string]string{
	"asyncwatchpoint": "write watchpoint, which is armed before its probe's thread continues",
	"aw":              "write watchpoint, which is armed before its probe's thread continues",
	"hardware":        bpf.NoCounters + ": write profile:hz:99",
	"h":               bpf.NoCounters + ": write profile:hz:99",
	"iter":            "'guestprobe tasks' lists tasks",
	"it":              "'guestprobe tasks' lists tasks",
	"self":            "write BEGIN or END",
	"test":            "write BEGIN",
	"bench":           "write BEGIN",
}

// class says what triggers a probe.
type class uint8

const (
	onHost  class = iota // not a guest event: there is no hit when it runs
	atPlace              // a vCPU executes a place, or accesses it
	atExit               // a vCPU has left the guest, by itself or to be sampled
)

// classes has the class of each provider that is not onHost.
var classes = map[string]class{
	"kprobe": atPlace, "kretprobe": atPlace, "uprobe": atPlace, "uretprobe": atPlace, "watchpoint": atPlace,
	"rawtracepoint": atPlace, "tracepoint": atPlace, "usdt": atPlace,
	"profile": atExit, "software": atExit,
}

func (a *attachPoint) class() class {
	if _, ok := a.exit(); ok {
		return atExit
	}
	return classes[a.provider]
}

// exit returns REASON of vm:exit:REASON.
func (a *attachPoint) exit() (reason string, ok bool) {
	if a.provider != "vm" {
		return "", false
	}
	return strings.CutPrefix(a.target, EventExit+":")
}

// hasGuest reports whether there is a hit when it runs.
func (a *attachPoint) hasGuest() bool { return a.class() != onHost }

// atReturn reports whether the probe is at a function's return.
func (a *attachPoint) atReturn() bool { return strings.HasSuffix(a.provider, "retprobe") }

// atTracepoint reports whether the probe is at a tracepoint of the guest's kernel: at
// the entry of a function whose first argument is followed by the tracepoint's
// arguments.
func (a *attachPoint) atTracepoint() bool { return a.provider == "rawtracepoint" }

// atEvent reports whether the probe is at a tracepoint by the name of an event, whose
// record it receives.
func (a *attachPoint) atEvent() bool { return a.provider == "tracepoint" }

// argWord returns the index of argument n of the probe, from 0, among the words of
// the function's arguments.
func (a *attachPoint) argWord(n int) int {
	if a.atTracepoint() {
		return n + 1
	}
	return n
}

// atFunction reports whether the probe is at a function, which has arguments.
func (a *attachPoint) atFunction() bool { return a.class() == atPlace && a.provider != "watchpoint" }

// inUser reports whether the probe is at user code only.
func (a *attachPoint) inUser() bool { return a.atFunction() && a.provider[0] == 'u' }

// Events of a guest, after vm:, as in Script.Events.
const (
	EventStart = "start" // it begins to run from its start
	EventReset = "reset" // it is booted again
	EventExit  = "exit"
	EventCrash = "crash"
)

var vmEvents = []string{EventStart, EventReset, EventExit, EventCrash}

// parseWatch turns SYMBOL:8:w into the place of a watch, in the syntax of
// definitions, for a given symbol; wrong is the error, if any.
func parseWatch(target string) (place func(symbol string) string, wrong string) {
	parts := strings.Split(target, ":")
	if len(parts) != 3 || parts[0] == "" {
		return nil, "watchpoint: want SYMBOL:LENGTH:MODE or ADDRESS:LENGTH:MODE"
	}
	mode := parts[2]
	base, _, _ := strings.Cut(parts[0], "+")
	_, isAddress := parseNumber(base)
	switch {
	case base != "" && isDigit(base[0]) && !isAddress:
		return nil, "watchpoint: invalid address " + base
	case strings.Contains(parts[0], "+arg"):
		return nil, "watchpoint: an argument of a function cannot be watched"
	case mode == "wr":
		mode = "rw"
	case mode == "r":
		return nil, "watchpoint: the debug registers have no watch for reads alone"
	case mode != "w" && mode != "rw" && mode != "x":
		return nil, "watchpoint: invalid mode " + mode
	}
	length := ":" + parts[1]
	switch n, ok := parseNumber(parts[1]); {
	case !ok || n != 1 && n != 2 && n != 4 && n != 8:
		return nil, "watchpoint: invalid length " + parts[1]
	case mode == "x":
		length = ""
	}
	return func(symbol string) string { return mode + "@" + symbol + length }, ""
}
