package cli

import (
	"encoding/xml"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdResults reads the reports junit.xml and report.tap, each with a parser of its format, and checks that both have these results,
// NAME=passed or NAME=KIND:
//
//	results reads=passed small=assert
func cmdResults(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: results name=kind...")
	}
	want := map[string]string{}
	for _, a := range args {
		name, kind, _ := strings.Cut(a, "=")
		want[name] = kind
	}
	type reason struct {
		Type    string `xml:"type,attr"`
		Message string `xml:"message,attr"`
	}
	var suites struct {
		XMLName xml.Name `xml:"testsuites"`
		Suites  []struct {
			N     int `xml:"tests,attr"`
			Cases []struct {
				Name    string  `xml:"name,attr"`
				Failure *reason `xml:"failure"`
				Error   *reason `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	ts.Check(xml.Unmarshal([]byte(ts.ReadFile("junit.xml")), &suites))
	got := map[string]string{}
	for _, s := range suites.Suites {
		if s.N != len(s.Cases) {
			ts.Fatalf("junit.xml: %d tests, and %d cases", s.N, len(s.Cases))
		}
		for _, c := range s.Cases {
			got[c.Name] = "passed"
			for _, r := range []*reason{c.Failure, c.Error} {
				if r != nil {
					got[c.Name] = r.Type
				}
			}
		}
	}
	if !maps.Equal(got, want) {
		ts.Fatalf("junit.xml has %v, want %v", got, want)
	}
	tap := ts.ReadFile("report.tap")
	got = map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(not )?ok \d+ - (\S+)\n  ---\n((?:    ?.*\n|  [^.].*\n)*)  \.\.\.$`).FindAllStringSubmatch(tap, -1) {
		got[m[2]] = "passed"
		if kind := regexp.MustCompile(`(?m)^  kind: "(.*)"$`).FindStringSubmatch(m[3]); kind != nil && m[1] != "" {
			got[m[2]] = kind[1]
		}
	}
	if !maps.Equal(got, want) {
		ts.Fatalf("report.tap has %v, want %v: %s", got, want, tap)
	}
	if lines := strings.Split(tap, "\n"); lines[0] != "TAP version 13" || !slices.Contains(lines, "1..1") && len(want) == 1 {
		ts.Fatalf("report.tap begins with %q", lines[:2])
	}
}
