package script

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Listed is a provider that a pattern covers, and its places: functions that match
// Pattern, variables, or Places.
type Listed struct {
	Provider string
	Pattern  string
	User     bool     // only functions of user code
	Kernel   bool     // only functions of the kernel and its modules, with names of modules
	Returns  bool     // only functions whose returns can be probed
	Data     bool     // variables
	Places   []string // all matches, in the notation after the provider
}

// listed are the providers whose places can be listed, in that order.
var listed = []string{"kprobe", "kretprobe", "fentry", "fexit", "uprobe", "uretprobe", "usdt", "tracepoint", "rawtracepoint", "watchpoint", "interval", "profile", "software", "vm"}

// ofKernel are the providers of a pattern without one, as in bpftrace: probes at returns have the same functions as kprobes.
var ofKernel = []string{"kprobe", "fentry", "tracepoint", "rawtracepoint", "software"}

// tracing are the spellings of kprobe and kretprobe for which a list has MODULE:FUNCTION.
var tracing = map[string]string{"fentry": "fentry", "kfunc": "fentry", "f": "fentry", "fexit": "fexit", "kretfunc": "fexit", "fr": "fexit"}

// ofFiles are the providers whose places may be in a file of the guest.
var ofFiles = []string{"uprobe", "uretprobe", "usdt"}

// periods are the units of periodic probes, which a script prefixes to a number.
var periods = []string{"hz:", "ms:", "s:", "us:"}

// List parses a pattern for probes: PROVIDER:PATTERN, in both of which * ? and [] are
// allowed, or PATTERN alone. Errors are an *Error.
func List(pattern string, t Target) (out []Listed, err error) {
	s := &script{source: &source{name: "stdin", text: pattern}}
	at := Span{From: 0, To: len(pattern)}
	pattern = strings.ReplaceAll(pattern, `"`, "")
	word, rest, ok := strings.Cut(pattern, ":")
	from := listed
	if !ok {
		word, rest, from = "*", pattern, ofKernel
	}
	if rest == "" {
		rest = "*"
	}
	if _, err := path.Match(rest, ""); err != nil {
		return nil, s.errorAt(at, "%s: want a pattern", pattern)
	}
	if full := cmp.Or(tracing[word], providers[word]); full != "" {
		word = full
	} else if instead, known := elsewhere[word]; known {
		return nil, s.errorAt(at, "probe type '%s' is not supported", word).hint("%s", instead)
	}
	if file, fn, ok := strings.Cut(rest, ":"); ok && file != "" && !strings.ContainsAny(file, "/*?[") && slices.Contains(ofFiles, word) {
		if at := t.FindFile(file); at != "" {
			rest = at + ":" + fn
		}
	}
	for _, p := range from {
		if ok, err := path.Match(word, p); err != nil || !ok {
			continue
		}
		kind := attachPoint{provider: cmp.Or(providers[p], p)}
		l := Listed{Provider: p, Pattern: rest, User: kind.inUser(), Kernel: tracing[p] != "", Returns: kind.atReturn(), Data: p == "watchpoint"}
		var all []string
		switch p {
		case "interval", "profile":
			all = periods
		case "software":
			all = []string{"cpu-clock", "cpu-clock:"}
		case "usdt":
			if l.Places, err = listStatic(rest, t); err != nil && word == p {
				return nil, s.errorAt(at, "%s", err)
			}
			l.Pattern = ""
		case "tracepoint":
			all, l.Pattern = t.Events(), ""
		case "rawtracepoint":
			all, l.Pattern = t.Tracepoints(), ""
		case "vm":
			all = slices.Clone(vmEvents)
			for _, reason := range t.Exits() {
				all = append(all, EventExit+":"+reason)
			}
		}
		for _, place := range all {
			// hz:99 matches hz: too. A pattern without a category is one for names in any, too.
			named, _ := path.Match("*:"+rest, place)
			if ok, _ := path.Match(rest, place); ok || named && p == "tracepoint" && !strings.Contains(rest, ":") || strings.HasSuffix(place, ":") && strings.HasPrefix(rest, place) {
				l.Places = append(l.Places, place)
			}
		}
		if len(all) > 0 {
			l.Pattern = ""
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		return nil, s.errorAt(at, "no places of %s can be listed", word).hint("these can: %s", strings.Join(listed, ", "))
	}
	return out, nil
}

// WatchedPlace returns the notation after the provider of a watchpoint at a variable
// of that size, if the pattern matches it, or "".
func (l *Listed) WatchedPlace(name string, size uint64) string {
	length := 8
	for uint64(length) > size && length > 1 {
		length /= 2
	}
	place := fmt.Sprintf("%s:%d:w", name, length)
	pattern := l.Pattern
	if !strings.Contains(pattern, ":") {
		pattern += ":*"
	}
	if ok, _ := path.Match(pattern, place); ok {
		return place
	}
	return ""
}
