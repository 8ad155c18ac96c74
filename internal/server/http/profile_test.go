package http

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// profile opens the stream of a profile.
func (h *harness) profile(r api.StreamProfile) (*remote.Stream, api.Start) {
	h.Helper()
	s, err := h.c.Profile(h.ctx, r)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { s.Close() })
	return s, next[api.Start](h, s, api.RecordStart)
}

// stacks reads a profile to its end.
func (h *harness) stacks(s *remote.Stream) (stacks []api.Stack, end api.End) {
	h.Helper()
	for {
		r, err := s.Next()
		if err != nil {
			h.Fatal(err)
		}
		switch r.Type {
		case api.RecordStack:
			stacks = append(stacks, decode[api.Stack](h, r))
		case api.RecordEnd:
			return stacks, decode[api.End](h, r)
		}
	}
}

// functions are the functions of a stack, innermost first.
func functions(s api.Stack) string {
	var names []string
	for _, f := range s.Frames {
		name, _, _ := strings.Cut(f.Symbol, "+")
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

// TestProfileOfHits: every hit is in a stack, of attached probes, too, and those that a profile has
// brought go with it.
func TestProfileOfHits(t *testing.T) {
	h := serveMachine(t, 1)
	h.attach("p:io/mine bench_target a=%di", "r:io/back bench_target", "p:io/never panic")
	if _, err := h.c.Patch(h.ctx, api.PatchProbe{Filter: ptr("a > 3")}, "io/mine"); err != nil {
		t.Fatal(err)
	}
	s, start := h.profile(api.StreamProfile{Names: []string{"io/*"}, Probes: []api.ProbeSpec{{Def: "p:own bench_target", Stay: true}}})
	if len(start.Probes) != 4 {
		t.Errorf("profiled are %+v", start.Probes)
	}
	for i := range 7 {
		h.calls("bench_target", api.Hex(i), 1)
	}
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	got, took := map[string]uint64{}, int64(0)
	stacks, end := h.stacks(s)
	for _, x := range stacks {
		got[x.Probe+": "+functions(x)] += x.Count
		took += x.DurationNS
		if x.Task == nil || x.Task.PID == 0 || x.Frames[0].User || x.Cut || (x.DurationNS > 0) != (x.Probe == "io/back") {
			t.Errorf("stack %+v", x)
		}
	}
	want := map[string]uint64{
		"kprobes/own: bench_target call_protected call_task ret_from_fork": 7,
		"io/mine: bench_target call_protected call_task ret_from_fork":     3, // the filter's
		"io/back: bench_target call_protected call_task ret_from_fork":     7,
	}
	if d := cmp.Diff(want, got); d != "" || took <= 0 {
		t.Errorf("durations %d, stacks (-want +got):\n%s", took, d)
	}
	if end.Reason != api.EndAsked || end.Delivered != 17 || end.Lost != 0 || len(end.Probes) != 4 {
		t.Errorf("end %+v", end)
	}
	var names []string
	for _, x := range end.Probes {
		names = append(names, x.Name)
	}
	slices.Sort(names)
	if d := cmp.Diff([]string{"io/back", "io/mine", "io/never", "kprobes/own"}, names); d != "" {
		t.Errorf("the end's probes (-want +got):\n%s", d)
	}
	h.awaitGone(3) // those attached before are left
}

// TestProfileGraph: a profile's flame graph has what its stacks would have.
func TestProfileGraph(t *testing.T) {
	h := serveMachine(t, 1)
	s, start := h.profile(api.StreamProfile{Graph: true, Probes: []api.ProbeSpec{{Def: "p:own bench_target"}}})
	for i := range 7 {
		h.calls("bench_target", api.Hex(i), 1)
	}
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	var seen []string
	for {
		r, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if r.Type == api.RecordHeartbeat {
			continue
		}
		seen = append(seen, string(r.Type))
		switch r.Type {
		case api.RecordGraph:
			g := decode[struct {
				Unit string
				Root []any
			}](h, r)
			path := ""
			for n := g.Root; ; {
				path += fmt.Sprint(" ", n[0], " ", n[2])
				callees := n[5].([]any)
				if len(callees) != 1 {
					break
				}
				n = callees[0].([]any)
			}
			if !strings.HasPrefix(path, " all 7 ") || !strings.HasSuffix(path, " ret_from_fork 7 call_task 7 call_protected 7 bench_target 7") || g.Unit != "hits" {
				t.Errorf("%s of%s", g.Unit, path)
			}
		case api.RecordEnd:
			if end := decode[api.End](h, r); end.Delivered != 7 || end.Lost != 0 {
				t.Errorf("end %+v", end)
			}
			if got := strings.Join(seen, " "); got != "graph end" {
				t.Errorf("records %s", got)
			}
			return
		}
	}
}

// TestProfileOfSamples: samples are of what runs, in kernel and user code, with names, and all that
// were counted come out; a guest that is reset meanwhile changes nothing about that.
func TestProfileOfSamples(t *testing.T) {
	h := serveMachine(t, 2)
	if _, err := h.c.Resume(h.ctx); err != nil {
		t.Fatal(err)
	}
	total, user, unnamed := uint64(0), uint64(0), uint64(0)
	tasks := map[string]bool{}
	// A slow guest may execute only its kernel's code while 300 samples are taken.
	for round := 0; user == 0 || user == total || !tasks["workload"] || !tasks["user"]; round++ {
		s, start := h.profile(api.StreamProfile{Hz: api.MaxProfileHz})
		for seen, reset := uint64(0), round > 0; seen < 300; {
			r, err := s.Next()
			if err != nil {
				t.Fatalf("%d of %d samples are of user code, tasks are %v: %v", user, total, tasks, err)
			}
			if r.Type == api.RecordHeartbeat {
				seen = decode[api.Heartbeat](h, r).Delivered
			}
			if !reset && seen > 0 {
				reset = true
				if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
			t.Fatal(err)
		}
		stacks, end := h.stacks(s)
		all := uint64(0)
		for _, x := range stacks {
			all += x.Count
			if len(x.Frames) == 0 {
				t.Fatalf("a stack without frames: %+v", x)
			}
			if x.Frames[0].User {
				user += x.Count
			}
			if x.Frames[0].Symbol == "" {
				unnamed += x.Count
			}
			if x.Task != nil {
				tasks[x.Task.Comm] = true
			}
		}
		if end.Reason != api.EndAsked || all != end.Delivered || all < 300 {
			t.Errorf("%d samples in stacks, end %+v", all, end)
		}
		total += all
	}
	if unnamed > total/2 { // those of the first boot since the last second
		t.Errorf("%d of %d have no name", unnamed, total)
	}
	h.awaitGone(0)
}

// TestProfileEnds: what was gathered comes out also where the guest ends.
func TestProfileEnds(t *testing.T) {
	h := serveFake(t, nil)
	s, _ := h.profile(api.StreamProfile{Probes: []api.ProbeSpec{{Def: "p:a schedule"}}})
	for range 3 {
		h.g.hit(t, 1, "schedule", 0, nil)
	}
	h.g.become(machine.PhaseExited, func(s *machine.State) { s.ExitCode = 3 })
	stacks, end := h.stacks(s)
	if len(stacks) != 1 || stacks[0].Count != 3 || stacks[0].CPU != 1 || !strings.HasPrefix(functions(stacks[0]), "schedule") {
		t.Errorf("stacks %+v", stacks)
	}
	if end.Reason != api.EndGuestExit || end.Delivered != 3 || end.Lost != 0 {
		t.Errorf("end %+v", end)
	}
}

// TestProfileRoom: stacks that find no room are lost, and told.
func TestProfileRoom(t *testing.T) {
	p := &profile{host: serveFake(t, nil).s.eventHost, cpus: make([]stackCounts, 1)}
	p.room.Store(40)
	t0 := &p.cpus[0]
	for i, pc := range []guest.GVA{1, 2, 3, 1} {
		x := p.count(t0, []guest.GVA{pc}, false, 0, nil, "")
		if (x == nil) != (i == 2) {
			t.Fatalf("stack %d: %+v", i, x)
		}
		if x != nil {
			x.count++
		}
	}
	if counted, lost := p.name(); counted != 3 || lost != 1 {
		t.Errorf("%d counted, %d lost", counted, lost)
	}
}

func TestProfileRefused(t *testing.T) {
	h := serveFake(t, nil)
	def := []api.ProbeSpec{{Def: "p:a schedule"}}
	for _, c := range []struct {
		req  api.StreamProfile
		code api.Code
		text string
	}{
		{api.StreamProfile{}, api.CodeBadValue, "hz or probes is missing"},
		{api.StreamProfile{Hz: -1}, api.CodeBadValue, "hz -1: not 1 to 1000"},
		{api.StreamProfile{Hz: 1001}, api.CodeBadValue, "hz 1001: not 1 to 1000"},
		{api.StreamProfile{Hz: 1, Probes: def}, api.CodeBadValue, "either hz, or probes whose hits' stacks are wanted"},
		{api.StreamProfile{Names: []string{"nope"}}, api.CodeProbeNotFound, `no probe "nope" is attached`},
		{api.StreamProfile{Hz: 99}, api.CodeUnavailable, "what the vCPUs of this guest do cannot be looked at"},
		{api.StreamProfile{Probes: []api.ProbeSpec{{Def: "p:a nope"}}}, "symbol_not_found", ""},
	} {
		_, err := h.c.Profile(h.ctx, c.req)
		var wire *api.Error
		if !errors.As(err, &wire) || wire.Code != c.code || !strings.Contains(wire.Message, c.text) {
			t.Errorf("%+v: %v", c.req, err)
		}
	}
	h.awaitGone(0)
}
