package http

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// yamlMap is a map of docs/openapi.yaml.
type yamlMap = map[string]any

// readYAML returns the document, which has each key once: the library sees to that.
func readYAML(t *testing.T, path string) yamlMap {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc yamlMap
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return doc
}

// at returns the value that is found by keys, one below the other, or nil.
func at(v any, keys ...string) any {
	for _, k := range keys {
		m, _ := v.(yamlMap)
		v = m[k]
	}
	return v
}

// each calls f with each map of the document, and the key that it has there.
func each(key string, v any, f func(key string, m yamlMap)) {
	switch v := v.(type) {
	case yamlMap:
		f(key, v)
		for k, x := range v {
			each(k, x, f)
		}
	case []any:
		for _, x := range v {
			each(key, x, f)
		}
	}
}

const openapi = "../../../docs/openapi.yaml"

// TestOpenAPIRoutes compares the mux table with the document.
func TestOpenAPIRoutes(t *testing.T) {
	var want, got []string
	for _, r := range routes() {
		want = append(want, r.Method+" "+r.Path)
	}
	paths := at(readYAML(t, openapi), "paths").(yamlMap)
	for p, methods := range paths {
		for m := range methods.(yamlMap) {
			if m == "parameters" {
				continue
			}
			got = append(got, strings.ToUpper(m)+" "+p)
			if at(methods, m, "summary") == nil {
				t.Errorf("%s %s has no summary", m, p)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("docs/openapi.yaml differs from the routes (-routes +document):\n%s", d)
	}
}

// TestOpenAPISchemas compares the fields of the wire structs with the document.
func TestOpenAPISchemas(t *testing.T) {
	schemas := at(readYAML(t, openapi), "components", "schemas").(yamlMap)
	wire := []any{
		api.Error{}, api.ErrorBody{}, api.Version{}, api.Host{}, api.HostKVM{}, api.HostTraps{}, api.TrapReport{}, api.Daemon{}, api.EventCounts{},
		api.Guest{}, api.Jail{}, api.Kernel{}, api.CPUInfo{}, api.Crash{}, api.ResetGuest{}, api.Snapshot{}, api.ConsoleInput{}, api.ConsoleTaken{}, api.Call{}, api.CallResult{}, api.Text{}, api.TextRange{},
		api.SymbolList{}, api.Symbol{}, api.Prototype{}, api.Parameter{}, api.TaskList{}, api.TaskInfo{}, api.VariableList{}, api.VariablePlace{}, api.Variable{}, api.RegisterList{}, api.Registers{}, api.Segment{}, api.Table{}, api.Vectors{},
		api.Memory{}, api.Pointer{}, api.WriteMemory{}, api.WriteRegisters{}, api.PageWalk{}, api.PageStep{}, api.Mapping{}, api.BacktraceList{}, api.Backtrace{}, api.FrameArg{}, api.StackFrame{}, api.ResumeGuest{}, api.Step{}, api.Stepped{}, api.Disas{}, api.DisasInst{}, api.DisasProbe{}, api.DisasRegion{}, api.ProbeSpec{}, api.Override{}, api.ProbeOverride{}, api.CreateProbes{}, api.PatchProbe{}, api.PatchProbes{}, api.ProbeList{}, api.Skipped{},
		api.AttachProgram{}, api.GiveFile{}, api.GivenFile{}, api.ProgramInfo{}, api.ProgramWarning{}, api.MapList{}, api.MapInfo{}, api.MapDump{}, api.MapEntry{}, api.MapBucket{}, api.MapRing{}, api.ChartList{}, api.ChartSource{}, api.Chart{}, api.ChartBar{}, api.Probe{},
		api.Stats{}, api.CPUStats{}, api.Knobs{}, api.Optimization{}, api.SetOptimization{}, api.Unoptimized{}, api.Blacklist{}, api.BlacklistEntry{}, api.StreamEvents{}, api.StreamProfile{}, api.Stack{}, api.StreamCounts{}, api.Page{}, api.Check{}, api.Checked{}, api.Counted{}, api.ProbeCounts{}, api.Durations{}, api.RunScript{}, api.ScriptMaps{}, api.FleetState{}, api.FleetDefinition{}, api.ScriptList{}, api.ScriptInfo{}, api.PlaceList{}, api.Place{}, api.Record{},
		api.Start{}, api.Boot{}, api.Stop{}, api.Hit{}, api.Task{}, api.Frame{}, api.Arg{}, api.Console{}, api.Output{}, api.Interval{}, api.Warning{}, api.Heartbeat{}, api.Lost{}, api.End{},
	}
	known := map[string]bool{"Hex": true, "Code": true}
	for _, v := range wire {
		typ := reflect.TypeOf(v)
		known[typ.Name()] = true
		var want []string
		for _, f := range reflect.VisibleFields(typ) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				want = append(want, name)
			}
		}
		properties, _ := at(schemas, typ.Name(), "properties").(yamlMap)
		got := slices.Sorted(maps.Keys(properties))
		slices.Sort(want)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("schema %s (-struct +document):\n%s", typ.Name(), d)
		}
	}
	for name := range schemas {
		if !known[name] {
			t.Errorf("schema %s is of no wire struct", name)
		}
	}
}

func TestOpenAPIReferences(t *testing.T) {
	doc := readYAML(t, openapi)
	used := map[string]bool{}
	each("", doc, func(_ string, m yamlMap) {
		ref, ok := m["$ref"].(string)
		if !ok {
			return
		}
		path := strings.TrimPrefix(ref, "#/")
		used[path] = true
		if at(doc, strings.Split(path, "/")...) == nil {
			t.Errorf("%s refers to nothing", ref)
		}
	})
	if len(used) < 50 {
		t.Errorf("only %d things are referred to", len(used))
	}
	for _, kind := range []string{"responses", "requestBodies"} {
		for name := range at(doc, "components", kind).(yamlMap) {
			if !used["components/"+kind+"/"+name] {
				t.Errorf("%s %s is not used", kind, name)
			}
		}
	}
}

// TestOpenAPICodes compares the constants of package api with the document, and
// wants a status for each.
func TestOpenAPICodes(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../../probe/remote/api/code.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []any
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.ValueSpec); ok {
			if typ, ok := s.Type.(*ast.Ident); ok && typ.Name == "Code" {
				code, err := strconv.Unquote(s.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, code)
				if statusOf[api.Code(code)] == 0 {
					t.Errorf("code %s has no status", code)
				}
			}
		}
		return true
	})
	slices.SortFunc(want, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	if d := cmp.Diff(want, at(readYAML(t, openapi), "components", "schemas", "Code", "enum")); d != "" {
		t.Errorf("codes (-package +document):\n%s", d)
	}
}
