package http

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// scrape asks for metrics on loopback.
func (h *harness) scrape(change func(*http.Request)) (int, string) {
	h.Helper()
	addr := regexp.MustCompile(`msg=metrics address=(\S+)`).FindStringSubmatch(h.log.String())
	if addr == nil {
		h.Fatalf("no address of metrics in\n%s", h.log.String())
	}
	req, err := http.NewRequestWithContext(h.ctx, http.MethodGet, "http://"+addr[1]+"/metrics", nil)
	if err != nil {
		h.Fatal(err)
	}
	change(req)
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		h.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func serveMetricsFake(t *testing.T) *harness {
	t.Helper()
	return serveFake(t, func(o *options) { o.metricsListen, o.metricsDurations = "127.0.0.1:0", true })
}

// TestMetrics: promtool finds nothing to say about them, and both forms and both ways have the same.
func TestMetrics(t *testing.T) {
	h := serveMetricsFake(t)
	h.attach("p:io/a schedule", "r:b schedule", "p:io/c schedule+1")
	for range 3 {
		h.g.hit(t, 1, "schedule", 0, nil)
	}
	status, text := h.rawRequest(http.MethodGet, "/metrics", "")
	if status != http.StatusOK {
		t.Fatalf("status %d, %s", status, text)
	}
	for _, want := range []string{
		`guestprobe_probe_hits_total{probe="io/a"} 3`, `guestprobe_probe_handled_total{probe="io/a"} 3`, `guestprobe_probe_missed_total{probe="io/a"} 0`,
		`guestprobe_probe_hits_total{probe="io/c"} 0`, `guestprobe_probe_calls_in_progress{probe="kprobes/b"} `,
		`guestprobe_probes{kind="k"} 2`, `guestprobe_probes{kind="r"} 1`, `guestprobe_probes{kind="w"} 0`, `guestprobe_probes_armed 1`,
		`guestprobe_guest_state{state="running"} 1`, `guestprobe_guest_boots_total 1`,
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("without %s:\n%s", want, text)
		}
	}
	same := func(s string) string { // without what changes by itself
		return regexp.MustCompile(`(?m)^((# \w+ )?(go|process)_|# EOF).*\n`).ReplaceAllString(s, "")
	}
	if status, tcp := h.scrape(func(*http.Request) {}); status != http.StatusOK || same(tcp) != same(text) {
		t.Errorf("on loopback, status %d:\n%s", status, tcp)
	}
	_, open := h.scrape(func(r *http.Request) { r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0") })
	if !strings.HasSuffix(open, "\n# EOF\n") || !strings.Contains(open, "# TYPE guestprobe_probe_hits counter\n") || !strings.Contains(open, `guestprobe_probe_hits_total{probe="io/a"} 3.0`) {
		t.Errorf("OpenMetrics:\n%s", open)
	}
	families := map[string]bool{}
	for _, f := range regexp.MustCompile(`(?m)^# TYPE (\S+) `).FindAllStringSubmatch(open, -1) {
		if families[f[1]] {
			t.Errorf("two families of OpenMetrics are %s", f[1])
		}
		families[f[1]] = true
	}
	if !families["go_goroutines"] || !families["process_resident_memory_bytes"] {
		t.Errorf("families are %v", families)
	}
	cmd := exec.Command(kvmtest.RequireCommand(t, "promtool"), "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// TestMetricsLoopback: who comes by TCP gets metrics and nothing else, and no page of a browser does
// whose name leads here.
func TestMetricsLoopback(t *testing.T) {
	h := serveMetricsFake(t)
	for what, c := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"as asked":        {func(*http.Request) {}, http.StatusOK},
		"by name":         {func(r *http.Request) { r.Host = "localhost:9105" }, http.StatusOK},
		"another's name":  {func(r *http.Request) { r.Host = "evil.example:9105" }, http.StatusForbidden},
		"without a port":  {func(r *http.Request) { r.Host = "evil.example" }, http.StatusForbidden},
		"another method":  {func(r *http.Request) { r.Method = http.MethodPost }, http.StatusMethodNotAllowed},
		"another route":   {func(r *http.Request) { r.URL.Path = "/v1/guest" }, http.StatusNotFound},
		"a route upwards": {func(r *http.Request) { r.URL.Path = "/metrics/../v1/probes" }, http.StatusNotFound},
	} {
		if status, text := h.scrape(c.change); status != c.want {
			t.Errorf("%s: status %d, want %d: %s", what, status, c.want, text)
		}
	}
}

// TestMetricsNames: names of every kind are labels, also those that several places have.
func TestMetricsNames(t *testing.T) {
	h := serveMachine(t, 1)
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "r:out vfs_read", AtRets: true}, api.ProbeSpec{Def: "p:many/ user_*"}); err != nil {
		t.Fatal(err)
	}
	ps, err := h.c.Probes(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, p := range ps {
		names[p.Name] = true
	}
	status, text := h.rawRequest(http.MethodGet, "/metrics", "")
	if got := strings.Count(text, "\nguestprobe_probe_hits_total{"); status != http.StatusOK || got != len(names) || len(names) < 5 || len(ps) <= len(names) {
		t.Errorf("status %d, %d probes with %d names, %d in the metrics", status, len(ps), len(names), got)
	}
}

// TestMetricsDurationsLost: returns whose records make no sense, or find a reader who is behind, are
// counted, each once.
func TestMetricsDurationsLost(t *testing.T) {
	h := serveMetricsFake(t)
	h.attach("r:b schedule")
	a, err := h.s.probes.Find("b")
	if err != nil {
		t.Fatal(err)
	}
	const after, damaged = 9000, 3 // the first are more than a queue takes
	put := func(n int) {
		for range n {
			a.Source().Put(0, 0, []byte("no record"))
		}
		h.s.probes.Sync()
	}
	h.s.calls.taking.Lock()
	put(after)
	h.s.calls.taking.Unlock()
	put(damaged)
	_, text := h.rawRequest(http.MethodGet, "/metrics", "")
	for _, want := range []string{
		fmt.Sprintf(`guestprobe_probe_durations_lost_total{probe="kprobes/b"} %d`, after+damaged), `guestprobe_probe_duration_seconds_count{probe="kprobes/b"} 0`,
		fmt.Sprintf(`guestprobe_probe_events_total{probe="kprobes/b"} %d`, after+damaged),
	} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("without %s:\n%s", want, text)
		}
	}
}
