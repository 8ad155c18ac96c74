package http

import (
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestPatchUnderStream is about PATCH and streams: each answer has the new filter and counts that only grow, and the stream's end has counts
// that close. The probes are hit all the time, on the host and in the guest; TestSessionFilters of kvm/machine has the same without a daemon.
func TestPatchUnderStream(t *testing.T) {
	h := serveMachine(t, 2)
	specs := []api.ProbeSpec{
		{Def: "p:a user_hot b=$arg2:u64"}, {Def: "p:b user_hot b=$arg2:u64", OnHost: true},
		{Def: "r:c user_hot b=$arg2:u64"}, {Def: "p:d vfs_read b=%dx:u64"},
	}
	s := h.stream(h.ctx, api.StreamEvents{Probes: specs})
	start := next[api.Start](h, s, api.RecordStart)
	read := make(chan uint64, 1)
	var end api.End
	go func() {
		n := uint64(0)
		defer func() { read <- n }()
		for {
			r, err := s.Next()
			if err != nil {
				t.Error(err)
				return
			}
			switch r.Type {
			case api.RecordHit:
				n++
			case api.RecordEnd:
				end = decode[api.End](h, r)
				return
			}
		}
	}()
	before := map[uint64]api.Counts{}
	changes := 40
	if testing.Short() { // emulated hosts, and slow ones
		changes = 15
	}
	for i := range changes {
		filter := []string{"b == 7", "0", "b & 1", "", "b < 0x10 && cpu == 1"}[i%5]
		ps, err := h.c.Patch(h.ctx, api.PatchProbe{Filter: &filter}, "a", "b", "c", "d")
		if err != nil || len(ps) != len(specs) {
			t.Fatal(ps, err)
		}
		for _, p := range ps {
			was, now := before[p.ID], p.Stats.Counts
			if now.Hits < was.Hits || now.Handled < was.Handled || now.Filtered < was.Filtered || now.Returns < was.Returns {
				t.Errorf("change %d: %s has counted %+v, and before %+v", i, p.Name, now, was)
			}
			if want := map[string]string{"0": ""}; p.Filter != filter && p.Filter != want[filter] {
				t.Errorf("change %d: %s has the filter %q", i, p.Name, p.Filter)
			}
			before[p.ID] = now
		}
		h.await("b", "hit", func(p api.Probe) bool { return p.Stats.Hits > before[p.ID].Hits })
		if i%2 == 0 {
			if err := h.s.guest.Engine().Optimize(); err != nil {
				t.Fatal(err)
			}
			h.await("a", "hit", func(p api.Probe) bool { return p.Stats.Hits > before[p.ID].Hits+100 })
		}
	}
	bad := "nope == 1"
	if _, err := h.c.Patch(h.ctx, api.PatchProbe{Filter: &bad}, "a", "b"); err == nil {
		t.Error("a filter of no field was accepted")
	}
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	n, events := <-read, uint64(0)
	for _, p := range end.Probes {
		c, made := p.Stats, p.Stats.Handled
		if p.Kind == "r" {
			made = c.Returns - c.Rejected
		}
		events += made
		if c.Events != made || c.Hits != c.Handled+c.Filtered+c.Missed || p.Kind == "r" && c.Handled != c.Returns+c.Abandoned+c.UnderWay || p.InUse != 0 || c.Hits < before[p.ID].Hits {
			t.Errorf("%s: %d events of %d, %+v, %d in use", p.Name, c.Events, made, c, p.InUse)
		}
	}
	if got := fmt.Sprint(len(end.Probes), end.Delivered, end.Delivered+end.Lost); got != fmt.Sprint(len(specs), n, events) {
		t.Errorf("probes, delivered, delivered + lost: %s; read %d of %d", got, n, events)
	}
	if g, err := h.c.Guest(h.ctx); err != nil || g.State != "running" || g.Checks != 0 {
		t.Errorf("the guest: %+v, %v", g, err)
	}
}
