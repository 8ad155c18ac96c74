package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/script"
)

// scrapeScript are the lines of a scrape that begin with guestprobe_script.
func scrapeScript(t *testing.T, s Source) (lines []string, text string) {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(s).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "guestprobe_script") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines, w.Body.String()
}

// TestScriptMetrics: every kind of map, with and without keys, and names that Prometheus could take
// for something else.
func TestScriptMetrics(t *testing.T) {
	maps := []script.MapValues{
		{Name: "@", Elements: []script.MapValue{{Number: 7}}},
		{Name: "@by", Keyed: true, Other: 2, Elements: []script.MapValue{{Key: "cat\"\n{}", Number: 1}, {Key: "1,2", Number: -3}, {Key: "x\xfe", Number: 4}, {Key: "x\xff", Number: 5}, {Key: `x\xff`, Number: 6}}},
		{Name: "@s", Elements: []script.MapValue{{Stats: true, Count: 4, Sum: 9}}},
		{Name: "@k", Keyed: true, Elements: []script.MapValue{{Key: "a", Stats: true, Count: 1, Sum: 5}}},
		{Name: "@u", Elements: []script.MapValue{{Number: 1<<64 - 1}}},
		{Name: "@h", Elements: []script.MapValue{{Histogram: []script.Bucket{{Max: -1, Count: 1}, {Max: 0, Count: 2}, {Open: true, Count: 4}}}}},
		{Name: "@l", Keyed: true, Elements: []script.MapValue{{Key: "x", Histogram: []script.Bucket{{Max: 9, Count: 3}}}}},
		{Name: "@t", Other: 1},
	}
	source := Source{Scripts: func() []Script { return []Script{{Name: "reads", Running: true, Lost: 2, Maps: maps}, {Name: "old"}} }}
	got, text := scrapeScript(t, source)
	want := []string{
		`guestprobe_script_map_distribution_bucket{key="",map="@h",script="reads",le="+Inf"} 7`,
		`guestprobe_script_map_distribution_bucket{key="",map="@h",script="reads",le="-1"} 1`,
		`guestprobe_script_map_distribution_bucket{key="",map="@h",script="reads",le="0"} 3`,
		`guestprobe_script_map_distribution_bucket{key="x",map="@l",script="reads",le="+Inf"} 3`,
		`guestprobe_script_map_distribution_bucket{key="x",map="@l",script="reads",le="9"} 3`,
		`guestprobe_script_map_distribution_count{key="",map="@h",script="reads"} 7`,
		`guestprobe_script_map_distribution_count{key="x",map="@l",script="reads"} 3`,
		`guestprobe_script_map_distribution_sum{key="",map="@h",script="reads"} NaN`,
		`guestprobe_script_map_distribution_sum{key="x",map="@l",script="reads"} NaN`,
		`guestprobe_script_map_keys_left_out{map="@by",script="reads"} 3`,
		`guestprobe_script_map_keys_left_out{map="@k",script="reads"} 0`,
		`guestprobe_script_map_keys_left_out{map="@l",script="reads"} 0`,
		`guestprobe_script_map_keys_left_out{map="@t",script="reads"} 1`,
		`guestprobe_script_map_stats_count{key="",map="@s",script="reads"} 4`,
		`guestprobe_script_map_stats_count{key="a",map="@k",script="reads"} 1`,
		`guestprobe_script_map_stats_sum{key="",map="@s",script="reads"} 9`,
		`guestprobe_script_map_stats_sum{key="a",map="@k",script="reads"} 5`,
		`guestprobe_script_map{key="",map="@",script="reads"} 7`,
		`guestprobe_script_map{key="1,2",map="@by",script="reads"} -3`,
		`guestprobe_script_map{key="",map="@u",script="reads"} 1.8446744073709552e+19`,
		`guestprobe_script_map{key="cat\"\n{}",map="@by",script="reads"} 1`,
		`guestprobe_script_map{key="x\\xfe",map="@by",script="reads"} 4`,
		`guestprobe_script_map{key="x\\xff",map="@by",script="reads"} 6`,
		`guestprobe_script_records_lost_total{script="old"} 0`,
		`guestprobe_script_records_lost_total{script="reads"} 2`,
		`guestprobe_script_running{script="old"} 0`,
		`guestprobe_script_running{script="reads"} 1`,
	}
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	cmd := exec.Command(kvmtest.RequireCommand(t, "promtool"), "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// TestOpenMetrics: who asks for OpenMetrics gets it, but of histograms without a sum, which it has not.
func TestOpenMetrics(t *testing.T) {
	for want, v := range map[string]script.MapValue{
		"application/openmetrics-text": {Number: 1},
		"text/plain":                   {Histogram: []script.Bucket{{Max: 9, Count: 3}}},
	} {
		s := Source{Scripts: func() []Script {
			return []Script{{Name: "s", Maps: []script.MapValues{{Name: "@", Elements: []script.MapValue{v}}}}}
		}}
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		Handler(s).ServeHTTP(w, r)
		if got, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";"); w.Code != http.StatusOK || got != want {
			t.Errorf("%+v: %d, %s, want %s", v, w.Code, got, want)
		}
	}
}

// TestScriptKeys: of a map with more keys than the limit the rest is counted.
func TestScriptKeys(t *testing.T) {
	m := script.MapValues{Name: "@", Keyed: true}
	for i := range maxKeys + 3 {
		m.Elements = append(m.Elements, script.MapValue{Key: fmt.Sprintf("%06d", i), Number: float64(i)})
	}
	got, _ := scrapeScript(t, Source{Scripts: func() []Script { return []Script{{Name: "s", Maps: []script.MapValues{m}}} }})
	if len(got) != maxKeys+3 || !slices.Contains(got, `guestprobe_script_map_keys_left_out{map="@",script="s"} 3`) || !slices.Contains(got, `guestprobe_script_map{key="000999",map="@",script="s"} 999`) {
		t.Errorf("%d lines: %s", len(got), strings.Join(got[max(0, len(got)-5):], "\n"))
	}
}
