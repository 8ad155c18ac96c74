package http

import (
	"cmp"
	"maps"
	"math/bits"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// Limits of streams of counts.
const (
	// countsAtOnce bounds how many probes are in one record.
	countsAtOnce = 500
	// timedAtMost bounds how many calls of a return probe are timed in an interval.
	timedAtMost = 500
	// Either all timed return probes make events, or none does. They stop after
	// eventsInTurn events, until the turn of timedTurn is over. This bounds the
	// guest's cost of timing fast functions, and sets the share of time in which
	// slow functions are timed beside them.
	eventsInTurn = 2000
	timedTurn    = 100 * time.Millisecond
)

// countStream is one client's view of the counts.
type countStream struct {
	*stream
	host  *eventHost
	only  map[*session.Probe]bool    // nil: all probes, present and future
	sent  map[uint64]*countedProbe   // by number: the counts that the client has
	timed map[uint64]*durationCounts // by number, since the last record; nil: the client does not want durations
	watch *timedEvents               // while events are made; nil otherwise
	again <-chan time.Time           // when to make events again; nil: at the next moment
}

// countedProbe is a probe's last sent state. Moment is the last moment in which
// it existed.
type countedProbe struct {
	was    api.ProbeCounts
	moment int64
}

func (eh *eventHost) streamCounts(w http.ResponseWriter, r *http.Request) (err error) {
	var req api.StreamCounts
	if err := readBody(w, r, &req, true); err != nil {
		return err
	}
	req.IntervalMS = cmp.Or(req.IntervalMS, 1000)
	if req.IntervalMS < api.MinInterval || req.IntervalMS > api.MaxInterval {
		return badValue("intervalMs %d: not %d to %d", req.IntervalMS, api.MinInterval, api.MaxInterval)
	}
	c := &countStream{host: eh, sent: map[uint64]*countedProbe{}}
	if len(req.Names) > 0 {
		as, err := eh.probes.Choose(req.Names...)
		if err != nil {
			return err
		}
		c.only = make(map[*session.Probe]bool, len(as))
		for _, a := range as {
			c.only[a] = true
		}
	}
	if c.stream, err = eh.streams.openStream(w, r); err != nil {
		return err
	}
	defer eh.streams.closeStream(c.stream)
	if req.Durations {
		c.timed = map[uint64]*durationCounts{}
		defer func() { c.untime() }()
	}
	began := eh.probes.Now()
	c.put(api.RecordStart, api.Start{Stream: c.id, Epoch: eh.probes.Epoch(), TimeNS: began, BootNS: eh.control.boot.Load(), Probes: []api.Probe{}})
	if c.run(r, time.Duration(req.IntervalMS)*time.Millisecond) == errSlow {
		eh.log.Warn("a stream is ended: its client does not read", "uid", requestPeer(r).UID, "pid", requestPeer(r).PID)
		c.untime()
		c.endSlow(0, nil)
	}
	return nil // the client is gone
}

// run sends counts until there is a reason to stop. The guest's end is not a
// reason, because it may be booted again. An error means that the client is
// gone.
func (c *countStream) run(r *http.Request, every time.Duration) error {
	clock := time.NewTicker(every)
	defer clock.Stop()
	if err := c.moment(); err != nil {
		return err
	}
	for {
		changed, gone := c.host.guest.Changed(), c.host.probes.Changed()
		if c.host.guest.State().Phase == machine.PhaseClosed {
			return c.finish(api.EndShutdown)
		}
		if len(c.only) > 0 && c.host.allDetached(maps.Keys(c.only)) {
			if err := c.moment(); err != nil { // reports that they are gone
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
			c.take()
		case <-c.again:
			c.time()
		case <-changed:
		case <-gone:
		case <-c.asked:
			c.host.probes.Sync() // the durations until now
			if err := c.moment(); err != nil {
				return err
			}
			return c.finish(api.EndAsked)
		case <-c.host.streams.stop:
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

// moment sends the counts that have changed.
func (c *countStream) moment() error {
	if c.timed != nil {
		c.take()
	}
	now, guest := c.host.probes.Now(), c.host.control.wireGuest()
	rec := api.Counted{TimeNS: now, Guest: &guest, Probes: []api.ProbeCounts{}}
	send := func(more bool) error {
		rec.More = more
		c.put(api.RecordCounts, rec)
		rec = api.Counted{TimeNS: now, Probes: rec.Probes[:0]}
		return c.flush()
	}
	for p := range wireOutlines(c.host.probes.Counts(c.host.selectAttached(c.only))) {
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

// timedEvents are the events of a countStream's return probes, which are made
// together.
type timedEvents struct {
	sub   *session.Subscription
	began time.Time    // beginning of the turn
	seen  atomic.Int64 // events in it, of all probes
	of    int          // how many probes are to be timed
}

// ready yields when there are events to take.
func (t *timedEvents) ready() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.sub.Ready()
}

// time has probes make events, so that the calls of return probes can be timed.
// It does nothing if they make events already, or if there is no return probe.
func (c *countStream) time() {
	of := 0
	for _, a := range c.host.selectAttached(c.only) {
		if a.Timed() {
			of++
		}
	}
	c.again = nil
	if c.watch != nil {
		c.watch.of = of
		return
	}
	if of == 0 {
		return
	}
	c.watch = &timedEvents{began: time.Now(), of: of}
	t, only := c.watch, c.only
	t.sub = c.host.probes.Subscribe(func(ev event.Event) bool {
		a := session.ProbeOf(ev)
		n := t.seen.Add(1)
		// The first event beyond the limit passes, whatever its probe, because it signals
		// the limit.
		return n == eventsInTurn+1 || n <= eventsInTurn && a.Timed() && (only == nil || only[a])
	}, event.Queue{Events: 2*eventsInTurn + 1}, session.ReturnEvents)
}

// take counts the durations that have arrived. When there are enough, it stops
// the events for a while.
func (c *countStream) take() {
	if c.watch == nil {
		return
	}
	for {
		ev, ok, _ := c.watch.sub.TryNext()
		if !ok {
			break
		}
		a := session.ProbeOf(ev)
		if !a.Timed() || c.only != nil && !c.only[a] {
			continue
		}
		d := c.timed[a.ID()]
		if d != nil && d.count >= uint64(c.host.opt.timedAtMost) {
			continue
		}
		// A hostile guest can damage records, so a damaged one has no duration.
		if rec, err := ev.Decode(); err == nil && rec.Moment == event.AtReturn && rec.Duration >= 0 {
			if d == nil {
				d = &durationCounts{buckets: map[int]uint64{}}
				c.timed[a.ID()] = d
			}
			d.add(uint64(rec.Duration))
		}
	}
	full := 0
	for _, d := range c.timed {
		if d.count >= uint64(c.host.opt.timedAtMost) {
			full++
		}
	}
	rest := timedTurn - time.Since(c.watch.began)
	switch {
	case full >= c.watch.of:
		c.untime() // until the next moment
	case c.watch.seen.Load() <= eventsInTurn:
	case rest > 0:
		c.untime()
		c.again = time.After(rest)
	default:
		c.watch.began = time.Now()
		c.watch.seen.Store(0)
	}
}

// untime stops making events for this stream.
func (c *countStream) untime() {
	if c.watch == nil {
		return
	}
	c.watch.sub.Close()
	c.watch, c.again = nil, nil
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

// wire returns nil if nothing was counted.
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
