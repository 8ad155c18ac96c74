package http

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// counts opens a stream of counts whose moments come when it is told to.
func (h *harness) counts(r api.StreamCounts) (*remote.Stream, api.Start) {
	h.Helper()
	if r.IntervalMS == 0 {
		r.IntervalMS = api.MaxInterval
	}
	s, err := h.c.Counts(h.ctx, r)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { s.Close() })
	return s, next[api.Start](h, s, api.RecordStart)
}

// moment reads one moment, of however many records.
func (h *harness) moment(s *remote.Stream) (all api.Counted) {
	h.Helper()
	for {
		m := next[api.Counted](h, s, api.RecordCounts)
		if all.Guest == nil {
			all = m
		} else {
			all.Probes, all.Detached = append(all.Probes, m.Probes...), append(all.Detached, m.Detached...)
		}
		if !m.More {
			return all
		}
	}
}

// TestCounts: all probes come once, and then those that have changed, and which have gone.
func TestCounts(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:io/a schedule", "p:b do_fork", "p:c vfs_read")
	s, start := h.counts(api.StreamCounts{})
	first := h.moment(s)
	if len(first.Probes) != 3 || first.Guest.State != "running" || len(first.Guest.CPUs) == 0 || first.TimeNS < start.TimeNS {
		t.Errorf("first moment %+v", first)
	}
	for range 3 {
		h.g.hit(t, 1, "schedule", 0, nil)
	}
	if _, err := h.c.Detach(h.ctx, "b"); err != nil {
		t.Fatal(err)
	}
	h.attach("p:d do_fork")
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	second := h.moment(s)
	var got []string
	for _, p := range second.Probes {
		got = append(got, fmt.Sprintf("%d %s %s %s %d=%d", p.ID, p.Name, p.Kind, p.Symbol, p.Hits, p.Handled))
	}
	if d := cmp.Diff([]string{"1 io/a k schedule 3=3", "4 kprobes/d k do_fork 0=0"}, got); d != "" || !slices.Equal(second.Detached, []uint64{2}) {
		t.Errorf("gone %d, changed (-want +got):\n%s", second.Detached, d)
	}
	if end := next[api.End](h, s, api.RecordEnd); end.Reason != api.EndAsked {
		t.Errorf("end %+v", end)
	}
}

// TestCountsOfMany: a moment of many probes is in parts, and one of those asked for alone ends with them.
func TestCountsOfMany(t *testing.T) {
	h := serveFake(t, nil)
	var specs []api.ProbeSpec
	for i := range countsAtOnce + 7 {
		specs = append(specs, api.ProbeSpec{Def: fmt.Sprintf("p:many/x%d schedule", i)})
	}
	if _, err := h.c.Attach(h.ctx, append(specs, api.ProbeSpec{Def: "p:other do_fork"})...); err != nil {
		t.Fatal(err)
	}
	s, _ := h.counts(api.StreamCounts{Names: []string{"many/*"}})
	if m := next[api.Counted](h, s, api.RecordCounts); len(m.Probes) != countsAtOnce || !m.More || m.Guest == nil {
		t.Errorf("%d probes in the first part", len(m.Probes))
	}
	if m := next[api.Counted](h, s, api.RecordCounts); len(m.Probes) != 7 || m.More || m.Guest != nil {
		t.Errorf("%d probes in the second part", len(m.Probes))
	}
	if _, err := h.c.DetachMany(h.ctx, "many/*"); err != nil {
		t.Fatal(err)
	}
	if m := h.moment(s); len(m.Probes) != 0 || len(m.Detached) != len(specs) {
		t.Errorf("last moment %+v", m)
	}
	if end := next[api.End](h, s, api.RecordEnd); end.Reason != api.EndDetached {
		t.Errorf("end %+v", end)
	}
	for body, want := range map[string]int{`{"names":["nope"]}`: http.StatusNotFound, `{"intervalMs":9}`: http.StatusBadRequest, `{"hz":1}`: http.StatusBadRequest} {
		if status, text := h.rawRequest(http.MethodPost, "/v1/counts", body); status != want {
			t.Errorf("%s: status %d, want %d: %s", body, status, want, text)
		}
	}
}

