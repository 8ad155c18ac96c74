package http

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// toolRefusals are accepted reasons why one of bpftrace's tools does not start on a Debian kernel for virtual machines.
var toolRefusals = regexp.MustCompile(`is no file of the guest \(write where it is there|No matches for (k(ret)?probe|tracepoint) |does not contain a field named|cgroup_path is not supported`)

// TestLinuxBpftraceTools starts and stops each tool of the bpftrace in -bpftrace on a Linux guest, and prints the results. If a tool
// does not start, the reason must be one of toolRefusals. The tools that use tracepoints also have a load, and print what the guest's
// own kernel counts for it.
func TestLinuxBpftraceTools(t *testing.T) {
	dirs := kvmtest.RequireLinux(t)
	tools, err := filepath.Glob(filepath.Join(*bpftraceRoot, "usr/sbin/*.bt"))
	if err != nil || *bpftraceRoot == "" || len(tools) == 0 {
		t.Fatalf("-bpftrace %q has no tools of bpftrace's (%v): make test-bpftrace-tools gives them", *bpftraceRoot, err)
	}
	texts, uses := map[string]string{}, []string(nil)
	for _, tool := range tools {
		name := strings.TrimSuffix(filepath.Base(tool), ".bt")
		text, err := os.ReadFile(tool)
		if err != nil {
			t.Fatal(err)
		}
		if texts[name] = string(text); regexp.MustCompile(`(?m)^tracepoint:`).Match(text) {
			uses = append(uses, name)
		}
	}
	for _, name := range uses {
		if !slices.ContainsFunc(btTools, func(tool btTool) bool { return tool.name == name }) {
			t.Errorf("%s uses tracepoints, and has no load", name)
		}
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var major, minor int
			if _, err := fmt.Sscanf(filepath.Base(dir), "%d.%d", &major, &minor); err != nil {
				t.Fatal(err)
			}
			g := bootLoads(t, dir, "")
			for _, tool := range btTools {
				if text, is := texts[tool.name]; is {
					t.Run(tool.name, func(t *testing.T) { g.compareTool(t, tool, text, major*100+minor) })
				}
			}
			runs := 0
			for _, tool := range tools {
				name := strings.TrimSuffix(filepath.Base(tool), ".bt")
				err := g.startAndStop(api.RunScript{Script: texts[name], Name: name, Format: api.ScriptText})
				if err == nil {
					runs++
					continue
				}
				first, _, _ := strings.Cut(err.Error(), "\n")
				t.Logf("%s: %s", name, first)
				if !toolRefusals.MatchString(err.Error()) {
					t.Errorf("%s is refused: %v", name, err)
				}
			}
			t.Logf("%d of bpftrace's %d tools run", runs, len(tools))
			if 2*runs < len(tools) {
				t.Error("that is less than half of them")
			}
		})
	}
}

// compareTool runs a tool beside its load, and compares what both say.
func (g *loadGuest) compareTool(t *testing.T, tool btTool, text string, linux int) {
	if tool.before != nil {
		if failed := g.load(t, tool.name+".bt before"); len(failed) > 0 {
			t.Fatalf("the guest's own tracing: %q", failed)
		}
	}
	s, err := g.c.RunScript(g.ctx, api.RunScript{Script: text, Name: tool.name, Format: api.ScriptText})
	if err != nil && linux < tool.since && toolRefusals.MatchString(err.Error()) {
		first, _, _ := strings.Cut(err.Error(), "\n")
		t.Logf("not with this kernel: %s", first)
		return
	} else if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	of := *g.harness
	of.T = t
	h := &of
	start := next[api.Start](h, s, api.RecordStart)
	probes := g.listProbes(t)
	missed, all := map[string]uint64{}, uint64(0)
	for _, p := range probes {
		missed[p.Name] = p.Stats.Missed
		all += p.Stats.Missed
		t.Logf("%s runs on %s %s, missed %d", p.Symbol, p.Runs, p.OnHost, p.Stats.Missed)
	}
	records := make(chan api.Record, 1<<14)
	go func() {
		defer close(records)
		for r, err := s.Next(); err == nil; r, err = s.Next() {
			records <- r
		}
	}()
	out, warnings := "", []string(nil)
	take := func(r api.Record) {
		switch r.Type {
		case api.RecordOutput:
			out += decode[api.Output](h, r).Text
		case api.RecordWarning:
			warnings = append(warnings, decode[api.Warning](h, r).Text)
		}
	}
	g.ask(t, tool.name+".bt")
	if tool.before != nil {
		g.readUntil(t, "QUIET")
		for len(records) > 0 {
			take(<-records)
		}
		for n := strings.Count(out, tool.prints) + 3; tool.prints != "" && strings.Count(out, tool.prints) < n; { // one may be under way
			take(<-records)
		}
	}
	for _, p := range g.listProbes(t) {
		if p.Stats.Missed != missed[p.Name] || p.Program == nil || p.Program.Faults != 0 || p.Program.Missed != 0 {
			t.Errorf("%s: %+v %+v", p.Symbol, p.Stats, p.Program)
		}
	}
	var want []string
	if tool.before == nil {
		want = g.readLoad(t, tool.name+".bt")
	}
	if err := g.c.EndStream(g.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	for r := range records {
		take(r)
	}
	if tool.before != nil {
		g.ask(t, "stopped")
		want = g.readLoad(t, tool.name+".bt")
	}
	if len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
	// The host's calls that switch tracepoints on wake a thread: the probes miss that, and the guest's own events do not.
	got := tool.got(fmt.Sprintf("%s\nmissed %d\n", out, all), g.pid)
	if tool.unordered {
		slices.Sort(want)
		slices.Sort(got)
	}
	same := slices.Equal(want, got)
	if tool.more && len(want) == 1 && len(got) == 1 {
		var least, n int
		_, err := fmt.Sscan(want[0], &least)
		_, err2 := fmt.Sscan(got[0], &n)
		same = err == nil && err2 == nil && least > 0 && n >= least
		t.Logf("it counts %s, and the guest's own kernel until before its end %s", got[0], want[0])
	}
	if len(want) == 0 || !same {
		t.Errorf("the guest's own kernel says:\n%s\nthe tool says:\n%s\nits output:\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"), out)
		return
	}
	t.Logf("%d lines agree: %s", len(want), want[len(want)-1])
}

// listProbes returns the guest's probes.
func (g *loadGuest) listProbes(t *testing.T) []api.Probe {
	t.Helper()
	all, err := g.c.Probes(g.ctx)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// startAndStop starts a script and stops it.
func (h *harness) startAndStop(r api.RunScript) error {
	h.Helper()
	s, err := h.c.RunScript(h.ctx, r)
	if err != nil {
		return err
	}
	defer s.Close()
	start := next[api.Start](h, s, api.RecordStart)
	// A script without probes, such as xfsdist without XFS, has already ended.
	var wire *api.Error
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil && !(errors.As(err, &wire) && wire.Code == api.CodeNoStream) {
		return err
	}
	h.readRest(s)
	return nil
}
