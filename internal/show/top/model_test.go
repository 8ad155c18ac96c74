package top

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

var update = flag.Bool("update", false, "write what is drawn to testdata")

// moment is the nth second of a guest with so many probes: of each the hits rise by its number times ten each
// second, faster in every third.
func moment(n, probes int) api.Counted {
	c := api.Counted{TimeNS: int64(n+1) * 1e9, Guest: &api.Guest{State: "running", Boots: 1, Enabled: true, CPUs: []api.CPUInfo{
		{CPU: 0, State: "running", Exits: map[string]uint64{"io": uint64(1000 * n), "hlt": uint64(20 * n), "debug": uint64(n * n)}},
		{CPU: 1, State: "idle", Exits: map[string]uint64{"io": 7}},
		{CPU: 2, State: "running", Exits: map[string]uint64{"hlt": uint64(5 * n)}},
	}}}
	for id := 1; id <= probes; id++ {
		p := api.ProbeCounts{ID: uint64(id), Name: fmt.Sprintf("io/probe%d", id), Kind: "k", Symbol: "vfs_read", Offset: uint64(id), Enabled: true, Armed: true, Runs: "host", Plan: "boost", Hits: uint64(10 * id * n)}
		if n%3 == 2 {
			p.Hits += uint64(5 * id)
		}
		switch id % 4 {
		case 1:
			p.Runs, p.Optimized = "guest", true
		case 2:
			p.Kind, p.Missed, p.Lost = "r", uint64(3*n), uint64(n)
			if n > 0 {
				p.Durations = &api.Durations{Count: 100, SumNS: 150_000, Buckets: []api.MapBucket{{Low: 896, High: 1023, Count: 60}, {Low: 1024, High: 1279, Count: 39}, {Low: 40960, High: 49151, Count: 1}}}
			}
		case 3:
			p.Armed, p.Enabled = false, false
		case 0:
			p.Kind, p.Symbol, p.Addr, p.Plan = "w", "", 0xffffffff80201000+api.Hex(id), "debug_register"
		}
		c.Probes = append(c.Probes, p)
	}
	return c
}

// model has seen so many seconds.
func model(seconds, probes int) *Model {
	m := New(chart.Unicode, false)
	for n := range seconds {
		m.Add(moment(n, probes))
	}
	return m
}

// screens compares what is drawn with testdata, in each of the sizes, and checks that nothing is larger.
func screens(t *testing.T, name string, m *Model) {
	t.Helper()
	for _, size := range [][2]int{{80, 24}, {200, 50}, {20, 5}} {
		lines := m.Lines(size[0], size[1])
		if len(lines) != size[1] {
			t.Errorf("%s: %d lines in %d", name, len(lines), size[1])
		}
		for _, l := range lines {
			if utf8.RuneCountInString(l) > size[0] {
				t.Errorf("%s: %d characters in %d: %q", name, utf8.RuneCountInString(l), size[0], l)
			}
		}
		path := filepath.Join("testdata", fmt.Sprintf("%s-%dx%d.txt", name, size[0], size[1]))
		got := strings.Join(lines, "\n") + "\n"
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), got); d != "" {
			t.Errorf("%s (-want +got):\n%s", path, d)
		}
	}
}

func TestScreens(t *testing.T) {
	screens(t, "waiting", New(chart.Unicode, false))
	screens(t, "none", model(2, 0))
	screens(t, "few", model(9, 6))
	m := model(9, 100)
	m.Lines(80, 24) // keys are pressed on a screen that was drawn
	for _, key := range []string{"pgdown", "pgdown", "down", "s", "r", "/", "p", "r", "o", "b", "e", "2", "enter"} {
		m.Key(key)
	}
	screens(t, "chosen", m)
	m.Key("?")
	screens(t, "help", m)
	m.Key("q") // any key goes back
	m.Key("esc")
	m.Key("d")
	screens(t, "asked", m)

	m = New(chart.ASCII, false)
	for n := range 9 {
		m.Add(moment(n, 2))
	}
	m.Key("down")
	if m.Key("enter") != Open {
		t.Fatal("a probe that is not looked into")
	}
	for i := range 30 {
		m.Hit(1, fmt.Sprintf("            task-%d  [000] d.... 1.%06d: probe: (vfs_read+0x2)", i, i))
		m.Hit(2, "of another one")
	}
	m.Stacks(1, []string{"3 hits, vCPU 0", "  vfs_read+0x2/0x30", "  sys_read+0x11/0x40"})
	screens(t, "into", m)
}

