package http

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/metrics"
	"github.com/guestprobe/guestprobe/internal/server/web"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// newMetrics returns what answers scrapes.
func (s *server) newMetrics() http.Handler {
	src := metrics.Source{
		Version: api.Build().Version,
		Guest:   s.wireGuest,
		Probes:  func() iter.Seq[api.Probe] { return wireOutlines(s.probes.Outlines(s.probes.Probes())) },
		Events:  s.eventCounts,
		Streams: s.streams.count,
		Scripts: s.scriptMetrics,
	}
	for _, p := range []machine.Phase{machine.PhaseCreated, machine.PhaseRunning, machine.PhasePaused, machine.PhaseExited, machine.PhaseCrashed, machine.PhaseClosed} {
		src.States = append(src.States, string(p))
	}
	if s.opt.metricsDurations {
		s.calls = newGathering(s.probes)
		src.Durations = s.calls.scraped
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
		m.Running = k.looked(ctx, func(p *script.Printer) { m.Maps = p.Values() })
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

// listenMetrics listens for scrapes on loopback; nil: they were not asked for.
func (s *server) listenMetrics() (net.Listener, error) {
	if s.opt.metricsListen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", s.opt.metricsListen)
	if err == nil && !onLoopback(l.Addr().String()) { // a name that somebody has changed
		err = errors.Join(fmt.Errorf("%v is not on loopback", l.Addr()), l.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	return l, nil
}

// serveMetrics serves scrapes on the listener of listenMetrics, and gathers durations, until end is called.
func (s *server) serveMetrics(l net.Listener) (end func()) {
	gathered := func() {}
	if s.calls != nil {
		gathered = s.calls.run()
	}
	if l == nil {
		return gathered
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
		if err := hs.Serve(web.Limit(l, s.opt.maxConns)); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("metrics are served no more", "err", err)
		}
	}()
	s.log.Info("metrics", "address", l.Addr())
	return func() { hs.Close(); <-served; gathered() }
}

// eventCounts are the events of all probes.
func (s *server) eventCounts() api.EventCounts {
	hub := s.probes.EventCounts()
	total := hub.Total()
	return api.EventCounts{Emitted: total.Stored + total.Lost, Stored: total.Stored, Lost: total.Lost, Reordered: hub.Reordered}
}
