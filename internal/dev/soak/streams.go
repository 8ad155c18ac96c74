package soak

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// session opens a stream with 1 to 4 probes of its own. It returns nil if they
// were rejected, or if the daemon has gone.
func (w *worker) session(r *rand.Rand) *reader {
	n := 1 + r.IntN(4)
	var specs []api.ProbeSpec
	codes, inner := refusals, false
	for range n {
		s, in := w.spec(r, "soaks")
		specs, inner = append(specs, s), inner || in
	}
	if inner {
		codes = append(append([]api.Code(nil), codes...), "not_boundary")
	}
	rd, err := w.open(api.StreamEvents{Probes: specs})
	if !w.ok(err, codes...) {
		if !w.over {
			w.checkNothingLeft(specs)
		}
		return nil
	}
	if inner || len(rd.start.Probes) != n {
		w.fail("a stream with %v has brought %d probes", specs, len(rd.start.Probes))
	}
	w.noteAttached(rd.start.Probes)
	go rd.read(w.cpus)
	return rd
}

// streamDetach ends a stream by detaching its probes, one by one, and compares
// the hits that their handlers handled with the received events.
func (w *worker) streamDetach(r *rand.Rand) {
	n, d := uint64(r.IntN(60)), time.Duration(r.IntN(250))*time.Millisecond
	rd := w.session(r)
	if rd == nil {
		return
	}
	w.wait(rd, n, d)
	w.detachAndSum(rd)
}

// detachAndSum detaches the probes of a stream and closes its sum.
func (w *worker) detachAndSum(rd *reader) {
	var final []api.Probe
	for _, p := range rd.start.Probes {
		p, ok := w.detach(p.Name)
		if !ok {
			break
		}
		final = append(final, p)
	}
	// A daemon that ends, or a guest, ends the stream as well.
	if w.finished(rd, w.fail) && len(final) == len(rd.start.Probes) && rd.end.Reason == api.EndDetached {
		w.sums(rd, final, w.fail)
	}
	w.endReason(rd)
}

// endReason checks why a stream has ended.
func (w *worker) endReason(rd *reader) {
	if rd.end == nil {
		return
	}
	switch {
	case rd.end.Reason == api.EndDetached:
	case rd.end.Reason == api.EndShutdown && w.is(terminated):
	case rd.end.Reason == api.EndGuestExit && w.is(guestEnds):
	default:
		w.fail("a stream ended with the reason %s", rd.end.Reason)
		w.giveUp()
	}
}

// streamCut disconnects in the middle of a stream. Its probes must be detached
// with it, which the checks after the phase verify.
func (w *worker) streamCut(r *rand.Rand) {
	n, d := uint64(r.IntN(40)), time.Duration(r.IntN(150))*time.Millisecond
	rd := w.session(r)
	if rd == nil {
		return
	}
	w.wait(rd, n, d)
	w.cut(rd)
}

// streamNamed follows one probe that is there already, through enabling and
// disabling, and closes the sum.
func (w *worker) streamNamed(r *rand.Rand) {
	n, d := uint64(r.IntN(40)), time.Duration(r.IntN(150))*time.Millisecond
	s, inner := w.spec(r, "soak")
	s.Disabled = true
	codes := refusals
	if inner {
		codes = append(append([]api.Code(nil), codes...), "not_boundary")
	}
	var ps []api.Probe
	err := w.try(func(ctx context.Context) (err error) {
		ps, err = w.c.Attach(ctx, s)
		return err
	})
	if !w.ok(err, codes...) {
		return
	}
	w.noteAttached(ps)
	name := ps[0].Name
	rd, err := w.open(api.StreamEvents{Names: []string{name}})
	if !w.ok(err) {
		return
	}
	go rd.read(w.cpus)
	set := func(on bool) bool {
		return w.ok(w.try(func(ctx context.Context) error {
			_, err := w.c.SetEnabled(ctx, name, on)
			return err
		}))
	}
	if set(true) {
		w.wait(rd, n, d)
		set(false)
	}
	if w.over {
		w.finished(rd, w.fail)
		return
	}
	w.detachAndSum(rd)
}

// streamAll reads everybody's events for a moment and goes away.
func (w *worker) streamAll(r *rand.Rand) {
	n, d := uint64(r.IntN(200)), time.Duration(r.IntN(150))*time.Millisecond
	rd, err := w.open(api.StreamEvents{})
	if !w.ok(err) {
		return
	}
	go rd.read(w.cpus)
	w.wait(rd, n, d)
	w.cut(rd)
}

// console follows the console for a moment and goes away.
func (w *worker) console(r *rand.Rand) {
	hold := time.Duration(r.IntN(40)) * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := w.c.Console(ctx, true)
	if !w.ok(err) {
		return
	}
	defer s.Close()
	w.rest(hold)
	w.phase.count(func(t *Tally) { t.Cut++ })
}

// hangUp breaks off a request: somewhere in its header, in its body, or before
// its answer.
func (w *worker) hangUp(r *rand.Rand) {
	s, _ := w.spec(r, "soaks")
	body, err := json.Marshal(api.StreamEvents{Probes: []api.ProbeSpec{s}})
	if err != nil {
		w.fail("%v", err)
		return
	}
	var req []byte
	req = append(req, "POST /v1/events HTTP/1.1\r\nHost: guestprobed\r\nContent-Type: application/json\r\nContent-Length: "...)
	req = append(req, itoa(len(body))+"\r\n\r\n"...)
	req = append(req, body...)
	n := r.IntN(len(req) + 1)
	var dialer net.Dialer
	conn, err := dialer.Dial("unix", w.daemon.socket)
	if err != nil {
		// A daemon that is being ended accepts no more connections.
		if w.is(terminated) || w.is(killed) {
			w.over = true
			return
		}
		w.fail("%v", err)
		return
	}
	_, _ = conn.Write(req[:n]) // a daemon that ends may be quicker
	conn.Close()
}
