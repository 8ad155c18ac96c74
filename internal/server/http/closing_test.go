package http

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// loadCPUs keeps the machine busy with so many other processes until the test ends.
func loadCPUs(t *testing.T, n int) {
	t.Helper()
	for range n {
		c := exec.Command("sh", "-c", "while kill -0 $PPID; do :; done")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Kill()
			var x *exec.ExitError
			if err := c.Wait(); !errors.As(err, &x) {
				t.Error(err)
			}
		})
	}
}

// rounds is how often the test of this file does what it does: GUESTPROBE_ROUNDS, or n.
func rounds(t *testing.T, n int) int {
	s := os.Getenv("GUESTPROBE_ROUNDS")
	if s == "" {
		return n
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestEventsClose attaches, traces and detaches probes that run in the guest, with the
// machine busy with other work: what was handled was delivered or is lost, and the
// answer to the detach, if it is that which ends the stream, says as much as the end does.
func TestEventsClose(t *testing.T) {
	for _, vcpus := range []int{1, 2, 4, 8} {
		t.Run(fmt.Sprint(vcpus, " vCPUs"), func(t *testing.T) {
			h := serveMachine(t, vcpus)
			loadCPUs(t, 4)
			for i := range rounds(t, kvmtest.ChooseSize(1, 2)) {
				for j, spec := range []api.ProbeSpec{
					{Def: "p:t user_hot a=%di b=%si"},
					{Def: "p:t user_hot a=%di", Filter: "a & 1"},
					{Def: "r:t user_hot $retval a=$arg1"},
					{Def: "p:t user_hot far=@0xffff800000000000:u8", Filter: "far != 0"},
					{Def: "p:t user_hot s=+0($stack):string"},
				} {
					h.checkSums(spec, uint64(rand.IntN(3000)), fmt.Sprintf("round %d.%d", i, j))
				}
			}
		})
	}
}

// checkSums traces a probe, detaches it behind so many hits, and compares the counts.
func (h *harness) checkSums(spec api.ProbeSpec, hits uint64, what string) {
	h.Helper()
	s := h.stream(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{spec}})
	defer s.Close()
	start := next[api.Start](h, s, api.RecordStart)
	if spec.Filter == "far != 0" {
		hits = 0 // there is none
		h.await("t", "hit", func(p api.Probe) bool { return p.Stats.Filtered > 100 })
	}
	answer := make(chan []api.Probe, 1) // to what ends the stream
	read, gone, reason := uint64(0), false, api.EndDetached
	if rand.IntN(2) == 0 {
		reason = api.EndAsked
	}
	for {
		if read >= hits && !gone {
			gone = true
			go func() {
				defer close(answer)
				if reason == api.EndAsked {
					if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
						h.Error(what, err)
					}
					return
				}
				p, err := h.c.Detach(h.ctx, "t")
				if err != nil {
					h.Error(what, err)
				}
				answer <- []api.Probe{p}
			}()
		}
		r, err := s.Next()
		if err != nil {
			h.Fatal(what, err)
		}
		switch r.Type {
		case api.RecordHit:
			read++
		case api.RecordEnd:
			end := decode[api.End](h, r)
			if len(end.Probes) != 1 {
				h.Fatalf("%s: %+v", what, end)
			}
			p := end.Probes[0]
			c := p.Stats
			if said := <-answer; said != nil && !cmp.Equal(said, end.Probes) {
				h.Errorf("%s: the answer is not the stream's:\n%s", what, cmp.Diff(said, end.Probes))
			}
			events := c.Handled
			if p.Kind == "r" {
				events = c.Returns - c.Rejected
			}
			switch {
			case end.Delivered != read || end.Reason != reason:
				h.Errorf("%s, %s: read %d, %+v", what, spec.Def, read, end)
			case end.Delivered+end.Lost != events || c.Events != events:
				h.Errorf("%s, %s: delivered %d + lost %d of %d handled; %d events", what, spec.Def, end.Delivered, end.Lost, events, c.Events)
			case c.Hits != c.Handled+c.Filtered+c.Missed:
				h.Errorf("%s, %s: %+v", what, spec.Def, c)
			case p.Kind == "r" && c.Handled != c.Returns+c.Abandoned+c.UnderWay || p.InUse != 0:
				h.Errorf("%s, %s: %+v, %d in use", what, spec.Def, c, p.InUse)
			case spec.Filter == "far != 0" && c.Handled != 0:
				h.Errorf("%s, %s: handled %d", what, spec.Def, c.Handled)
			}
			return
		}
	}
}

