package script

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Listed is a provider that a pattern stands for, and what it has: functions of which Pattern
// is one, variables, or Places.
type Listed struct {
	Provider string
	Pattern  string
	User     bool     // functions of user code alone
	Data     bool     // variables
	Places   []string // all that match, as they are written behind the provider
}

// listed are the providers whose places can be listed, in that order. A pattern that does
// not name the provider is about kprobes, as those at returns are the same functions.
var listed = []string{"kprobe", "kretprobe", "uprobe", "uretprobe", "watchpoint", "interval", "profile", "vm"}

// periods are the units of what runs at times, of which a script says how many.
var periods = []string{"hz:", "ms:", "s:", "us:"}

// List takes a pattern for probes apart: PROVIDER:PATTERN, in both of which * ? and [] may
// be, or PATTERN alone. Errors are an *Error.
func List(pattern string, t Target) (out []Listed, err error) {
	s := &script{source: &source{name: "stdin", text: pattern}}
	at := Span{From: 0, To: len(pattern)}
	pattern = strings.ReplaceAll(pattern, `"`, "")
	word, rest, ok := strings.Cut(pattern, ":")
	if !ok {
		word, rest = "kprobe", pattern
	}
	if rest == "" {
		rest = "*"
	}
	if _, err := path.Match(rest, ""); err != nil {
		return nil, s.at(at, "%s: want a pattern", pattern)
	}
	if full := providers[word]; full != "" {
		word = full
	} else if instead, known := elsewhere[word]; known {
		return nil, s.at(at, "probe type '%s' is not supported", word).hint("%s", instead)
	}
	for _, p := range listed {
		if ok, err := path.Match(word, p); err != nil || !ok {
			continue
		}
		l := Listed{Provider: p, Pattern: rest, User: (&attachPoint{provider: p}).inUser(), Data: p == "watchpoint"}
		var all []string
		switch p {
		case "interval", "profile":
			all = periods
		case "vm":
			all = slices.Clone(vmEvents)
			for _, reason := range t.Exits() {
				all = append(all, EventExit+":"+reason)
			}
		}
		for _, place := range all {
			// hz:99 is about hz: too.
			if ok, _ := path.Match(rest, place); ok || strings.HasSuffix(place, ":") && strings.HasPrefix(rest, place) {
				l.Places = append(l.Places, place)
			}
		}
		if len(all) > 0 {
			l.Pattern = ""
		}
		out = append(out, l)
	}
	if len(out) == 0 {
		return nil, s.at(at, "no places of %s can be listed", word).hint("there are those of %s", strings.Join(listed, ", "))
	}
	return out, nil
}

// WatchedPlace returns what a watchpoint at a variable of so many bytes is written as,
// behind the provider, where that is what the pattern stands for, or "".
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
