package btsuite

import (
	"fmt"
	"regexp"
	"strings"
)

// Rule excludes tests, and has the reason.
type Rule struct {
	Kind    Kind // "" for all kinds
	NoGuest bool // only where runtime tests have no guest
	Pattern *regexp.Regexp
	Reason  string
}

// excludes reports whether a rule matches a test: its name, followed by its script in the next lines.
func (r Rule) excludes(x Result) bool {
	return (r.Kind == "" || r.Kind == x.Kind) && r.Pattern.MatchString(x.Name+"\n"+x.Script)
}

// exclusion returns the reason of the last rule that excludes a test, or "".
func exclusion(rules []Rule, x Result, guest bool) (reason string) {
	for _, r := range rules {
		if r.excludes(x) && !(r.NoGuest && guest && x.Kind == Runtime) {
			reason = r.Reason
		}
	}
	return reason
}

// ParseRules parses rules. A rule is a line KIND REGEXP, with KIND "all" for every kind, or "no-guest" for every kind but runtime
// tests that have a guest, followed by the reason in indented lines.
func ParseRules(text string) (rules []Rule, err error) {
	for n, line := range strings.Split(text, "\n") {
		body := strings.TrimSpace(line)
		switch {
		case body == "" || strings.HasPrefix(body, "#"):
		case body != line && strings.TrimLeft(line, " \t") != line:
			if len(rules) == 0 {
				return nil, fmt.Errorf("line %d: a reason without a rule", n+1)
			}
			last := &rules[len(rules)-1]
			last.Reason = strings.TrimSpace(last.Reason + " " + body)
		default:
			kind, pattern, _ := strings.Cut(body, " ")
			re, err := regexp.Compile(strings.TrimSpace(pattern))
			if err != nil || pattern == "" {
				return nil, fmt.Errorf("line %d: want KIND REGEXP: %v", n+1, err)
			}
			rule := Rule{Kind: Kind(kind), Pattern: re}
			if rule.NoGuest = kind == "no-guest"; rule.NoGuest || kind == "all" {
				rule.Kind = ""
			}
			rules = append(rules, rule)
		}
	}
	for _, r := range rules {
		if r.Reason == "" {
			return nil, fmt.Errorf("the rule %q has no reason below it", r.Pattern)
		}
	}
	return rules, nil
}
