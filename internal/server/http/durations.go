package http

import (
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/metrics"
	"github.com/guestprobe/guestprobe/probe/event"
)

// durations are how long the calls of a return probe's function took, since it was attached.
type durations struct {
	count, lost uint64
	sum         time.Duration
	buckets     []uint64 // by durationBounds: how many took so long at most
}

// durationBounds are those of the histograms' buckets: 250 ns to 16 s.
var durationBounds = func() (b []time.Duration) {
	for at := 250 * time.Nanosecond; at < 20*time.Second; at *= 4 {
		b = append(b, at)
	}
	return b
}()

// gathering reads the events of return probes as long as the daemon serves.
type gathering struct {
	st     *store
	sub    *event.Subscription
	taking sync.Mutex // held from taking an event until it is counted
	mu     sync.Mutex // guards attached.took
}

// timed reports whether the events of a have durations.
func (a *attached) timed() bool { return a.prog == nil && a.def.Kind == event.KindReturn }

// newGathering has return probes make events; run must follow.
func (st *store) newGathering() *gathering {
	st.listenReturns(1)
	g := &gathering{st: st}
	g.sub = st.hub.Subscribe(func(ev event.Event) bool { return ev.Source.Owner.(*attached).timed() }, event.Queue{Lose: func(ev event.Event) {
		g.count(ev, 0, false)
	}})
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
	return func() { close(stop); done.Wait(); g.sub.Close(); g.st.listenReturns(-1) }
}

// take counts what has come.
func (g *gathering) take() {
	g.taking.Lock()
	defer g.taking.Unlock()
	for {
		ev, ok, _ := g.sub.TryNext()
		if !ok {
			return
		}
		// What a hostile guest has made of a record is nobody's duration.
		rec, err := ev.Decode()
		known := err == nil && rec.Moment == event.AtReturn && rec.Duration >= 0
		if !known {
			rec = &event.Record{}
		}
		g.count(ev, time.Duration(rec.Duration), known)
	}
}

// count counts a return, and how long its call took where that is known.
func (g *gathering) count(ev event.Event, took time.Duration, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := ev.Source.Owner.(*attached)
	if a.took == nil {
		a.took = &durations{buckets: make([]uint64, len(durationBounds))}
	}
	d := a.took
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

// scraped returns the durations of all calls that had returned before it was called, by name.
func (g *gathering) scraped() (out []metrics.Duration) {
	g.st.sync()
	g.take()
	byName := map[string]int{} // where it is in out
	for _, a := range g.st.snapshot() {
		if !a.timed() {
			continue
		}
		i, known := byName[a.def.Name()]
		if !known {
			i = len(out)
			byName[a.def.Name()] = i
			out = append(out, metrics.Duration{Probe: a.def.Name(), Buckets: map[float64]uint64{}})
			for _, b := range durationBounds {
				out[i].Buckets[b.Seconds()] = 0
			}
		}
		x := &out[i]
		a.mu.Lock()
		if !a.gone {
			x.Lost += a.counts().Lost
		}
		a.mu.Unlock()
		g.mu.Lock()
		if d := a.took; d != nil {
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
