package daemon

import (
	"cmp"
	"math/bits"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Limits of streams of counts.
const (
	// countsAtOnce bounds how many probes are in one record.
	countsAtOnce = 500
	// timedAtMost bounds for how many events in an interval return probes make events, so that durations can be
	// told. It is what the durations of fast probes cost the guest at most; of slower ones all are counted.
	timedAtMost = 500
)

// countStream is one client's view of the counts.
type countStream struct {
	*stream
	s     *server
	only  map[*attached]bool         // nil: all probes, present and future
	sent  map[uint64]*countedProbe   // by number: as the client knows them
	timed map[uint64]*durationCounts // by number, since the last record; nil: the client does not want them
	watch *timedEvents               // while events are made; nil: not now
}

// countedProbe is a probe as it was sent. Moment is the last one that it was there at.
type countedProbe struct {
	was    api.ProbeCounts
	moment int64
}

func (s *server) streamCounts(w http.ResponseWriter, r *http.Request) (err error) {
	var req api.StreamCounts
	if err := readBody(w, r, &req, true); err != nil {
		return err
	}
	req.IntervalMS = cmp.Or(req.IntervalMS, 1000)
	if req.IntervalMS < api.MinInterval || req.IntervalMS > api.MaxInterval {
		return badValue("intervalMs %d: not %d to %d", req.IntervalMS, api.MinInterval, api.MaxInterval)
	}
	c := &countStream{s: s, sent: map[uint64]*countedProbe{}}
	if len(req.Names) > 0 {
		as, err := s.probes.choose(req.Names)
		if err != nil {
			return err
		}
		c.only = make(map[*attached]bool, len(as))
		for _, a := range as {
			c.only[a] = true
		}
	}
	if c.stream, err = s.openStream(w, r); err != nil {
		return err
	}
	defer s.closeStream(c.stream)
	if req.Durations {
		c.timed = map[uint64]*durationCounts{}
		defer func() { c.untime() }()
	}
	began := s.probes.now()
	c.put(api.RecordStart, api.Start{Stream: c.id, Epoch: s.probes.since, TimeNS: began, BootNS: s.probes.boot.Load(), Probes: []api.Probe{}})
	if c.run(r, time.Duration(req.IntervalMS)*time.Millisecond) == errSlow {
		s.log.Warn("a stream is ended: its client does not read", "uid", requestPeer(r).UID, "pid", requestPeer(r).PID)
		c.untime()
		c.endSlow(0, nil)
	}
	return nil // the client is gone; nobody is left to tell
}

// run sends counts until there is a reason to stop. The guest's end is none: it may be booted anew. An error means
// that there is nobody to send them to.
func (c *countStream) run(r *http.Request, every time.Duration) error {
	clock := time.NewTicker(every)
	defer clock.Stop()
	if err := c.moment(); err != nil {
		return err
	}
	for {
		changed, gone := c.s.guest.Changed(), c.s.probes.changed()
		if c.s.guest.State().Phase == machine.PhaseClosed {
			return c.finish(api.EndShutdown)
		}
		if len(c.only) > 0 && c.s.probes.noneOf(c.only) {
			if err := c.moment(); err != nil { // says that they are gone
				return err
			}
			return c.finish(api.EndDetached)
		}
		select {
		case <-clock.C:
			if err := c.moment(); err != nil {
				return err
			}
		case <-c.watch.ready():
			if c.take() {
				c.untime() // until the next moment
			}
		case <-changed:
		case <-gone:
		case <-c.asked:
			c.s.probes.sync() // the durations until now
			if err := c.moment(); err != nil {
				return err
			}
			return c.finish(api.EndAsked)
		case <-c.s.stop:
			return c.finish(api.EndShutdown)
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

// finish sends the end.
func (c *countStream) finish(reason string) error {
	c.untime()
	c.end(reason, nil, nil)
	return nil
}

// moment sends what has changed.
func (c *countStream) moment() error {
	if c.timed != nil {
		c.take()
	}
	now, guest := c.s.probes.now(), c.s.wireGuest()
	rec := api.Counted{TimeNS: now, Guest: &guest, Probes: []api.ProbeCounts{}}
	send := func(more bool) error {
		rec.More = more
		c.put(api.RecordCounts, rec)
		rec = api.Counted{TimeNS: now, Probes: rec.Probes[:0]}
		return c.flush()
	}
	for p := range c.s.probes.each(c.s.probes.those(c.only), c.s.probes.outline) {
		n := api.ProbeCounts{
			ID: p.ID, Name: p.Name, Kind: p.Kind, Symbol: p.Symbol, Offset: p.Offset, Addr: p.Addr,
			Enabled: p.Enabled, Armed: p.Armed, Optimized: p.Optimized, Runs: p.Runs, Plan: p.Plan,
			Hits: p.Stats.Hits, Handled: p.Stats.Handled, Filtered: p.Stats.Filtered, Missed: p.Stats.Missed, Lost: p.Stats.Lost,
			Returns: p.Stats.Returns, InUse: p.InUse,
		}
		was, known := c.sent[p.ID]
		if !known {
			was = &countedProbe{}
			c.sent[p.ID] = was
		}
		was.moment = now
		d := c.timed[p.ID].wire()
		if known && was.was == n && d == nil {
			continue
		}
		was.was, n.Durations = n, d
		if rec.Probes = append(rec.Probes, n); len(rec.Probes) == countsAtOnce {
			if err := send(true); err != nil {
				return err
			}
		}
	}
	for id, p := range c.sent {
		if p.moment != now {
			delete(c.sent, id)
			rec.Detached = append(rec.Detached, id)
		}
	}
	slices.Sort(rec.Detached)
	if c.timed != nil {
		clear(c.timed)
		c.time()
	}
	return send(false)
}

// timedEvents are the events of return probes of a countStream.
type timedEvents struct {
	sub   *event.Subscription
	seen  atomic.Int64 // events of all probes
	taken int64        // of them: by the stream
}

// ready yields when there is something to take.
func (t *timedEvents) ready() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.sub.Ready()
}

// time has probes make events, so that the calls of return probes can be timed, unless they do already or there
// is no such probe.
func (c *countStream) time() {
	if c.watch != nil {
		c.watch.seen.Store(0)
		c.watch.taken = 0
		return
	}
	if !slices.ContainsFunc(c.s.probes.those(c.only), (*attached).timed) {
		return
	}
	c.s.probes.listenReturns(1)
	c.watch = &timedEvents{}
	t, only, most := c.watch, c.only, c.s.opt.timedAtMost
	t.sub = c.s.probes.hub.Subscribe(func(ev event.Event) bool {
		a := ev.Source.Owner.(*attached)
		// One event more than most ends it for an interval, whosever it is.
		return t.seen.Add(1) > most || a.timed() && (only == nil || only[a])
	}, event.Queue{Events: int(most) + 1})
}

// take counts the durations that there are, and reports whether they are enough.
func (c *countStream) take() (enough bool) {
	if c.watch == nil {
		return false
	}
	for {
		ev, ok, _ := c.watch.sub.TryNext()
		if !ok {
			return c.watch.seen.Load() > c.s.opt.timedAtMost
		}
		if c.watch.taken++; c.watch.taken > c.s.opt.timedAtMost+1 {
			return true // others come before the probes know that they are enough
		}
		a := ev.Source.Owner.(*attached)
		if !a.timed() || c.only != nil && !c.only[a] {
			continue
		}
		// What a hostile guest has made of a record is nobody's duration.
		if rec, err := ev.Decode(); err == nil && rec.Moment == event.AtReturn && rec.Duration >= 0 {
			d := c.timed[a.id]
			if d == nil {
				d = &durationCounts{buckets: map[int]uint64{}}
				c.timed[a.id] = d
			}
			d.add(uint64(rec.Duration))
		}
	}
}

// untime has probes make no more events for this stream.
func (c *countStream) untime() {
	if c.watch == nil {
		return
	}
	c.watch.sub.Close()
	c.watch = nil
	c.s.probes.listenReturns(-1)
}

// durationCounts counts durations by quarters of powers of two.
type durationCounts struct {
	count, sum uint64
	buckets    map[int]uint64
}

func (d *durationCounts) add(ns uint64) {
	d.count++
	d.sum += ns
	d.buckets[durationBucket(ns)]++
}

// wire returns nil where nothing was counted.
func (d *durationCounts) wire() *api.Durations {
	if d == nil {
		return nil
	}
	out := &api.Durations{Count: d.count, SumNS: d.sum}
	for i, n := range d.buckets {
		lo, hi := durationRange(i)
		out.Buckets = append(out.Buckets, api.MapBucket{Low: api.Hex(lo), High: api.Hex(hi), Count: n})
	}
	slices.SortFunc(out.Buckets, func(a, b api.MapBucket) int { return cmp.Compare(a.Low, b.Low) })
	return out
}

// durationBucket is the bucket of a duration in nanoseconds.
func durationBucket(ns uint64) int {
	if ns < 4 {
		return int(ns)
	}
	p := bits.Len64(ns) - 1
	return (p-1)*4 + int(ns>>(p-2)&3)
}

// durationRange are the first and the last duration of a bucket.
func durationRange(i int) (lo, hi uint64) {
	if i < 4 {
		return uint64(i), uint64(i)
	}
	shift := i/4 - 1
	lo = uint64(4+i%4) << shift
	return lo, lo + 1<<shift - 1
}
