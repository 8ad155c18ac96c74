package btsuite

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/guestprobe/guestprobe/probe/script"
)

// selfProbe matches upstream's probe type for tests. Such a test fails if it returns a number other than 0.
var selfProbe = regexp.MustCompile(`(?m)^test:(\w+)`)

var returns = regexp.MustCompile(`\breturn (\d+);`)

// selfCases returns the scripts of a file of self tests, and their names. Each script is the file's beginning and one test, as a BEGIN probe.
func selfCases(text string) (names, scripts []string) {
	at := selfProbe.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		body := returns.ReplaceAllString(text[m[1]:end], "exit($1);")
		names = append(names, text[m[2]:m[3]])
		scripts = append(scripts, text[:at[0][0]]+"BEGIN"+body)
	}
	return names, scripts
}

// runSelf runs one self test.
func runSelf(name, text string, t *target) Result {
	r := Result{Kind: Self, Name: name, Script: text}
	s, err := script.Compile(text, t, script.Options{CPUs: 1})
	if err != nil {
		r.Outcome, r.Said = Refused, err.Error()
		return r
	}
	out, status, err := execute(s, false, true)
	switch {
	case err != nil:
		r.Outcome, r.Said = Wrong, err.Error()
	case status != 0:
		r.Outcome, r.Said = Wrong, fmt.Sprintf("returns %d\n%s", status, strings.TrimSpace(out))
	}
	return r
}
