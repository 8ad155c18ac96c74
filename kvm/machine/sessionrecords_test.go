package machine

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// ring returns the counts of the ring of record.o.
func (x *onGuest) ring() (r bpf.RingStats) {
	x.Helper()
	if err := x.s.ReadMap("records", func(_ session.MapInfo, m *bpf.Map) error {
		r = m.RingStats()
		return nil
	}); err != nil {
		x.Fatal(err)
	}
	return r
}

// TestRecordsOfTheGuest: a subscription delivers every record that a program in the guest makes
// while the subscription is open, no matter which came first. It delivers no earlier
// records, and without a subscription no record leaves the ring.
func TestRecordsOfTheGuest(t *testing.T) {
	x := onBuiltin(t, 2)
	// The emulators' time stamp counters do not have the frequency that KVM reports.
	on := kvmtest.DetectHost()
	timed := on != kvmtest.HostQEMU && on != kvmtest.HostBochs
	attach := func() {
		// One call in 1024 makes a record, so that the ring has room for the records of
		// many seconds.
		a, err := x.s.AttachObject(session.ObjectSpec{File: objectFile(t, "record.o"), At: "user_hot", Set: map[string]string{"smallest": "0xffc0000000000000"}})
		if err != nil || len(a.Probes) != 1 {
			t.Fatal(a, err)
		}
		x.await("record", "in the guest", func(i session.Info) bool { return i.Site.InGuest })
	}
	more := uint64(50_000)
	if testing.Short() {
		more = 10_000
	}
	unheard := func(read uint64) {
		t.Helper()
		was, hits := x.ring().Pending, uint64(0)
		x.await("record", "hit without a subscription", func(i session.Info) bool {
			if hits == 0 {
				hits = i.Stats.InGuest + 1
			}
			return i.Stats.InGuest > hits+more
		})
		if r := x.ring(); r.Read != read || r.Lost != 0 || r.Pending <= was {
			t.Errorf("without a subscription: %+v, with %d read and %d bytes pending before", r, read, was)
		}
	}
	pause := func() {
		t.Helper()
		if err := x.m.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	resume := func() {
		t.Helper()
		if err := x.m.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	for _, subscribedFirst := range []bool{false, true, false} {
		if !subscribedFirst {
			attach()
			unheard(0)
		}
		pause()
		sub := x.s.Subscribe(nil, event.Queue{}, session.AllEvents)
		start := x.s.Now()
		if subscribedFirst {
			attach()
		}
		first := x.ring().Read
		resume()
		early := 0
		for range 30 {
			ev, err := sub.Next(patience.Context(t))
			if err != nil {
				t.Fatal(err)
			}
			r, ok := session.RingRecordOf(ev)
			if !ok {
				t.Fatalf("%+v is no record of a ring", ev)
			}
			made := x.s.TimeOf(event.Event{Time: int64(binary.LittleEndian.Uint64(r.Data))})
			if timed && made > x.s.TimeOf(ev) {
				t.Errorf("made at %d, taken out at %d", made, x.s.TimeOf(ev))
			}
			if made < start {
				early++
			}
		}
		pause()
		sub.Release()
		x.s.Sync()
		sub.Stop()
		n := uint64(30)
		for {
			_, err := sub.Next(patience.Context(t))
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			n++
		}
		end := sub.Close()
		r := x.ring()
		if end.Delivered != n || end.Lost != 0 || r.Read-first != n || r.Lost != 0 {
			t.Errorf("subscribed first %v: %d records; the end %+v; ring %+v, with %d read before", subscribedFirst, n, end, r, first)
		}
		// Each vCPU may have been stopped while it made a record.
		if timed && early > 2 {
			t.Errorf("subscribed first %v: %d records were made before the subscription", subscribedFirst, early)
		}
		resume()
		unheard(r.Read)
		if gone, err := x.s.Detach("record"); err != nil || gone[0].Stats.Events != n || gone[0].Stats.Lost != 0 {
			t.Errorf("subscribed first %v: %+v, %v; %d records", subscribedFirst, gone, err, n)
		}
	}
}
