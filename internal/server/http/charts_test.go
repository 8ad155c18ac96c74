package http

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestCharts: maps of scripts, with and without clients, and of programs are bars.
func TestCharts(t *testing.T) {
	h := serveFake(t, nil)
	charts := func(of string) (l api.ChartList) {
		t.Helper()
		status, body := h.rawRequest(http.MethodGet, "/v1/charts?"+url.Values{"of": {of}}.Encode(), "")
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", of, status, body)
		}
		if err := json.Unmarshal([]byte(body), &l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := charts(""); len(l.Sources)+len(l.Charts) != 0 {
		t.Errorf("of nothing: %+v", l)
	}
	if _, err := h.c.DetachScript(h.ctx, api.RunScript{
		Script: `BEGIN { @h[7, "x"] = hist(5); @by["a"] = 3; @by["b"] = 4; @one = 9; @l = lhist(2500, 0, 2048, 1024); @s["k"] = stats(4); @two["a,b", "c"] = 1; @two["a", "b,c"] = 1; @u["count"] = 2; @t = "text"; } interval:s:100 { }`, Detach: "kept",
	}); err != nil {
		t.Fatal(err)
	}
	s, err := h.c.RunScript(h.ctx, api.RunScript{Script: `BEGIN { @n[5] = hist(1024); @n[5] = hist(1024); } interval:s:100 { }`, Name: "elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	stream := next[api.Start](h, s, api.RecordStart).Stream
	if _, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "latency.o")}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		h.g.hit(t, 1, "vfs_read", 0, nil)
	}
	m, err := h.c.Map(h.ctx, "nanoseconds")
	if err != nil {
		t.Fatal(err)
	}
	program := fmt.Sprintf("program %d", m.ID)
	run := fmt.Sprintf("stream %d", stream)
	for of, want := range map[string]string{
		"kept":  `[{@by false [{b 4} {a 3}] 0} {@h[7,x] true [{[4, 8) 1}] 0} {@l true [{[2K, ...) 1}] 0} {@one false [{@one 9}] 0} {@s (count) false [{k 1}] 0} {@two false [{a,b,c 1} {a,b,c (2) 1}] 0} {@u false [{count 2}] 0}]`,
		run:     `[{@n[5] true [{[1K, 2K) 2}] 0}]`,
		program: `[{nanoseconds true [] 0} {started false [{0 `,
	} {
		if got := fmt.Sprint(charts(of).Charts); !strings.HasPrefix(got, want) {
			t.Errorf("%s has %s, want %s", of, got, want)
		}
	}
	want := fmt.Sprintf("[{kept script kept } {%s stream elsewhere (stream %d) } {%s program programs at bpf/enter, bpf/leave }]", run, stream, program)
	if got := fmt.Sprint(charts("").Sources); got != want {
		t.Errorf("there are %s, want %s", got, want)
	}
	if status, body := h.rawRequest(http.MethodGet, "/v1/charts?of=nothing", ""); status != http.StatusNotFound {
		t.Errorf("of nothing: %d %s", status, body)
	}
	// What has no room in a chart is told.
	if _, err := h.c.DetachScript(h.ctx, api.RunScript{Script: `BEGIN { $i = 0; while ($i < 203) { @keys[$i] = $i + 1; @values = lhist($i, 0, 203, 1); $i++; } } interval:s:100 { }`, Detach: "many"}); err != nil {
		t.Fatal(err)
	}
	many := charts("many").Charts
	if len(many) != 2 {
		t.Fatalf("of many: %+v", many)
	}
	for _, c := range many {
		if len(c.Bars) != api.MaxBars || c.Left != 3 {
			t.Errorf("%s has %d bars and %d left, want %d and 3", c.Name, len(c.Bars), c.Left, api.MaxBars)
		}
	}
	// A script that is gone with its client is no source any more.
	if err := h.c.EndStream(h.ctx, stream); err != nil {
		t.Fatal(err)
	}
	for strings.Contains(fmt.Sprint(charts("").Sources), run) { // h.ctx ends it
	}
}
