package http

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestBusyPrograms: programs that end at their budget only, of each kind that takes long,
// hold up neither a pause nor a detach, on the host and in the guest: both take effect
// while the program runs on all vCPUs, and the counts in the answer to the detach close.
func TestBusyPrograms(t *testing.T) {
	for _, tc := range []struct {
		section string
		guest   bool // it can run there
	}{
		{"kprobe/user_hot", true},           // an endless loop
		{"kprobe/user_hot+0x0", true},       // reads that fail
		{"kprobe/user_red_zone", true},      // long keys
		{"kprobe/user_red_zone+0x0", false}, // stack walks
	} {
		for _, onHost := range []bool{true, false} {
			if !onHost && !tc.guest {
				continue
			}
			t.Run(fmt.Sprintf("%s, on host %v", tc.section, onHost), func(t *testing.T) {
				h := serveMachine(t, 2)
				h.busy(api.AttachProgram{Object: objectFile(t, "busy.o"), Section: tc.section, OnHost: onHost, At: "user_hot"})
			})
		}
	}
}

// busy attaches a program, pauses and goes on and detaches it, again and again.
func (h *harness) busy(a api.AttachProgram) {
	h.Helper()
	var pause, detach time.Duration
	runs := uint64(0)
	for range 5 {
		ps, err := h.c.AttachProgram(h.ctx, a)
		if err != nil {
			h.Fatal(err)
		}
		name := ps[0].Name
		if !a.OnHost {
			h.await(name, "in the guest", func(p api.Probe) bool { return p.Program.InGuest > 0 })
		}
		h.await(name, "run", func(p api.Probe) bool { return p.Program.Faults > 0 })
		start := time.Now()
		g, err := h.c.Pause(h.ctx)
		pause = max(pause, time.Since(start))
		if err != nil || g.State != "paused" {
			h.Fatal(g.State, err)
		}
		if _, err := h.c.Resume(h.ctx); err != nil {
			h.Fatal(err)
		}
		h.await(name, "another run", func(p api.Probe) bool { return p.Program.Runs > ps[0].Program.Runs })
		start = time.Now()
		p, err := h.c.Detach(h.ctx, name)
		detach = max(detach, time.Since(start))
		if err != nil {
			h.Fatal(err)
		}
		s := p.Stats
		if s.Hits != s.Handled+s.Filtered+s.Missed || s.Handled != p.Program.Runs || s.Handled == 0 {
			h.Errorf("%+v, %+v", s, p.Program)
		}
		if !strings.Contains(p.Program.Fault, "budget used up") {
			h.Errorf("ended with %q", p.Program.Fault)
		}
		runs += p.Program.Runs
	}
	h.identical(true)
	if g, err := h.c.Guest(h.ctx); err != nil || g.State != "running" {
		h.Error(g.State, err)
	}
	h.Logf("%d runs; a pause took %v at most, a detach %v", runs, pause, detach)
}
