package linuxtest

import (
	"flag"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

var suites = flag.String("suites", "test.d/kprobe test.d/ftrace test.d/dynevent", "TestSuiteFtrace: folders and files of the kernel's ftrace tests")

// meddled are functions that the kernel's tests probe or trace, and functions by which the kernel
// does that.
var meddled = []string{
	"kernel_clone", "tracefs_create_dir", "vfs_symlink", "inet_csk_accept", "schedule_timeout",
	"register_kprobe", "unregister_kprobe", "trace_kprobe_create", "ftrace_set_filter_ip", "ftrace_set_hash", "tracing_read_pipe",
}

// hot are functions that the tests probe, too, and call hundreds of thousands of times: an exit at
// each call would take hours, so that their probes are jumps, and count in the guest.
var hot = []string{"vfs_read", "do_sys_openat2"}

// TestSuiteFtrace: the kernel's own tests of ftrace and kprobes (tools/testing/selftests/ftrace)
// answer as they do without probes while hundreds of functions have probes and return
// probes, as int3s and as jumps, those among them that these tests probe themselves. The
// kernel has nothing to say in its log, and has its own text afterwards.
func TestSuiteFtrace(t *testing.T) {
	for _, dir := range kvmtest.RequireSuite(t, "ftrace") {
		t.Run(filepath.Base(dir), func(t *testing.T) { ftraceSuite(t, dir) })
	}
}

func ftraceSuite(t *testing.T, dir string) {
	const others = 200
	g := bootSuites(t, dir)
	e := g.Engine()
	cases := g.Command("cd /ftrace && find " + *suites + " -name '*.tc' | sort")
	// run runs the kernel's tests one by one, and before each what is given.
	run := func(before func()) map[string]string {
		t.Helper()
		start, all, n := time.Now(), map[string]string{}, map[string]int{}
		for _, file := range cases {
			before()
			began := time.Now()
			for name, result := range results(g.Command("cd /ftrace && sh ./ftracetest --logdir /tmp/logs " + file + "; true")) {
				all[file+": "+name] = result
				n[result]++
			}
			// Told as it goes: all of them take long in an emulated machine.
			t.Logf("%s: %v, %v", file, time.Since(began).Round(time.Second), n)
		}
		t.Log(n, time.Since(start).Round(time.Second))
		return all
	}
	words := func() string { return strings.Join(g.Command("sh /load.sh 1 kernel"), " ") }
	want, said, text := run(func() {}), words(), g.Text()
	if !slices.Contains(slices.Collect(maps.Values(want)), "PASS") {
		t.Fatalf("the kernel's tests do not run: %v", want)
	}
	if err := g.Pause(); err != nil {
		t.Fatal(err)
	}
	functions, _ := candidates(g, rand.New(rand.NewPCG(*stormSeed, 1)), 0, others)
	for _, name := range meddled {
		s, err := g.Image().Lookup(name)
		if err != nil {
			continue // of another kernel
		}
		if _, err := e.Check(&probe.Kprobe{Addr: s.Addr}); err == nil && !slices.Contains(functions, s.Addr) {
			functions = append(functions, s.Addr)
		}
	}
	for _, name := range hot {
		if s, err := g.Image().Lookup(name); err == nil {
			functions = slices.DeleteFunc(functions, func(a guest.GVA) bool { return a == s.Addr })
		}
	}
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	for _, jumps := range []bool{false, true} {
		kind := map[bool]string{false: "int3", true: "jump"}[jumps]
		limit := newLimiter(t, e, 3*len(functions), enough)
		ps := armAll(t, g, functions, jumps, limit)
		got := run(func() {
			if err := e.Enable(ps...); err != nil {
				t.Fatal(err)
			}
			if jumps {
				if err := e.Optimize(); err != nil {
					t.Fatal(err)
				}
			}
		})
		limit.end()
		hits, optimized := uint64(0), 0
		for i := range e.All() {
			hits += i.Stats.Hits
			if i.Optimized {
				optimized++
			}
		}
		t.Logf("%s: %d probes, %d hits, at the end %d as jumps", kind, len(ps), hits, optimized)
		if err := e.Unregister(ps...); err != nil {
			t.Error(err)
		}
		if hits == 0 || jumps != (optimized > 0) {
			t.Errorf("%s: %d hits, %d jumps", kind, hits, optimized)
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if got[name] != want[name] {
				t.Errorf("%s: %q answers %s, unprobed %s:\n%s", kind, name, got[name], want[name],
					strings.Join(g.Command("tail -n 40 /tmp/logs/*-*"), "\n"))
			}
		}
		if now := words(); now != said {
			t.Errorf("%s: the kernel says %q, unprobed %q", kind, now, said)
		}
	}
	g.checkSameText(g.Text(), text)
}

// armAll registers a probe at each function, and a return probe at every second one; with jumps also
// one that counts in the guest at each hot one.
func armAll(t *testing.T, g *Guest, functions []guest.GVA, jumps bool, limit *limiter) (kps []*probe.Kprobe) {
	t.Helper()
	e := g.Engine()
	if err := e.SetOptimization(jumps); err != nil {
		t.Fatal(err)
	}
	var ps []probe.Probe
	for i, at := range functions {
		p := &probe.Kprobe{Addr: at}
		hit := limit.counter(p)
		p.Pre = func(*probe.Context) int { hit(); return 0 }
		ps, kps = append(ps, p), append(kps, p)
		if i%2 == 0 {
			r := &probe.Kretprobe{Kprobe: probe.Kprobe{Addr: at}}
			returned := limit.counter(&r.Kprobe)
			r.Return = func(*probe.Context) { returned() }
			ps, kps = append(ps, r), append(kps, &r.Kprobe)
		}
	}
	if jumps {
		counter, _, err := g.AllocShared(8, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range hot {
			p := &probe.Kprobe{Symbol: name, Pre: func(*probe.Context) int { return 0 }, Stage: &probe.Stage{
				Code: []byte("\xf0\x48\xff\x06\xc3"), NoStrings: true, Stack: 8, Block: counter, // lock incq (%rsi); ret
			}}
			ps, kps = append(ps, p), append(kps, p)
		}
	}
	if err := e.Register(ps...); err != nil {
		t.Fatal(err)
	}
	return kps
}

// resultLine is a line of ftracetest: number, which instance of the tracer, what is tested, result.
var resultLine = regexp.MustCompile(`^\[\d+\](.*)\t\[([A-Z]+)\]$`)

// results returns what ftracetest says of each of its tests.
func results(lines []string) map[string]string {
	all := map[string]string{}
	for _, l := range lines {
		if m := resultLine.FindStringSubmatch(l); m != nil {
			all[strings.TrimSpace(m[1])] = m[2]
		}
	}
	return all
}
