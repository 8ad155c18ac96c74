package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// dashboard is what of Grafana's model docs/grafana.json has to be right in.
type dashboard struct {
	Title         string
	UID           string
	SchemaVersion int
	Panels        []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr, LegendFormat string }
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

// TestDashboard: panels do not cover each other, and ask for metrics and labels that there are, in
// expressions that promtool takes.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("../../../docs/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadFile("names.go")
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{} // of each metric
	for _, m := range regexp.MustCompile(`desc\("(\w+)", "[^"]*"((?:, "\w+")*)\)`).FindAllStringSubmatch(string(names), -1) {
		labels["guestprobe_"+m[1]] = m[2]
	}
	if len(labels) < 25 || d.Title == "" || d.UID == "" || d.SchemaVersion < 36 || len(d.Panels) < 10 {
		t.Fatalf("%d metrics, dashboard %+v", len(labels), d)
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	ids, cells, rules := map[int]bool{}, map[[2]int]string{}, "groups:\n- name: dashboard\n  rules:\n"
	check := func(where, expr string) {
		for _, name := range regexp.MustCompile(`guestprobe_\w+`).FindAllString(expr, -1) {
			if _, ok := labels[strings.TrimSuffix(name, "_bucket")]; !ok {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
		for _, v := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(expr, -1) {
			if !variables[v[1]] {
				t.Errorf("%s: there is no variable $%s", where, v[1])
			}
		}
	}
	for _, v := range d.Templating.List {
		check("variable "+v.Name, v.Definition)
	}
	for _, p := range d.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W < 1 || p.GridPos.H < 1 || len(p.Targets) == 0 {
			t.Errorf("panel %d %q at %+v with %d targets", p.ID, p.Title, p.GridPos, len(p.Targets))
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if cells[at] != "" {
					t.Fatalf("panel %q covers %q", p.Title, cells[at])
				}
				cells[at] = p.Title
			}
		}
		for _, target := range p.Targets {
			check(p.Title, target.Expr)
			for _, l := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				name := regexp.MustCompile(`guestprobe_\w+`).FindString(target.Expr)
				if l[1] != "le" && !strings.Contains(labels[strings.TrimSuffix(name, "_bucket")], `"`+l[1]+`"`) {
					t.Errorf("%s: %s has no label %s", p.Title, name, l[1])
				}
			}
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*", "$probe", ".*").Replace(target.Expr)
			rules += fmt.Sprintf("  - record: panel%d:%s\n    expr: %s\n", p.ID, target.RefID, expr)
		}
	}
	promtool := kvmtest.RequireCommand(t, "promtool")
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool check rules: %v\n%s\n%s", err, out, rules)
	}
}
