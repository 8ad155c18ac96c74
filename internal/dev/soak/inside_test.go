package soak

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// plan lists what a client would do first, without doing it.
func plan(seed uint64, phase string, client, n int) (out []string) {
	a := newArena(&Options{Seed: seed}, nil, newPhase(phase, 2, 1, ""), &process{})
	w := a.newWorker("c", client)
	for range n {
		o, dice := choose(w.rand, connectionOps)
		out = append(out, fmt.Sprint(o.name, dice.Uint64()))
	}
	return out
}

// TestSequence: what a client does is decided by the seed, the phase and the
// client, and by nothing else.
func TestSequence(t *testing.T) {
	const n = 200
	same := plan(1, "a", 0, n)
	if !slices.Equal(same, plan(1, "a", 0, n)) {
		t.Error("the same seed makes another sequence")
	}
	for what, other := range map[string][]string{"seed": plan(2, "a", 0, n), "phase": plan(1, "b", 0, n), "client": plan(1, "a", 1, n)} {
		if slices.Equal(same, other) {
			t.Errorf("another %s makes the same sequence", what)
		}
	}
	for _, ops := range [][]operation{connectionOps, commandOps} {
		r, seen := rand.New(rand.NewPCG(1, 2)), map[string]bool{}
		for range 5000 {
			o, _ := choose(r, ops)
			seen[o.name] = true
		}
		if len(seen) != len(ops) {
			t.Errorf("%d of %d operations are ever chosen", len(seen), len(ops))
		}
	}
}

// TestSites: places are where they say, and cover kernel and user code.
func TestSites(t *testing.T) {
	s, err := findSites()
	if err != nil {
		t.Fatal(err)
	}
	starts := map[guest.GVA]bool{}
	user, kernel := 0, 0
	for _, f := range s.funcs {
		for _, off := range f.starts {
			starts[f.sym.Addr+guest.GVA(off)] = true
		}
		if f.sym.User {
			user++
		} else {
			kernel++
		}
	}
	if len(starts) != s.n || user < 20 || kernel < 100 || s.n < 5000 {
		t.Errorf("%d places, %d of them different, in %d user and %d kernel functions", s.n, len(starts), user, kernel)
	}
	r := rand.New(rand.NewPCG(3, 4))
	inner, byName, returns := 0, 0, 0
	for range 5000 {
		p := s.pick(r)
		def, ret := define(r, "g/n", p)
		if probeName(api.ProbeSpec{Def: def}) != "g/n" || ret != strings.HasPrefix(def, "r") || ret && (!p.entry || p.inner) {
			t.Fatalf("%+v: %q, a return probe: %v", p, def, ret)
		}
		if ret {
			returns++
		}
		if starts[p.addr] == p.inner {
			t.Fatalf("%+v: an instruction begins there: %v", p, starts[p.addr])
		}
		if p.inner {
			inner++
		}
		name, _, _ := strings.Cut(p.text, "+")
		if strings.HasPrefix(name, "0x") {
			if p.text != p.addr.String() {
				t.Fatalf("%+v is at %v", p, p.addr)
			}
			continue
		}
		byName++
		if sym, err := s.img.Lookup(name); err != nil || sym.Addr > p.addr || p.addr >= sym.Addr+guest.GVA(sym.Size) {
			t.Fatalf("%+v: %+v, %v", p, sym, err)
		}
	}
	if inner < 20 || byName < 2000 || returns < 200 {
		t.Errorf("of 5000 places %d are inside instructions, %d by name, %d for return probes", inner, byName, returns)
	}
}

