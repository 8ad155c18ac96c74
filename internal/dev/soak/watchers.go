package soak

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// queueEvents is how many events the daemon queues for one stream (probe/event,
// Queue). When a reader that does not read starts to lose events, it lags by
// that many and by the socket's contents.
const queueEvents = 8192

// hotSites are hit all the time, at CPL3 and at CPL0.
var hotSites = []string{"user_hot", "user_checksum", "schedule", "vfs_read"}

// slowReader opens a stream with hot probes and does not read it until the
// phase's time is over. Then its probes are detached, everything is read, and
// the sums must match. If the daemon is ended before that, the stream must only
// not block anything.
func (w *worker) slowReader(*rand.Rand) {
	var specs []api.ProbeSpec
	for _, fn := range hotSites {
		specs = append(specs, api.ProbeSpec{Def: "p:" + w.name("soaks") + " " + fn, Regs: true, Post: true})
	}
	rd, err := w.open(api.StreamEvents{Probes: specs})
	if !w.ok(err) {
		return
	}
	w.noteAttached(rd.start.Probes)
	<-w.stop
	if w.is(terminated) || w.is(killed) {
		w.over = true
		go rd.read(w.cpus)
		w.cut(rd)
		return
	}
	var final []api.Probe
	for _, p := range rd.start.Probes {
		p, ok := w.detach(p.Name)
		if !ok {
			break
		}
		final = append(final, p)
	}
	go rd.read(w.cpus)
	if !w.finished(rd, w.fail) || len(final) < len(specs) || rd.end.Reason != api.EndDetached {
		return
	}
	w.sums(rd, final, w.fail)
	// It must have been too slow, if there was enough to be slow about.
	if made := rd.end.Delivered + rd.end.Lost; rd.lost == 0 && made > 3*queueEvents {
		w.fail("%d events were made, none was lost by a reader that did not read", made)
	}
}

// witness reads all events, from the phase's beginning to the daemon's
// end.
func (w *worker) witness(want string) {
	rd, err := w.open(api.StreamEvents{})
	if !w.ok(err) {
		return
	}
	go rd.read(w.cpus)
	<-w.stop
	if !w.finished(rd, w.fail) {
		return
	}
	if rd.end.Reason != want {
		w.fail("the stream of all events ended with the reason %s, want %s", rd.end.Reason, want)
	}
}

// awaitCond repeats cond until it returns "", and returns its last message, or
// "".
func awaitCond(limit time.Duration, cond func() string) string {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		why := cond()
		if why == "" {
			return ""
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return why
		}
	}
}