// TestKeys: what keys ask for, and what they do to the list.
func TestKeys(t *testing.T) {
	m := model(3, 10)
	names := func() (s string) {
		for _, r := range m.rows {
			s += strings.TrimPrefix(r.Name, "io/probe") + " "
		}
		return fmt.Sprintf("%s(%d)", s, m.at)
	}
	for _, step := range []struct {
		key  string
		do   Do
		want string
	}{
		{"", Nothing, "10 9 8 7 6 5 4 3 2 1 (0)"},
		{"down", Nothing, "10 9 8 7 6 5 4 3 2 1 (1)"},
		{"r", Nothing, "1 2 3 4 5 6 7 8 9 10 (8)"}, // the cursor stays on its probe
		{"end", Nothing, "1 2 3 4 5 6 7 8 9 10 (9)"},
		{"r", Nothing, "10 9 8 7 6 5 4 3 2 1 (0)"},
		{"s", Nothing, "10 9 8 7 6 5 4 3 2 1 (0)"}, // hits
		{"s", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"}, // missed
		{"/", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"q", Nothing, "(0)"}, // typed
		{"backspace", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"1", Nothing, "10 1 4 8 (0)"}, // the address of two watches has it
		{"q", Nothing, "(0)"},
		{"ctrl+u", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"q", Nothing, "(0)"},
		{"space", Nothing, "(0)"},
		{"q", Nothing, "(0)"},
		{"ctrl+w", Nothing, "(0)"}, // "q " is left
		{"ctrl+w", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"1", Nothing, "10 1 4 8 (0)"},
		{"esc", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"d", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"n", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"d", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"y", Detach, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"enter", Open, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"S", Stacks, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"S", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"}, // they are being gathered
		{"esc", Shut, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"q", Quit, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"/", Nothing, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"ctrl+z", Suspend, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"ctrl+l", Redraw, "10 2 6 1 3 4 5 7 8 9 (0)"},
		{"ctrl+c", Quit, "10 2 6 1 3 4 5 7 8 9 (0)"},
	} {
		if step.key != "" {
			if do := m.Key(step.key); do != step.do {
				t.Errorf("%q asks for %d, want %d", step.key, do, step.do)
			}
		}
		if got := names(); got != step.want {
			t.Errorf("behind %q: %s, want %s", step.key, got, step.want)
		}
	}
}

// TestFilterOfNone: a list that a filter has made empty says so.
func TestFilterOfNone(t *testing.T) {
	m := New(chart.ASCII, false)
	m.Add(api.Counted{Guest: &api.Guest{}, TimeNS: 1, Probes: []api.ProbeCounts{{ID: 1, Name: "io/a"}}})
	for _, key := range []string{"/", "z", "enter"} {
		m.Key(key)
	}
	text := strings.Join(m.Lines(80, 24), "\n")
	if !strings.Contains(text, `No probe's name or place has "z" in it; esc shows all.`) || strings.Contains(text, "is attached") {
		t.Errorf("the screen is\n%s", text)
	}
}

// TestPause: what is shown stays, and the counts go on.
func TestPause(t *testing.T) {
	m := model(3, 1)
	m.Key("space")
	m.Add(moment(3, 1))
	if m.rows[0].Hits != 25 {
		t.Errorf("%d hits while it is paused", m.rows[0].Hits)
	}
	m.Key("space")
	if m.rows[0].Hits != 30 || m.rows[0].Rate != 5 {
		t.Errorf("%d hits, %v a second behind a pause", m.rows[0].Hits, m.rows[0].Rate)
	}
}

// TestGone: a probe that was detached is shown no more, and one that comes later is counted from its beginning. A guest
// that was booted anew counts on.
func TestGone(t *testing.T) {
	m := model(2, 2)
	m.Add(api.Counted{TimeNS: 3e9, Guest: &api.Guest{State: "crashed", Boots: 2}, Probes: []api.ProbeCounts{{ID: 9, Name: "late", Hits: 40}}, Detached: []uint64{1}})
	if len(m.rows) != 2 || m.rows[0].Name != "late" || m.rows[0].Rate != 40 || m.rows[1].Rate != 0 || m.rows[1].Hits != 20 {
		t.Errorf("rows %+v", m.rows)
	}
	if s := m.Lines(80, 24)[0]; s != "guest crashed, 2 probes, 40 hits/s, 3 missed, 1 lost, boot 2, all disarmed" {
		t.Errorf("summary %q", s)
	}
}

// TestHostile: names that want to move the cursor do not, and no size is too small.
func TestHostile(t *testing.T) {
	m := New(chart.Unicode, false)
	for n := range 2 {
		m.Add(api.Counted{TimeNS: int64(n+1) * 1e9, Guest: &api.Guest{State: "run\x1b[2Jning", CPUs: []api.CPUInfo{{State: "\r\n", Exits: map[string]uint64{"\x1b]0;x\a": uint64(n)}}}},
			Probes: []api.ProbeCounts{{ID: 1, Name: "\x1b[31m\xff\n\tname", Symbol: "\x9b2J", Hits: math.MaxUint64 - uint64(n), Lost: math.MaxUint64}}})
	}
	for _, into := range []bool{false, true} {
		if into {
			m.Key("enter")
			m.Hit(1, "\x1b[H\n\nhit")
			m.Stacks(1, []string{"\x1b[H", "\n"})
		}
		for w := range 100 {
			for h := range 30 {
				lines := m.Lines(w, h)
				if len(lines) > h {
					t.Errorf("%d lines in %d times %d", len(lines), w, h)
				}
				for _, l := range lines {
					if strings.ContainsAny(l, "\x1b\r\n\t\a\u009b") || utf8.RuneCountInString(l) > w {
						t.Fatalf("%d times %d: %q", w, h, l)
					}
				}
			}
		}
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1: "1", 0.25: "0.2", 12.34: "12.3", 99.96: "100", 999: "999", 999.6: "1.00k", 1234: "1.23k", 12345: "12.3k", 123456: "123k", 999999: "1.00M", 1e18: "1.00E"} {
		if got := Number(v); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
	for ns, want := range map[uint64]string{0: "-", 1: "1ns", 999: "999ns", 1000: "1.0us", 99_949: "99.9us", 99_950: "100us", 999_499: "999us", 999_500: "1.0ms", 1e9: "1s", 90e9: "90s"} {
		if got := Duration(ns); got != want {
			t.Errorf("%d is %s, want %s", ns, got, want)
		}
	}
}
