package script

import "strings"

// providers are the names of those that there are, by each of their spellings.
var providers = map[string]string{
	"BEGIN": "begin", "begin": "begin", "END": "end", "end": "end",
	"kprobe": "kprobe", "k": "kprobe", "fentry": "kprobe", "kfunc": "kprobe", "f": "kprobe",
	"kretprobe": "kretprobe", "kr": "kretprobe", "fexit": "kretprobe", "kretfunc": "kretprobe", "fr": "kretprobe",
	"uprobe": "uprobe", "u": "uprobe", "uretprobe": "uretprobe", "ur": "uretprobe",
	"watchpoint": "watchpoint", "w": "watchpoint", "interval": "interval", "i": "interval", "vm": "vm",
	"profile": "profile", "p": "profile",
}

// elsewhere says of the providers of bpftrace that are not here what to write instead.
var elsewhere = map[string]string{
	"tracepoint":      "write kprobe: of the function that the tracepoint is in",
	"t":               "write kprobe: of the function that the tracepoint is in",
	"rawtracepoint":   "write kprobe: of the function that the tracepoint is in",
	"rt":              "write kprobe: of the function that the tracepoint is in",
	"asyncwatchpoint": "write watchpoint, which is in place before its probe goes on",
	"aw":              "write watchpoint, which is in place before its probe goes on",
	"usdt":            "write uprobe: of the function that it is in",
	"U":               "write uprobe: of the function that it is in",
	"software":        "the host does not lend the guest's counters: write profile:hz:99",
	"s":               "the host does not lend the guest's counters: write profile:hz:99",
	"hardware":        "the host does not lend the guest's counters: write profile:hz:99",
	"h":               "the host does not lend the guest's counters: write profile:hz:99",
	"iter":            "'guestprobe tasks' lists tasks",
	"it":              "'guestprobe tasks' lists tasks",
	"self":            "write BEGIN or END",
	"test":            "write BEGIN",
	"bench":           "write BEGIN",
}

// class says what happens when a probe is hit.
type class uint8

const (
	onHost  class = iota // nothing in the guest: there is no hit when it runs
	atPlace              // a vCPU comes to a place, or accesses it
	atExit               // a vCPU has left the guest, of its own or to be sampled
)

// classes are those of the providers that are not onHost.
var classes = map[string]class{
	"kprobe": atPlace, "kretprobe": atPlace, "uprobe": atPlace, "uretprobe": atPlace, "watchpoint": atPlace,
	"profile": atExit,
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

// atFunction reports whether the probe is about a function, which has arguments.
func (a *attachPoint) atFunction() bool { return a.class() == atPlace && a.provider != "watchpoint" }

// inUser reports whether the probe is at user code alone.
func (a *attachPoint) inUser() bool { return a.atFunction() && a.provider[0] == 'u' }

// Events of a guest, behind vm:, as Script.Events has them.
const (
	EventStart = "start" // it begins to run from its start
	EventReset = "reset" // it is booted anew
	EventExit  = "exit"
	EventCrash = "crash"
)

var vmEvents = []string{EventStart, EventReset, EventExit, EventCrash}

// watched makes SYMBOL:8:w the place of a watch, as definitions have it, but for the symbol;
// or says what is wrong.
func watched(target string) (place func(symbol string) string, wrong string) {
	parts := strings.Split(target, ":")
	if len(parts) != 3 || parts[0] == "" {
		return nil, "watchpoint: want SYMBOL:LENGTH:MODE or ADDRESS:LENGTH:MODE"
	}
	mode := parts[2]
	switch {
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
