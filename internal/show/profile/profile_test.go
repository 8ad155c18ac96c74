package profile

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pprof "github.com/google/pprof/profile"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// odd is a name that a hostile guest has.
const odd = "a;b</script><script>alert(1)</script>\x1b[2J\n&\"'\ufffe"

// stacks are of two tasks, kernel and user code, with an inlined function.
func stacks() []api.Stack {
	read := api.Frame{Addr: 0xffffffff80201010, Symbol: "vfs_read+0x10/0x40", Source: "src/fs.c:12"}
	inlined := api.Frame{Addr: 0xffffffff80201010, Symbol: "min", Source: "include/min.h:3", Inlined: true}
	syscall := api.Frame{Addr: 0xffffffff80202020, Symbol: "do_syscall+0x20/0x90", Source: "src/entry.c:70"}
	main := api.Frame{Addr: 0x401020, Symbol: "main+0x20/0x50", User: true}
	return []api.Stack{
		{Count: 5, CPU: 0, Task: &api.Task{PID: 7, Comm: "cat"}, Frames: []api.Frame{inlined, read, syscall, main}},
		{Count: 3, CPU: 1, Task: &api.Task{PID: 7, Comm: "cat"}, Frames: []api.Frame{read, syscall, main}},
		{Count: 2, CPU: 1, Task: &api.Task{PID: 7, Comm: "cat"}, Frames: []api.Frame{main, main}},
		{Count: 1, CPU: 1, Task: &api.Task{PID: 9, Comm: "x;y z"}, Cut: true, Frames: []api.Frame{{Addr: 0x7f0000001000, User: true}, {Addr: 0x401999, Symbol: odd + "+0x1/0x2", User: true}}},
	}
}

