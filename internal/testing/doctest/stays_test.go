package doctest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

var writeLevel = flag.Bool("write-level", false, "TestWhatStays: write down what this level of the API has")

// interfaces are what the documents say that others may build on, a line each: routes and their parameters, fields and their
// types, codes of errors, commands, their flags and exit statuses. Other tests hold these documents to the programs.
func interfaces(t *testing.T) (out []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs/openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var at []string // keys that are open, one for each two blanks
	line := regexp.MustCompile(`^((?:  )*)(?:("?[^\s:"]+"?):|- )(.*)$`)
	parameter := regexp.MustCompile(`name: (\w+), in: (\w+)`)
	kind := regexp.MustCompile(`\$ref: "[^"]*/(\w+)"|type: (\w+)`)
	for text := range strings.Lines(string(b)) {
		m := line.FindStringSubmatch(strings.TrimRight(text, "\n"))
		if m == nil || len(m[1])/2 > len(at) {
			continue // text of a block
		}
		at = append(at[:len(m[1])/2], m[2])
		switch where := strings.Join(at, " "); {
		case at[0] == "paths" && len(at) == 3 && m[2] != "parameters":
			out = append(out, strings.ToUpper(m[2])+" "+at[1])
		case at[0] == "paths" && len(at) > 2 && at[2] != "parameters" && parameter.MatchString(m[3]):
			p := parameter.FindStringSubmatch(m[3])
			out = append(out, fmt.Sprintf("%s %s %s %s", strings.ToUpper(at[2]), at[1], p[2], p[1]))
		case strings.HasPrefix(where, "components schemas Code enum") && m[2] == "":
			out = append(out, "code "+m[3])
		case strings.HasPrefix(where, "components schemas ") && len(at) == 5 && at[3] == "properties":
			is := ""
			for _, k := range kind.FindAllStringSubmatch(m[3], -1) {
				is += " " + k[1] + k[2]
			}
			out = append(out, "field "+at[2]+"."+m[2]+is)
		}
	}
	command, flags := "", regexp.MustCompile(`^ {6,10}(?:-(\w), )?(--[\w-]+)( \S+)?(?:$|  )`)
	status, in := regexp.MustCompile(`^ {6}(\d+|N)  +\S`), ""
	for _, text := range strings.Split(documents(t)["docs/cli.md"], "\n") {
		if name, ok := strings.CutPrefix(text, "## "); ok {
			command, in = name, ""
			out = append(out, "command "+command)
		}
		switch m, s := flags.FindStringSubmatch(text), status.FindStringSubmatch(text); {
		case text == "Flags:", strings.HasSuffix(text, "Exit status:"):
			in = strings.TrimSpace(text)
		case in == "Flags:" && m != nil:
			out = append(out, "flag "+command+" "+m[2])
			if m[1] != "" {
				out = append(out, "flag "+command+" -"+m[1])
			}
		case in == "Exit status:" && s != nil:
			out = append(out, "exit status of "+command+" "+s[1])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestWhatStays: nothing that a level of the API had is missing in a later one of the same major number, as docs/stability.md promises.
func TestWhatStays(t *testing.T) {
	now := interfaces(t)
	for prefix, least := range map[string]int{"GET ": 20, "field ": 400, "code ": 30, "command ": 60, "flag ": 200, "exit status ": 8} {
		if n := len(slices.DeleteFunc(slices.Clone(now), func(s string) bool { return !strings.HasPrefix(s, prefix) })); n < least {
			t.Errorf("only %d of %q are found", n, prefix)
		}
	}
	file := func(level string) string { return filepath.Join("testdata", "level-"+level+".txt") }
	if *writeLevel {
		if err := os.WriteFile(file(api.Current.String()), []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(file(api.Current.String())); err != nil {
		t.Errorf("level %s is not written down: go test ./internal/testing/doctest -run TestWhatStays -write-level", api.Current)
	}
	levels, _ := filepath.Glob(file(fmt.Sprintf("%d.*", api.Current.Major))) // the pattern is right
	for _, path := range levels {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for was := range strings.Lines(string(b)) {
			if was = strings.TrimSuffix(was, "\n"); !slices.Contains(now, was) {
				t.Errorf("%s: %q is not there any more: docs/stability.md promises it, or the level's major number rises", path, was)
			}
		}
	}
}
