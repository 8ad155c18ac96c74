package daemon

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/metrics"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/event"
)

// newMetrics returns what answers scrapes.
func (s *server) newMetrics() http.Handler {
	src := metrics.Source{
		Version: api.Build().Version,
		Guest:   s.wireGuest,
		Probes:  func() iter.Seq[api.Probe] { return s.probes.described(s.probes.snapshot()) },
		Events:  s.eventCounts,
		Streams: s.streams.count,
		Scripts: s.scriptMetrics,
	}
	for _, p := range []machine.Phase{machine.PhaseCreated, machine.PhaseRunning, machine.PhasePaused, machine.PhaseExited, machine.PhaseCrashed, machine.PhaseClosed} {
		src.States = append(src.States, string(p))
	}
	if s.opt.metricsDurations {
		src.Durations = func() []metrics.Duration { return s.calls.of(s.probes.snapshot()) }
	}
	return metrics.Handler(src)
}

// scriptTime is how long a scrape waits for a script to print its maps.
const scriptTime = 2 * time.Second

// scriptMetrics are the scripts that were to be metrics.
func (s *server) scriptMetrics() (out []metrics.Script) {
	ctx, cancel := context.WithTimeout(context.Background(), scriptTime)
	defer cancel()
	for _, k := range s.scripts.all() {
		if !k.req.Metrics {
			continue
		}
		m := metrics.Script{Name: k.req.Detach, Lost: k.dropped.Load()}
		if maps := k.maps(ctx, api.ScriptJSON); maps != nil {
			m.Maps, m.Running = *maps, true
		}
		out = append(out, m)
	}
	return out
}

func (s *server) getMetrics(w http.ResponseWriter, r *http.Request) error {
	s.metrics.ServeHTTP(w, r)
	return nil
}

// onLoopback reports whether an address to listen on is one that only this machine reaches.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// serveMetrics serves scrapes on loopback, if they were asked for, and gathers durations, until end is
// called.
func (s *server) serveMetrics() (end func(), err error) {
	gathered := s.gatherDurations()
	if s.opt.metricsListen == "" {
		return gathered, nil
	}
	l, err := net.Listen("tcp", s.opt.metricsListen)
	if err == nil && !onLoopback(l.Addr().String()) { // a name that somebody has changed
		err = errors.Join(fmt.Errorf("%v is not on loopback", l.Addr()), l.Close())
	}
	if err != nil {
		gathered()
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		// A page of a browser on this machine, whose own name leads here, is nobody who asks.
		if !onLoopback(r.Host) && !onLoopback(r.Host+":80") {
			http.Error(w, "this is served for loopback addresses only", http.StatusForbidden)
			return
		}
		s.metrics.ServeHTTP(w, r)
	})
	hs := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, WriteTimeout: s.opt.stallTime, IdleTimeout: idleTime, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := hs.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("metrics are served no more", "err", err)
		}
	}()
	s.log.Info("metrics", "address", l.Addr())
	return func() { hs.Close(); <-served; gathered() }, nil
}

// eventCounts are the events of all probes.
func (s *server) eventCounts() api.EventCounts {
	hub := s.probes.hub.Counts()
	total := hub.Total()
	return api.EventCounts{Emitted: total.Stored + total.Lost, Stored: total.Stored, Lost: total.Lost, Reordered: hub.Reordered}
}

// durations are how long the calls of return probes' functions took.
type durations struct {
	mu     sync.Mutex
	byName map[string]*metrics.Duration
}

// durationBounds are those of the histograms' buckets, in seconds: 250 ns to 16 s.
var durationBounds = func() (b []float64) {
	for at := 250e-9; at < 20; at *= 4 {
		b = append(b, at)
	}
	return b
}()

// of returns the histograms of probes, and forgets those of all others: they are gone.
func (d *durations) of(as []*attached) (out []metrics.Duration) {
	there := map[string]bool{}
	for _, a := range as {
		there[a.def.Name()] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, x := range d.byName {
		if !there[name] {
			delete(d.byName, name)
			continue
		}
		c := *x
		c.Buckets = maps.Clone(x.Buckets)
		out = append(out, c)
	}
	return out
}

// add counts a call.
func (d *durations) add(name string, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.byName[name]
	if x == nil {
		if d.byName == nil {
			d.byName = map[string]*metrics.Duration{}
		}
		x = &metrics.Duration{Probe: name, Buckets: map[float64]uint64{}}
		for _, b := range durationBounds {
			x.Buckets[b] = 0
		}
		d.byName[name] = x
	}
	x.Count++
	x.Seconds += took.Seconds()
	for _, b := range durationBounds {
		if took.Seconds() <= b {
			x.Buckets[b]++
		}
	}
}

// gatherDurations reads the events of return probes, if that was asked for, until end is called.
func (s *server) gatherDurations() (end func()) {
	if !s.opt.metricsDurations {
		return func() {}
	}
	s.probes.listen(1)
	sub := s.probes.hub.Subscribe(func(ev event.Event) bool {
		a := ev.Source.Owner.(*attached)
		return a.prog == nil && a.def.Kind == event.KindReturn
	}, event.Queue{})
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for {
			ev, err := sub.Next(ctx)
			if err != nil {
				return
			}
			// What a hostile guest has made of a record is nobody's duration.
			if rec, err := ev.Decode(); err == nil && rec.Moment == event.AtReturn && rec.Duration >= 0 {
				s.calls.add(ev.Source.Owner.(*attached).def.Name(), time.Duration(rec.Duration))
			}
		}
	})
	return func() { cancel(); done.Wait(); sub.Close(); s.probes.listen(-1) }
}