func TestUnbalanced(t *testing.T) {
	good := func() api.Probe {
		c := api.Counts{Hits: 5, Handled: 3, Filtered: 1, Missed: 1}
		return api.Probe{Stats: api.Stats{Counts: c, Events: 3, CPUs: []api.CPUStats{{CPU: 0, Counts: c}, {CPU: 1}}}}
	}
	for _, tc := range []struct {
		name  string
		spoil func(*api.Probe)
		want  string
	}{
		{"all sums close", func(*api.Probe) {}, ""},
		{"post makes two events", func(p *api.Probe) { p.Post, p.Stats.Events = true, 6 }, ""},
		{"nobody listened", func(p *api.Probe) { p.Stats.Events = 0 }, ""},
		{"a hit too many", func(p *api.Probe) { p.Stats.Hits++ }, "6 hits, but 3 handled"},
		{"a hit too many on a vCPU", func(p *api.Probe) { p.Stats.CPUs[1].Hits++ }, "vCPU 1: 1 hits, but 0 handled"},
		{"a vCPU counted twice", func(p *api.Probe) { p.Stats.CPUs[1].Counts = p.Stats.Counts }, "the vCPUs have 10 hits"},
		{"more events than hits", func(p *api.Probe) { p.Stats.Events++ }, "4 events of 3"},
		{"more than two events of a hit", func(p *api.Probe) { p.Post, p.Stats.Events = true, 7 }, "7 events of 3"},
		{"more lost than made", func(p *api.Probe) { p.Stats.Lost = 4 }, "4 events lost of 3"},
		{"all calls have returned or are abandoned", func(p *api.Probe) { p.Kind, p.Stats.Returns, p.Stats.Abandoned, p.Stats.Events = "r", 2, 1, 2 }, ""},
		{"a call returned twice", func(p *api.Probe) { p.Kind, p.Stats.Returns = "r", 4 }, "4 returns"},
		{"an entry made an event", func(p *api.Probe) { p.Kind, p.Stats.Returns = "r", 2 }, "3 events of 3 handled hits and 2 returns"},
		{"a panic", func(p *api.Probe) { p.Stats.Panics = 1 }, "1 panics"},
	} {
		p := good()
		tc.spoil(&p)
		if got := unbalancedSum(p); got == "" != (tc.want == "") || !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestReaderAccount feeds records to a reader and looks at what it finds odd.
func TestReaderAccount(t *testing.T) {
	probes := map[uint64]api.Probe{1: {ID: 1, Name: "a", Addr: 16}, 2: {ID: 2, Name: "b", Addr: 32, User: true}, 3: {ID: 3, Name: "r", Addr: 52, Offset: 4}}
	hit := func(h api.Hit) api.Record { return api.Record{Type: api.RecordHit, Data: mustJSON(t, h)} }
	for _, tc := range []struct {
		name string
		recs []api.Record
		odd  bool
		hits uint64
		lost uint64
	}{
		{"hits of both", []api.Record{hit(api.Hit{ID: 1, Probe: "a", Addr: 16, CPU: 1, Stage: "pre"}), hit(api.Hit{ID: 2, Probe: "b", Addr: 32, CPL: 3})}, false, 2, 0},
		{"a return", []api.Record{hit(api.Hit{ID: 3, Probe: "r", Addr: 48, Stage: "return"})}, false, 1, 0},
		{"a return of an instruction", []api.Record{hit(api.Hit{ID: 3, Probe: "r", Addr: 52, Stage: "return"})}, true, 1, 0},
		{"of a later probe", []api.Record{hit(api.Hit{ID: 4, Probe: "c"})}, false, 1, 0},
		{"on no vCPU", []api.Record{hit(api.Hit{ID: 1, Probe: "a", Addr: 16, CPU: 2})}, true, 1, 0},
		{"elsewhere", []api.Record{hit(api.Hit{ID: 1, Probe: "a", Addr: 17})}, true, 1, 0},
		{"of another name", []api.Record{hit(api.Hit{ID: 1, Probe: "b", Addr: 16})}, true, 1, 0},
		{"at another level", []api.Record{hit(api.Hit{ID: 2, Probe: "b", Addr: 32})}, true, 1, 0},
		{"losses", []api.Record{{Type: api.RecordLost, Data: mustJSON(t, api.Lost{Lost: 2, Total: 2})}, {Type: api.RecordLost, Data: mustJSON(t, api.Lost{Lost: 3, Total: 5})}}, false, 0, 5},
		{"losses that do not add up", []api.Record{{Type: api.RecordLost, Data: mustJSON(t, api.Lost{Lost: 2, Total: 3})}}, true, 0, 2},
		{"an unknown type", []api.Record{{Type: "later", Data: []byte("1")}}, false, 0, 0},
	} {
		rd := &reader{pre: map[uint64]uint64{}, seen: make(chan struct{}, 1)}
		for _, r := range tc.recs {
			if err := rd.record(r, probes, 2); err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
		if (rd.odd != "") != tc.odd || rd.hits != tc.hits || rd.lost != tc.lost {
			t.Errorf("%s: odd %q, %d hits, %d lost", tc.name, rd.odd, rd.hits, rd.lost)
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestSums: the sum of a stream that saw its probes' whole lives.
func TestSums(t *testing.T) {
	for _, tc := range []struct {
		name            string
		emitted         uint64
		delivered, lost uint64
		pre, handled    uint64
		ok              bool
	}{
		{"all came", 5, 5, 0, 5, 5, true},
		{"some were lost", 9, 5, 4, 5, 9, true},
		{"one is nowhere", 9, 5, 3, 5, 9, false},
		{"one came twice", 5, 6, 0, 5, 5, false},
		{"one has another's place", 5, 5, 0, 4, 5, false},
	} {
		a := newArena(&Options{}, nil, newPhase("p", 2, 1, ""), &process{})
		rd := &reader{pre: map[uint64]uint64{1: tc.pre}, lost: tc.lost, end: &api.End{Delivered: tc.delivered, Lost: tc.lost}}
		ok := true
		a.sums(rd, []api.Probe{{ID: 1, Stats: api.Stats{Counts: api.Counts{Handled: tc.handled}, Events: tc.emitted}}}, func(string, ...any) { ok = false })
		if ok != tc.ok {
			t.Errorf("%s: in order is %v, want %v", tc.name, ok, tc.ok)
		}
	}
}

// TestJudgement: which answers a client puts up with, and when.
func TestJudgement(t *testing.T) {
	refusal := &api.Error{Code: "blacklisted"}
	gone := fmt.Errorf("%w: %w", remote.ErrUnreachable, syscall.ECONNREFUSED)
	for _, tc := range []struct {
		name   string
		err    error
		how    leaving
		fails  bool
		over   bool
		counts int
	}{
		{"done", nil, staying, false, false, 0},
		{"a refusal", refusal, staying, false, false, 1},
		{"another refusal", &api.Error{Code: "foreign_int3"}, staying, true, false, 0},
		{"a bug", &api.Error{Code: api.CodeInternal}, terminated, true, false, 0},
		{"gone", gone, staying, true, false, 0},
		{"gone by SIGTERM", gone, terminated, false, true, 0},
		{"gone by SIGKILL", gone, killed, false, true, 0},
		{"gone with the guest", gone, guestEnds, true, false, 0},
		{"closing", &api.Error{Code: api.CodeClosing}, terminated, false, true, 0},
		{"closing by itself", &api.Error{Code: api.CodeClosing}, staying, true, false, 0},
		{"the guest has ended", &api.Error{Code: api.CodeGuestState}, guestEnds, false, false, 1},
		{"the guest has ended by itself", &api.Error{Code: api.CodeGuestState}, staying, true, false, 0},
		{"no answer", errNoAnswer, terminated, true, false, 0},
	} {
		a := newArena(&Options{}, nil, newPhase("p", 2, 1, ""), &process{})
		a.leaving.Store(int32(tc.how))
		w := a.newWorker("c", 0)
		ok := w.ok(tc.err, refusals...)
		_, counted := a.phase.Tally.Operations()
		if ok != (tc.err == nil) || a.phase.failed() != tc.fails || w.over != tc.over || counted != tc.counts {
			t.Errorf("%s: ok %v, failed %v, over %v, %d refusals", tc.name, ok, a.phase.failed(), w.over, counted)
		}
	}
}

// TestComplaints: the lines that a healthy daemon never writes.
func TestComplaints(t *testing.T) {
	dir := t.TempDir()
	p := &process{log: filepath.Join(dir, "log"), stderr: filepath.Join(dir, "stderr")}
	if _, err := p.complaints(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a log: %v", err)
	}
	log := `{"level":"INFO","msg":"guest text restored"}
{"level":"WARN","msg":"probe handler used a bad guest address"}
{"level":"ERROR","msg":"guest text differs"}
`
	for file, text := range map[string]string{p.log: log, p.stderr: "warning\npanic: BUG: x\n\ngoroutine 1 [running]:\nWARNING: DATA RACE\nfatal error: all\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := p.complaints()
	want := []string{`{"level":"ERROR","msg":"guest text differs"}`, "panic: BUG: x", "WARNING: DATA RACE", "fatal error: all"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if ok, err := p.hasLogLine("guest text restored"); !ok || err != nil {
		t.Errorf("logged: %v, %v", ok, err)
	}
	if ok, err := p.hasLogLine("guest text"); ok || err != nil {
		t.Errorf("a part of a message is one: %v, %v", ok, err)
	}
}