func buildProfile(t *testing.T, hz int, s []api.Stack) *pprof.Profile {
	t.Helper()
	durations := slices.ContainsFunc(s, func(x api.Stack) bool { return x.DurationNS != 0 })
	p := Build(Meta{Start: time.Unix(1, 0), Duration: time.Second, Hz: hz, Durations: durations, BuildID: "c0ffee", Comments: []string{"comment"}}, s)
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	// As it is read back.
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	p, err := pprof.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFolded(t *testing.T) {
	var b bytes.Buffer
	if err := WriteFolded(&b, buildProfile(t, 99, stacks()), 0); err != nil {
		t.Fatal(err)
	}
	want := "cat;main;do_syscall_[k];vfs_read_[k] 3\n" +
		"cat;main;do_syscall_[k];vfs_read_[k];min_[k] 5\n" +
		"cat;main;main 2\n" +
		"x:y z;[more];a:b</script><script>alert(1)</script>\x1b[2J\\n&\"'\ufffe;[unknown] 1\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestFold: stacks that come one by one make the tree of their profile.
func TestFold(t *testing.T) {
	var f Fold
	for _, s := range stacks() {
		f.Add(s)
	}
	got, err := (&Graph{Unit: "samples", Root: f.Root()}).Data()
	if err != nil {
		t.Fatal(err)
	}
	want, err := (&Graph{Unit: "samples", Root: Tree(buildProfile(t, 99, stacks()), 0)}).Data()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestValues(t *testing.T) {
	for _, c := range []struct {
		hz    int
		ns    int64
		types string
		want  []int64
	}{
		{100, 0, "samples (count), time (nanoseconds)", []int64{4, 40e6}},
		{0, 0, "hits (count)", []int64{4}},
		{0, 7, "hits (count), duration (nanoseconds)", []int64{4, 7}},
	} {
		p := buildProfile(t, c.hz, []api.Stack{{Count: 4, DurationNS: c.ns, CPU: 3, Probe: "io/read", Frames: []api.Frame{{Symbol: "f+0x0/0x9"}}}})
		if got := kind(p); got != c.types {
			t.Errorf("hz %d: values are %s, want %s", c.hz, got, c.types)
		}
		s := p.Sample[0]
		if d := cmp.Diff(c.want, s.Value); d != "" {
			t.Errorf("hz %d (-want +got):\n%s", c.hz, d)
		}
		if s.Label["probe"][0] != "io/read" || s.Label["vcpu"][0] != "3" || len(s.Label["comm"]) != 0 {
			t.Errorf("labels are %v", s.Label)
		}
	}
}

func TestTop(t *testing.T) {
	rows, total, base := Top(buildProfile(t, 99, stacks()), 0)
	want := []Row{
		{Function: "min", Kernel: true, Self: 5, Total: 5},
		{Function: "vfs_read", Kernel: true, Self: 3, Total: 8},
		{Function: "main", Self: 2, Total: 10}, // twice on one stack
		{Function: unknown, Self: 1, Total: 1},
		{Function: "do_syscall", Kernel: true, Total: 8},
		{Function: "[more]", Total: 1},
		{Function: odd, Total: 1},
	}
	if d := cmp.Diff(want, rows); d != "" || total != 11 || base != 0 {
		t.Errorf("total %d, base %d (-want +got):\n%s", total, base, d)
	}
}

func TestDiff(t *testing.T) {
	after := stacks()
	after[0].Count, after = 1, after[:2]
	p, err := Diff(buildProfile(t, 99, stacks()), buildProfile(t, 99, after))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := WriteFolded(&b, p, 0); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	if !Compared(p) || lines[0] != "cat;main;do_syscall_[k];vfs_read_[k] 3 3" || lines[1] != "cat;main;do_syscall_[k];vfs_read_[k];min_[k] 5 1" || lines[2] != "cat;main;main 2 0" {
		t.Errorf("folded is\n%s", b.String())
	}
	g := Graph{Unit: "samples", Root: Tree(p, 0), Compared: true}
	if got, want := g.nodeText(g.Root.Children[0]), "cat: 4 samples, 100.00% (+9.09%)"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if _, err := Diff(buildProfile(t, 0, stacks()), p); err == nil || err.Error() != "one profile is of hits (count), the other of samples (count), time (nanoseconds)" {
		t.Errorf("profiles of different kinds: %v", err)
	}
}

// TestPprof: go tool pprof reads a profile, and sees what is in it.
func TestPprof(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.pb.gz")
	write(t, file, buildProfile(t, 99, stacks()).Write)
	for args, want := range map[string]string{
		"-top":                                  `5 45.45% 45.45%\s+5 45.45%\s+min \(inline\)\n\s+3 27.27% 72.73%\s+8 72.73%\s+vfs_read\n`,
		"-top -lines":                           `5 45.45%.*min include/min.h:3 \(inline\)`,
		"-top -sample_index=time":               `50.51ms 45.45%`,
		"-tags":                                 `(?s)comm: .*10 \(90.91%\): cat\n.*vcpu: .*\n\s+6 \(54.55%\): 1\n\s+5 \(45.45%\): 0\n`,
		"-traces -tagfocus=comm=cat":            `5\s+min \(inline\)\n\s+vfs_read\n\s+do_syscall\n\s+main\n`,
		"-top -focus=do_syscall -tagroot=comm":  `8 72.73%\s+cat`,
		"-traces -tagfocus=vcpu=^0$":            `vcpu:\s+0\n`,
		"-raw":                                  `PeriodType: time nanoseconds\nPeriod: 10101010\n`,
		"-comments":                             `comment`,
		"-top -filefunctions -show=src/entry.c": `do_syscall src/entry.c`,
	} {
		cmd := exec.Command("go", append(append([]string{"tool", "pprof"}, strings.Fields(args)...), file)...)
		cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil || !regexp.MustCompile(want).Match(out) {
			t.Errorf("go tool pprof %s: %v; want %s in\n%s", args, err, want, out)
		}
	}
}

func write(t *testing.T, path string, form func(io.Writer) error) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(form(f), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestSVG: a graph is well-formed XML, and its boxes are where they belong.
func TestSVG(t *testing.T) {
	g := Graph{Title: "odd " + odd, Unit: "samples", Root: Tree(buildProfile(t, 99, stacks()), 0)}
	var b bytes.Buffer
	if err := g.SVG(&b); err != nil {
		t.Fatal(err)
	}
	var picture struct {
		Title string `xml:"title"`
		G     []struct {
			Title string `xml:"title"`
			Rect  struct {
				X     float64 `xml:"x,attr"`
				Y     int     `xml:"y,attr"`
				Width float64 `xml:"width,attr"`
			} `xml:"rect"`
		} `xml:"g"`
	}
	if err := xml.Unmarshal(b.Bytes(), &picture); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "<script") || len(picture.G) != 11 {
		t.Errorf("%d boxes in\n%s", len(picture.G), b.String())
	}
	root, cat, main := picture.G[0], picture.G[1], picture.G[2]
	if root.Title != "all: 11 samples, 100.00%" || cat.Title != "cat: 10 samples, 90.91%" || main.Title != "main: 10 samples, 90.91%" {
		t.Errorf("boxes are %q, %q, %q", root.Title, cat.Title, main.Title)
	}
	if part := cat.Rect.Width / root.Rect.Width; part < 0.90 || part > 0.92 || cat.Rect.Y != root.Rect.Y-svgRow || cat.Rect.X != root.Rect.X {
		t.Errorf("root is %+v, cat %+v", root.Rect, cat.Rect)
	}
}

// TestPage: the page in a browser shows the graph, searches it and zooms in.
func TestPage(t *testing.T) {
	chromium := kvmtest.RequireCommand(t, "chromium")
	g := Graph{Title: "odd " + odd, Unit: "samples", Root: Tree(buildProfile(t, 99, stacks()), 0)}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "p.html"), g.HTML)
	page := func(hash string) string {
		cmd := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir="+filepath.Join(dir, "user"), "--window-size=1000,600", "--dump-dom", "file://"+filepath.Join(dir, "p.html")+hash)
		cmd.Env = append(os.Environ(), "HOME="+dir)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	boxes := func(dom string) (titles []string) {
		for _, m := range regexp.MustCompile(`<div title="([^"]*)"[^>]*>`).FindAllStringSubmatch(dom, -1) {
			what := m[1]
			if strings.Contains(m[0], "found") {
				what += " FOUND"
			}
			if strings.Contains(m[0], "above") {
				what += " ABOVE"
			}
			titles = append(titles, what)
		}
		return titles
	}
	dom := page("")
	if got := boxes(dom); len(got) != 11 || got[0] != "all: 11 samples, 100.00%" {
		t.Errorf("boxes are %q", got)
	}
	if strings.Contains(dom, "<script>alert") || !strings.Contains(dom, "a;b&lt;/script&gt;") {
		t.Errorf("a name became markup:\n%s", dom)
	}
	dom = page("#search=vfs")
	if !strings.Contains(dom, `>matched 72.73%<`) || !strings.Contains(strings.Join(boxes(dom), "\n"), "vfs_read (kernel): 8 samples, 72.73% FOUND") {
		t.Errorf("a search for vfs:\n%s", strings.Join(boxes(dom), "\n"))
	}
	if dom = page("#search=/^ma.n$/"); !strings.Contains(dom, `>matched 90.91%<`) {
		t.Errorf("a search for /^ma.n$/:\n%s", dom)
	}
	want := []string{
		"all: 11 samples, 100.00% ABOVE", "cat: 10 samples, 90.91% ABOVE", "main: 10 samples, 90.91% ABOVE",
		"do_syscall (kernel): 8 samples, 72.73%; 100.00% of do_syscall", "vfs_read (kernel): 8 samples, 72.73%; 100.00% of do_syscall", "min (kernel): 5 samples, 45.45%; 62.50% of do_syscall",
	}
	if d := cmp.Diff(want, boxes(page("#zoom=0.0.0"))); d != "" {
		t.Errorf("zoomed in (-want +got):\n%s", d)
	}
}
