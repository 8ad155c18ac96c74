package http

import (
	"os"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestDaemonCountsItself: every count moves by what a client opens, and comes
// back when it is closed.
func TestDaemonCountsItself(t *testing.T) {
	h := serveFake(t, nil)
	get := func() api.Daemon {
		t.Helper()
		d, err := h.c.Daemon(h.ctx)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	before := get()
	if before.PID != os.Getpid() || before.Goroutines < 2 || before.Threads < 2 || before.HeapBytes == 0 || before.RSSBytes < before.HeapBytes || before.UptimeMS < 0 {
		t.Errorf("at rest: %+v", before)
	}
	if before.Streams != 0 || before.Probes != 0 || before.Session != 0 || before.Events != (api.EventCounts{}) {
		t.Errorf("nothing is attached, and yet %+v", before)
	}
	p := h.attach("p:stays vfs_read")[0]
	other := remote.New(h.c.Path())
	s, err := other.Events(h.ctx, api.StreamEvents{Probes: []api.ProbeSpec{{Def: "p:goes vfs_read"}}})
	if err != nil {
		t.Fatal(err)
	}
	next[api.Start](h, s, api.RecordStart)
	if !h.g.hit(t, 0, "vfs_read", p.Offset, nil) {
		t.Fatal("no probe was hit")
	}
	during := get()
	if during.Streams != 1 || during.Probes != 2 || during.Session != 1 {
		t.Errorf("with a stream: %d streams, %d probes, %d of sessions; want 1, 2, 1", during.Streams, during.Probes, during.Session)
	}
	if want := (api.EventCounts{Emitted: 2, Stored: 2}); during.Events != want {
		t.Errorf("after a hit of both probes: %+v, want %+v", during.Events, want)
	}
	if during.Descriptors <= before.Descriptors || during.Goroutines <= before.Goroutines {
		t.Errorf("a stream is open: %d descriptors and %d goroutines, before it %d and %d", during.Descriptors, during.Goroutines, before.Descriptors, before.Goroutines)
	}
	// The stream is taken off the list before its probes are.
	gone := h.s.probes.Changed()
	s.Close()
	other.Close()
	<-gone
	if after := get(); after.Streams != 0 || after.Session != 0 || after.Probes != 1 {
		t.Errorf("the stream is closed: %d streams, %d probes, %d of sessions; want 0, 1, 0", after.Streams, after.Probes, after.Session)
	}
}