// TestCountsOfDurations: calls are timed while somebody asks for that, all of them where they are few, and never
// many more than are bounded. Nobody makes events for it behind.
func TestCountsOfDurations(t *testing.T) {
	const most = 9
	h := serveMachine(t, 1, func(o *options) { o.timedAtMost = most })
	ps := h.attach("r:back bench_target", "p:in bench_target", "r:other panic")
	s, start := h.counts(api.StreamCounts{Durations: true})
	if m := h.moment(s); len(m.Probes) != 3 || m.Probes[0].Durations != nil {
		t.Errorf("first moment %+v", m)
	}
	for range 3 {
		h.calls("bench_target", 1, 1)
	}
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	for _, p := range h.moment(s).Probes {
		d := p.Durations
		if p.ID != ps[0].ID {
			if d != nil {
				t.Errorf("durations of %s: %+v", p.Name, d)
			}
			continue
		}
		if d == nil || d.Count != 3 || d.SumNS == 0 || p.Returns != 3 {
			t.Fatalf("%+v of %+v", d, p)
		}
		n := uint64(0)
		for _, b := range d.Buckets {
			n += b.Count
		}
		if n != 3 {
			t.Errorf("%d durations in buckets %+v", n, d.Buckets)
		}
	}
	next[api.End](h, s, api.RecordEnd)
	s.Close()
	if _, n := h.s.probes.Listeners(); n != 0 {
		t.Errorf("%d listen behind the stream", n)
	}

	// Far more than are timed: one more than most ends it.
	s, start = h.counts(api.StreamCounts{Durations: true, Names: []string{"back"}})
	h.moment(s)
	for range 2 * most {
		h.calls("bench_target", 1, 1)
	}
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	m := h.moment(s)
	if len(m.Probes) != 1 || m.Probes[0].Durations == nil || m.Probes[0].Durations.Count > most+1 || m.Probes[0].Returns != 3+2*most {
		t.Errorf("moment %+v", m)
	}
	next[api.End](h, s, api.RecordEnd)
	if _, n := h.s.probes.Listeners(); n != 0 {
		t.Errorf("%d listen behind the stream", n)
	}
}

// TestDurationsRouteBesideFast: a function that is called often takes nothing of the time of another one.
func TestDurationsRouteBesideFast(t *testing.T) {
	const most = 9
	h := serveMachine(t, 1, func(o *options) { o.timedAtMost = most })
	h.attach("r:fast bench_target", "r:slow vfs_read")
	s, start := h.counts(api.StreamCounts{Durations: true})
	h.moment(s)
	for range 3 * most {
		h.calls("bench_target", 1, 1)
		h.s.probes.Sync() // that many are seen
	}
	h.calls("vfs_read", 999, 0, 0, 0)
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	for _, p := range h.moment(s).Probes {
		if p.Durations == nil || p.Durations.Count != min(p.Returns, most) {
			t.Errorf("%s: %+v of %d calls", p.Name, p.Durations, p.Returns)
		}
	}
}

func TestDurationBuckets(t *testing.T) {
	for i := range 252 {
		lo, hi := durationRange(i)
		if durationBucket(lo) != i || durationBucket(hi) != i || hi != ^uint64(0) && durationBucket(hi+1) != i+1 {
			t.Errorf("bucket %d is %d to %d: %d, %d, %d", i, lo, hi, durationBucket(lo), durationBucket(hi), durationBucket(hi+1))
		}
	}
	if _, hi := durationRange(251); hi != ^uint64(0) {
		t.Errorf("the last bucket ends at %d", hi)
	}
}

// calls calls a function of the guest.
func (h *harness) calls(fn string, args ...api.Hex) int64 {
	h.Helper()
	r, err := h.c.Call(h.ctx, api.Call{Symbol: fn, Args: args})
	if err != nil {
		h.Fatal(err)
	}
	return r.Value
}
