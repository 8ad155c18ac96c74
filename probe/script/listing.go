package script

import (
	"path"
	"strings"
)

// Listed is a provider that a pattern stands for, and its own pattern for places there.
type Listed struct {
	Provider string
	Pattern  string
	User     bool // those of user code alone
}

// listed are the providers whose places can be listed, in that order. A pattern that does
// not name the provider is about kprobes, as those at returns are the same functions.
var listed = []string{"kprobe", "kretprobe", "uprobe", "uretprobe"}

// List takes a pattern for probes apart: PROVIDER:PATTERN, in both of which * ? and [] may
// be, or PATTERN alone. Errors are an *Error.
func List(pattern string) (out []Listed, err error) {
	s := &script{source: &source{name: "stdin", text: pattern}}
	at := Span{From: 0, To: len(pattern)}
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
		if ok, err := path.Match(word, p); err == nil && ok {
			out = append(out, Listed{p, rest, (&attachPoint{provider: p}).inUser()})
		}
	}
	if len(out) == 0 {
		return nil, s.at(at, "no places of %s can be listed", word).hint("there are those of %s", strings.Join(listed, ", "))
	}
	return out, nil
}