// TestEventsEndWhenAsked: a probe that stays makes no events for a stream that was asked to end, however long its
// client takes for those that there are. Each vCPU may have been in the middle of one.
func TestEventsEndWhenAsked(t *testing.T) {
	const vcpus = 2
	h := serveMachine(t, vcpus)
	h.attach("p:t user_hot a=%di")
	s := h.stream(h.ctx, api.StreamEvents{Names: []string{"t"}})
	defer s.Close()
	start := next[api.Start](h, s, api.RecordStart)
	hits := func(more uint64) {
		h.Helper()
		was := h.await("t", "there", func(api.Probe) bool { return true }).Stats.Hits
		h.await("t", "hit", func(p api.Probe) bool { return p.Stats.Hits >= was+more })
	}
	hits(50_000) // more than waits for the client
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	// The daemon is in the middle of a write; some must be read before it comes to the question.
	var end api.End
	for read := 0; ; read++ {
		r, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		if r.Type == api.RecordEnd {
			end = decode[api.End](h, r)
			break
		}
		if read == 5000 {
			hits(50_000)
		}
	}
	p, err := h.c.Probe(h.ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	if sum := end.Delivered + end.Lost; p.Stats.Events < sum || p.Stats.Events > sum+vcpus || p.Stats.Hits < 100_000 {
		t.Errorf("%d events of %d hits, %d delivered and %d lost", p.Stats.Events, p.Stats.Hits, end.Delivered, end.Lost)
	}
}

// TestStartAsItStops: a stream whose probes the daemon's end takes away before it has
// begun is told all the same which it has brought, and what has become of them.
func TestStartAsItStops(t *testing.T) {
	h := serveFake(t, nil)
	h.s.streams.mu.Lock() // no stream opens
	opened := make(chan *remote.Stream)
	go func() {
		defer close(opened)
		s, err := h.c.Events(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:a vfs_read"}, {Def: "p:b schedule"}}})
		if err != nil {
			h.Error(err)
			return
		}
		opened <- s
	}()
	for len(h.s.probes.Probes()) != 2 && h.ctx.Err() == nil {
		runtime.Gosched()
	}
	h.cancel()
	h.awaitGone(0)
	h.s.streams.mu.Unlock()
	s, ok := <-opened
	if !ok {
		return
	}
	defer s.Close()
	start := next[api.Start](h, s, api.RecordStart)
	end := next[api.End](h, s, api.RecordEnd)
	if len(start.Probes) != 2 || len(end.Probes) != 2 || end.Reason != api.EndShutdown {
		t.Errorf("%+v\n%+v", start, end)
	}
}

// TestGoneWithTheDaemon: of probes that the daemon's end has taken away the answer is that
// it stops, by whatever name they are looked for, not that there are none.
func TestGoneWithTheDaemon(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:g/a vfs_read")
	names := []string{"1", "a", "g/a", "g/", "a*", "g/[ab]"}
	for _, name := range names {
		if as, err := h.s.probes.Choose(name); len(as) != 1 || err != nil {
			t.Errorf("%s: %d probes, %v", name, len(as), err)
		}
	}
	h.stop()
	for _, name := range names {
		if as, err := h.s.probes.Choose(name); !errors.Is(err, session.ErrClosed) {
			t.Errorf("%s behind the end: %d probes, %v", name, len(as), err)
		}
	}
}

// TestAttachedAsItStops: probes that the daemon's end takes away before their request is
// answered were attached, and are told with their final counts.
func TestAttachedAsItStops(t *testing.T) {
	h := serveFake(t, nil)
	a, err := h.s.probes.Attach([]session.Spec{{Def: "p:a vfs_read"}, {Def: "p:b schedule"}}, nil)
	if err != nil || len(a.Probes) != 2 {
		t.Fatal(a, err)
	}
	if !h.g.hit(t, 0, "schedule", 0, nil) {
		t.Fatal("not hit")
	}
	h.stop()
	ps := h.s.probes.Describe(a.Probes)
	if len(ps) != 2 || ps[0].Name != "kprobes/a" || ps[1].Name != "kprobes/b" || ps[1].Addr == 0 || ps[1].Stats.Hits != 1 || ps[1].Armed {
		t.Errorf("%+v", ps)
	}
}
