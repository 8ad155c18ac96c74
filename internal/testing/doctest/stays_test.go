package doctest

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

var writeLevel = flag.Bool("write-level", false, "TestWhatStays: write down what this level of the API has")

// schema is what a field of docs/openapi.yaml is.
type schema struct {
	Ref    string `yaml:"$ref"`
	Type   string
	Items  *schema
	Values *schema `yaml:"additionalProperties"`
}

// kind is the schema's type, and behind it that of what is in it: " array Probe".
func (s *schema) kind() string {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		return " " + s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
	case s.Type != "":
		return " " + s.Type + s.Items.kind() + s.Values.kind()
	}
	return ""
}

// misread are lines of level 1.1 whose last word is none of a type: it was taken from the field's description.
var misread = map[string]string{"field MapEntry.keyData a": "field MapEntry.keyData", "field Memory.type string how": "field Memory.type string"}

// has reports whether a line is among those of now, or one that says more of the field's type: levels before 1.2 were written
// down without the type of what has a list of values, and of what took several lines of the document.
func has(now []string, was string) bool {
	was = cmp.Or(misread[was], was)
	return slices.ContainsFunc(now, func(line string) bool {
		return line == was || strings.HasPrefix(was, "field ") && strings.HasPrefix(line, was+" ")
	})
}

// interfaces are what the documents say that others may build on, a line each: routes and their parameters, fields and their
// types, codes of errors, commands, their flags and exit statuses. Other tests hold these documents to the programs.
func interfaces(t *testing.T) (out []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs/openapi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths      map[string]map[string]yaml.Node
		Components struct {
			Schemas map[string]struct {
				Enum       []string
				Properties map[string]schema
			}
		}
	}
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatalf("docs/openapi.yaml: %v", err)
	}
	for path, methods := range doc.Paths {
		for method, node := range methods {
			if method == "parameters" {
				continue
			}
			var operation struct{ Parameters []struct{ Name, In string } }
			if err := node.Decode(&operation); err != nil {
				t.Fatalf("%s %s: %v", method, path, err)
			}
			route := strings.ToUpper(method) + " " + path
			out = append(out, route)
			for _, p := range operation.Parameters {
				out = append(out, fmt.Sprintf("%s %s %s", route, p.In, p.Name))
			}
		}
	}
	for _, code := range doc.Components.Schemas["Code"].Enum {
		out = append(out, "code "+code)
	}
	for name, s := range doc.Components.Schemas {
		for field, is := range s.Properties {
			out = append(out, "field "+name+"."+field+is.kind())
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
			if was = strings.TrimSuffix(was, "\n"); !has(now, was) {
				t.Errorf("%s: %q is not there any more: docs/stability.md promises it, or the level's major number rises", path, was)
			}
		}
	}
}
