package http

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// yamlNode is a map of the part of YAML that docs/openapi.yaml is written in:
// maps by indentation, and on one line whatever else there is.
type yamlNode struct {
	text string // behind the colon, on the same line
	keys []string
	sub  map[string]*yamlNode
	list []string // lines that begin with a dash
}

func readYAML(t *testing.T, path string) (*yamlNode, string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	key := regexp.MustCompile(`^( *)("[^"]*"|[^\s:"]+):(?: (.*))?$`)
	root := &yamlNode{sub: map[string]*yamlNode{}}
	type level struct {
		indent int
		node   *yamlNode
	}
	stack := []level{{-1, root}}
	for i, line := range strings.Split(string(b), "\n") {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		for stack[len(stack)-1].indent >= indent && strings.TrimSpace(line) != "" {
			stack = stack[:len(stack)-1]
		}
		top := stack[len(stack)-1].node
		if item, ok := strings.CutPrefix(strings.TrimSpace(line), "- "); ok {
			top.list = append(top.list, item)
			continue
		}
		m := key.FindStringSubmatch(line)
		if m == nil || top.text == "|" {
			continue // text of a block
		}
		name, err := strconv.Unquote(m[2])
		if err != nil {
			name = m[2]
		}
		if top.sub[name] != nil {
			t.Fatalf("%s:%d: %s stands twice", path, i+1, name)
		}
		n := &yamlNode{text: m[3], sub: map[string]*yamlNode{}}
		top.keys, top.sub[name] = append(top.keys, name), n
		stack = append(stack, level{indent, n})
	}
	return root, string(b)
}

func (n *yamlNode) at(path ...string) *yamlNode {
	for _, p := range path {
		if n = n.sub[p]; n == nil {
			return &yamlNode{}
		}
	}
	return n
}

const openapi = "../../../docs/openapi.yaml"

// TestOpenAPIRoutes compares the mux table with the document.
func TestOpenAPIRoutes(t *testing.T) {
	doc, _ := readYAML(t, openapi)
	var want, got []string
	for _, r := range routes() {
		want = append(want, r.method+" "+r.path)
	}
	paths := doc.at("paths")
	for _, p := range paths.keys {
		for _, m := range paths.sub[p].keys {
			if m == "parameters" {
				continue
			}
			got = append(got, strings.ToUpper(m)+" "+p)
			if paths.at(p, m, "summary").text == "" {
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
	doc, _ := readYAML(t, openapi)
	schemas := doc.at("components", "schemas")
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
		got := slices.Clone(schemas.at(typ.Name(), "properties").keys)
		slices.Sort(want)
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("schema %s (-struct +document):\n%s", typ.Name(), d)
		}
	}
	for _, name := range schemas.keys {
		if !known[name] {
			t.Errorf("schema %s is of no wire struct", name)
		}
	}
}

func TestOpenAPIReferences(t *testing.T) {
	doc, text := readYAML(t, openapi)
	refs := regexp.MustCompile(`"#/([^"]*)"`).FindAllStringSubmatch(text, -1)
	if len(refs) < 50 {
		t.Errorf("only %d references found", len(refs))
	}
	used := map[string]bool{}
	for _, r := range refs {
		used[r[1]] = true
		if n := doc.at(strings.Split(r[1], "/")...); n.text == "" && n.keys == nil {
			t.Errorf("%s refers to nothing", r[1])
		}
	}
	for _, kind := range []string{"responses", "requestBodies"} {
		for _, name := range doc.at("components", kind).keys {
			if !used["components/"+kind+"/"+name] {
				t.Errorf("%s %s is not used", kind, name)
			}
		}
	}
}

// TestOpenAPICodes compares the constants of package api with the document, and
// wants a status for each.
func TestOpenAPICodes(t *testing.T) {
	doc, _ := readYAML(t, openapi)
	file, err := parser.ParseFile(token.NewFileSet(), "../../../probe/remote/api/code.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
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
	slices.Sort(want)
	if d := cmp.Diff(want, doc.at("components", "schemas", "Code", "enum").list); d != "" {
		t.Errorf("codes (-package +document):\n%s", d)
	}
}
