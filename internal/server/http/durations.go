package http

import (
	"maps"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/metrics"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/session"
)

// durations are how long the calls of a return probe's function took, since it was attached.
type durations struct {
	count, lost uint64
	sum         time.Duration
	buckets     []uint64 // by durationBounds: how many calls took at most that long
}

// durationBounds are the upper bounds of the histograms' buckets: 250 ns to 16
// s.
var durationBounds = func() (b []time.Duration) {
	for at := 250 * time.Nanosecond; at < 20*time.Second; at *= 4 {
		b = append(b, at)
	}
	return b
}()

// gathering reads the events of return probes as long as the daemon serves.
type gathering struct {
	st     *session.Session
	sub    *session.Subscription
	taking sync.Mutex            // held from taking an event until it is counted
	mu     sync.Mutex            // guards took
	took   map[uint64]*durations // by probe number: a probe that was detached is not held
}

// newGathering has return probes make events; run must follow.
func newGathering(st *session.Session) *gathering {
	g := &gathering{st: st, took: map[uint64]*durations{}}
	g.sub = st.Subscribe(func(ev event.Event) bool { return session.ProbeOf(ev).Timed() }, event.Queue{Lose: func(ev event.Event) {
		g.count(ev, 0, false)
	}}, session.ReturnEvents)
	return g
}

// run reads events until end is called.
func (g *gathering) run() (end func()) {
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-g.sub.Ready():
				g.take()
			case <-stop:
				return
			}
		}
	})
	return func() { close(stop); done.Wait(); g.sub.Close() }
}

// take counts the events that have arrived.
func (g *gathering) take() {
	g.taking.Lock()
	defer g.taking.Unlock()
	for {
		ev, ok, _ := g.sub.TryNext()
		if !ok {
			return
		}
		// A hostile guest can damage records, so a damaged one has no duration.
		rec, err := ev.Decode()
		known := err == nil && rec.Moment == event.AtReturn && rec.Duration >= 0
		if !known {
			rec = &event.Record{}
		}
		g.count(ev, time.Duration(rec.Duration), known)
	}
}

// count counts a return, and the duration of its call if that is known.
func (g *gathering) count(ev event.Event, took time.Duration, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := session.ProbeOf(ev).ID()
	d := g.took[id]
	if d == nil {
		g.forget()
		d = &durations{buckets: make([]uint64, len(durationBounds))}
		g.took[id] = d
	}
	if !known {
		d.lost++
		return
	}
	d.count++
	d.sum += took
	for i, b := range durationBounds {
		if took <= b {
			d.buckets[i]++
		}
	}
}

// forget removes detached probes once they outnumber the attached ones. Callers
// hold mu.
func (g *gathering) forget() {
	probes := g.st.Probes()
	if len(g.took) <= 2*len(probes)+100 {
		return
	}
	there := make(map[uint64]bool, len(probes))
	for _, a := range probes {
		there[a.ID()] = true
	}
	maps.DeleteFunc(g.took, func(id uint64, _ *durations) bool { return !there[id] })
}

// scrape returns the durations of all calls that had returned before it was called, by name.
func (g *gathering) scrape() (out []metrics.Duration) {
	g.st.Sync()
	g.take()
	byName := map[string]int{} // where it is in out
	for _, a := range g.st.Probes() {
		if !a.Timed() {
			continue
		}
		i, known := byName[a.Name()]
		if !known {
			i = len(out)
			byName[a.Name()] = i
			out = append(out, metrics.Duration{Probe: a.Name(), Buckets: map[float64]uint64{}})
			for _, b := range durationBounds {
				out[i].Buckets[b.Seconds()] = 0
			}
		}
		x := &out[i]
		x.Lost += a.LostEvents()
		g.mu.Lock()
		if d := g.took[a.ID()]; d != nil {
			x.Count += d.count
			x.Lost += d.lost
			x.Seconds += d.sum.Seconds()
			for j, b := range durationBounds {
				x.Buckets[b.Seconds()] += d.buckets[j]
			}
		}
		g.mu.Unlock()
	}
	return out
}
