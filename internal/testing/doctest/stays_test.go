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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/guestprobe/guestprobe/internal/cli"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleetd"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
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

// interfaces are what others may build on, a line each: routes with their names and parameters, fields and their types, and codes of
// errors, from docs/openapi.yaml, which other tests hold to the daemon; commands, their flags and exit statuses, from the
// programs' command lines.
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
			var operation struct {
				OperationID string `yaml:"operationId"`
				Parameters  []struct{ Name, In string }
			}
			if err := node.Decode(&operation); err != nil {
				t.Fatalf("%s %s: %v", method, path, err)
			}
			route := strings.ToUpper(method) + " " + path
			out = append(out, route, "operation "+operation.OperationID+" "+route)
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
	for _, p := range []command.Program{cli.Program(), daemon.Program(nil), fleetd.Program()} {
		c := p.Describe()
		c.InitDefaultCompletionCmd()
		out = append(out, commandLine(c)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// exitStatus is a line of a help text's list of exit statuses.
var exitStatus = regexp.MustCompile(`(?m)^  (\d+|N)  +\S`)

// commandLine returns a command with its flags and exit statuses, and those of the commands below it, hidden ones included.
func commandLine(c *cobra.Command) (out []string) {
	name := c.CommandPath()
	out = append(out, "command "+name)
	c.InitDefaultHelpFlag()
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		out = append(out, "flag "+name+" --"+f.Name)
		if f.Shorthand != "" {
			out = append(out, "flag "+name+" -"+f.Shorthand)
		}
	})
	if _, list, ok := strings.Cut(c.Long, "Exit status:\n"); ok {
		for _, m := range exitStatus.FindAllStringSubmatch(list, -1) {
			out = append(out, "exit status of "+name+" "+m[1])
		}
	}
	for _, sub := range c.Commands() {
		out = append(out, commandLine(sub)...)
	}
	return out
}

// TestHiddenCommandsStay: what is hidden from help is among the promises, too.
func TestHiddenCommandsStay(t *testing.T) {
	now := interfaces(t)
	for _, want := range []string{"command guestprobe ls", "flag guestprobe ls --columns", "flag guestprobe ls -o", "flag guestprobe rm --all", "exit status of guestprobe 124", "exit status of guestprobe N", "flag guestprobe -s", "flag guestprobed --probe", "command guestprobe-fleetd"} {
		if !slices.Contains(now, want) {
			t.Errorf("no %q", want)
		}
	}
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
