package http

import (
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// ring returns the counts of the ring of record.o.
func (h *harness) ring() api.MapRing {
	h.Helper()
	d, err := h.c.Map(h.ctx, "records")
	if err != nil || d.Ring == nil {
		h.Fatal(d, err)
	}
	return *d.Ring
}

// TestRecordsOfTheGuest: the records of a program in the guest come while their stream is
// open, every one, whether the stream or the program was there first. What was written
// before is none of the stream's, and without a stream nothing comes out of the ring.
func TestRecordsOfTheGuest(t *testing.T) {
	h := serveMachine(t, 2)
	attach := func() {
		// One call in 1024 leaves a record: few enough that the ring has room for what is
		// made in many seconds.
		ps, err := h.c.AttachProgram(h.ctx, api.AttachProgram{Object: objectFile(t, "record.o"), At: "user_hot", Set: map[string]string{"smallest": "0xffc0000000000000"}})
		if err != nil || len(ps) != 1 {
			t.Fatal(ps, err)
		}
		h.await("record", "in the guest", func(p api.Probe) bool { return p.Runs == api.RunsInGuest })
	}
	unheard := func(read uint64) {
		t.Helper()
		was := h.ring().Pending
		hits := h.inGuest("record")
		h.await("record", "hit with nobody listening", func(p api.Probe) bool { return h.inGuest("record") > hits+50_000 })
		if r := h.ring(); r.Read != read || r.Lost != 0 || r.Pending <= was {
			t.Errorf("with nobody listening: %+v, with %d read and %d bytes pending before", r, read, was)
		}
	}
	pause := func() {
		t.Helper()
		if _, err := h.c.Pause(h.ctx); err != nil {
			t.Fatal(err)
		}
	}
	resume := func() {
		t.Helper()
		if _, err := h.c.Resume(h.ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, streamFirst := range []bool{false, true, false} {
		if !streamFirst {
			attach()
			unheard(0)
		}
		pause()
		s := h.stream(h.ctx, api.StreamEvents{})
		start := next[api.Start](h, s, api.RecordStart)
		if streamFirst {
			attach()
		}
		first := h.ring().Read
		resume()
		early := 0
		for range 30 {
			hit := next[api.Hit](h, s, api.RecordHit)
			made := h.s.probes.TimeOf(event.Event{Time: int64(binary.LittleEndian.Uint64(hit.Data))})
			if made > hit.TimeNS {
				t.Errorf("made at %d, taken out at %d", made, hit.TimeNS)
			}
			if made < start.TimeNS {
				early++
			}
		}
		pause()
		if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
			t.Fatal(err)
		}
		n := uint64(30)
		var end api.End
		for end.Reason == "" {
			switch r, err := s.Next(); {
			case err != nil:
				t.Fatal(err)
			case r.Type == api.RecordHit:
				n++
			case r.Type == api.RecordEnd:
				end = decode[api.End](h, r)
			}
		}
		s.Close()
		r := h.ring()
		if end.Delivered != n || end.Lost != 0 || r.Read-first != n || r.Lost != 0 {
			t.Errorf("stream first %v: %d hits; the end %+v; ring %+v, with %d read before", streamFirst, n, end, r, first)
		}
		// Each vCPU may have been stopped in the middle of making one.
		if early > 2 {
			t.Errorf("stream first %v: %d records were made before the stream", streamFirst, early)
		}
		resume()
		unheard(r.Read)
		if p, err := h.c.Detach(h.ctx, "record"); err != nil || p.Stats.Events != n || p.Stats.Lost != 0 {
			t.Errorf("stream first %v: %+v, %v; %d hits", streamFirst, p.Stats, err, n)
		}
	}
}
