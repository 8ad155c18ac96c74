package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// reader reads an event stream and keeps an account of it.
type reader struct {
	stream *remote.Stream
	cancel context.CancelFunc // cuts the connection
	start  api.Start
	seen   chan struct{} // has a value after a hit
	done   chan struct{} // closed after the last record

	mu   sync.Mutex
	hits uint64            // records of hits
	pre  map[uint64]uint64 // by probe: records of stage pre or return
	lost uint64            // in records of type lost
	end  *api.End
	err  error  // how the stream ended; io.EOF after an end record
	odd  string // the first record that cannot be
}

// open opens an event stream and reads its first record.
func (w *worker) open(req api.StreamEvents) (*reader, error) {
	ctx, cancel := context.WithCancel(context.Background())
	// The context belongs to the stream, too: the time limit applies only to its
	// beginning.
	limit := time.AfterFunc(w.opt.Patience, cancel)
	s, err := w.c.Events(ctx, req)
	if err != nil {
		if !limit.Stop() {
			err = w.try(func(context.Context) error { return fmt.Errorf("open a stream: %w", errNoAnswer) })
		}
		cancel()
		return nil, err
	}
	rd := &reader{stream: s, cancel: cancel, seen: make(chan struct{}, 1), done: make(chan struct{}), pre: map[uint64]uint64{}}
	first, err := s.Next()
	if err == nil && first.Type == api.RecordStart {
		err = json.Unmarshal(first.Data, &rd.start)
	} else if err == nil {
		err = fmt.Errorf("the first record is of type %s", first.Type)
	}
	if !limit.Stop() {
		err = w.try(func(context.Context) error { return fmt.Errorf("first record of a stream: %w", errNoAnswer) })
	}
	if err != nil {
		cancel()
		s.Close()
		return nil, err
	}
	return rd, nil
}

// read reads to the end of the stream.
func (rd *reader) read(cpus int) {
	defer close(rd.done)
	defer rd.stream.Close()
	probes := map[uint64]api.Probe{}
	for _, p := range rd.start.Probes {
		probes[p.ID] = p
	}
	for {
		r, err := rd.stream.Next()
		if err == nil {
			err = rd.record(r, probes, cpus)
		}
		if err != nil {
			rd.mu.Lock()
			rd.err = err
			rd.mu.Unlock()
			return
		}
	}
}

func (rd *reader) record(r api.Record, probes map[uint64]api.Probe, cpus int) error {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	switch r.Type {
	case api.RecordHit:
		var h api.Hit
		if err := json.Unmarshal(r.Data, &h); err != nil {
			return err
		}
		rd.hits++
		if h.Stage != "post" {
			rd.pre[h.ID]++
		}
		// A stream of all probes has later ones too.
		p, known := probes[h.ID]
		if h.Stage == "return" {
			p.Addr -= api.Hex(p.Offset) // a return belongs to the function
		}
		if rd.odd == "" && (h.CPU < 0 || h.CPU >= cpus || known && (h.Addr != p.Addr || h.Probe != p.Name || (h.CPL == 3) != p.User)) {
			rd.odd = fmt.Sprintf("%s, but the probe is %+v", r.Data, p)
		}
		select {
		case rd.seen <- struct{}{}:
		default:
		}
	case api.RecordLost:
		var l api.Lost
		if err := json.Unmarshal(r.Data, &l); err != nil {
			return err
		}
		if rd.lost += l.Lost; rd.lost != l.Total && rd.odd == "" {
			rd.odd = fmt.Sprintf("%s, but %d were reported", r.Data, rd.lost)
		}
	case api.RecordEnd:
		rd.end = &api.End{}
		return json.Unmarshal(r.Data, rd.end)
	}
	return nil
}

// wait waits for n hits, at most for d, and not past the phase's end.
func (a *arena) wait(rd *reader, n uint64, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		rd.mu.Lock()
		enough := rd.hits >= n
		rd.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-rd.seen:
		case <-rd.done:
			return
		case <-t.C:
			return
		case <-a.stop:
			return
		}
	}
}

// cut ends the stream as a client that goes away does.
func (a *arena) cut(rd *reader) {
	rd.cancel()
	<-rd.done
	a.phase.count(func(t *Tally) { t.Cut++ })
	a.tally(rd)
}

func (a *arena) tally(rd *reader) {
	a.phase.count(func(t *Tally) {
		t.Events += rd.hits
		t.Lost += rd.lost
		if rd.lost > 0 {
			t.Overfull++
		}
	})
}

// finished waits for the end record and compares the stream's own account with
// the records that were read. It returns false if there was no end record, which
// is only correct after SIGKILL.
func (a *arena) finished(rd *reader, report func(string, ...any)) bool {
	limit := time.NewTimer(a.opt.Patience)
	defer limit.Stop()
	select {
	case <-rd.done:
	case <-limit.C:
		err := a.try(func(context.Context) error { return errNoAnswer })
		report("the stream does not end: %v", err)
		rd.cancel()
		<-rd.done
		return false
	}
	defer rd.cancel()
	a.tally(rd)
	switch {
	case rd.odd != "":
		report("odd record: %s", rd.odd)
	case rd.end == nil:
		if !a.is(killed) || !errors.Is(rd.err, remote.ErrCutOff) {
			report("a stream ended without an end record: %v", rd.err)
		}
		return false
	case !errors.Is(rd.err, io.EOF):
		report("after its end record a stream has %v", rd.err)
	case rd.end.Delivered != rd.hits || rd.end.Lost != rd.lost:
		report("the stream says %d delivered and %d lost; %d came and %d were reported as lost", rd.end.Delivered, rd.end.Lost, rd.hits, rd.lost)
	}
	a.phase.count(func(t *Tally) { t.Ended++ })
	return true
}

// sums checks a stream that has ended because its probes were detached. It saw
// all of them from their first hit to their last. So the hits that their
// handlers handled must equal the events that the stream delivered and lost.
func (a *arena) sums(rd *reader, ps []api.Probe, report func(string, ...any)) {
	var emitted uint64
	for _, p := range ps {
		emitted += p.Stats.Events
		// The return of a call that began before the stream makes no event. Here all calls
		// began later.
		made := p.Stats.Handled
		if p.Kind == "r" {
			made = p.Stats.Returns
		}
		if rd.lost == 0 && rd.pre[p.ID] != made {
			report("%s (%s): %d hits were handled, %d came, none was lost", p.Name, p.Def, made, rd.pre[p.ID])
		}
	}
	if emitted != rd.end.Delivered+rd.end.Lost {
		report("%d events were made, %d delivered and %d lost", emitted, rd.end.Delivered, rd.end.Lost)
	}
	a.phase.count(func(t *Tally) { t.Summed++ })
}
