package http

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"

	"github.com/guestprobe/guestprobe/internal/server/metrics"
	"github.com/guestprobe/guestprobe/internal/server/web"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (x *scrapes) getMetrics(w http.ResponseWriter, r *http.Request) error {
	x.metrics.ServeHTTP(w, r)
	return nil
}

// scrapes answers scrapes of metrics, on the daemon's socket and on one of its own. Any goroutine may use it.
type scrapes struct {
	log     *slog.Logger
	opt     *options
	metrics http.Handler
	calls   *gathering // nil: durations are not requested
}

// newScrapes returns the handler of scrapes of s, which has its session.
func (s *server) newScrapes() *scrapes {
	x := &scrapes{log: s.log, opt: s.opt}
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
		x.calls = newGathering(s.probes)
		src.Durations = x.calls.scrape
	}
	x.metrics = metrics.Handler(src)
	return x
}

// onLoopback reports whether only this machine can reach an address to listen
// on.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// listenMetrics listens for scrapes on loopback. It returns nil if they are not
// configured.
func (x *scrapes) listenMetrics() (net.Listener, error) {
	if x.opt.metricsListen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", x.opt.metricsListen)
	if err == nil && !onLoopback(l.Addr().String()) { // the name resolves differently now
		err = errors.Join(fmt.Errorf("%v is not on loopback", l.Addr()), l.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	return l, nil
}

// serveMetrics serves scrapes on the listener of listenMetrics, and gathers
// durations, until end is called.
func (x *scrapes) serveMetrics(l net.Listener) (end func()) {
	gathered := func() {}
	if x.calls != nil {
		gathered = x.calls.run()
	}
	if l == nil {
		return gathered
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		// A page in a browser on this machine, whose own host name resolves to here, must
		// not read the metrics.
		if !onLoopback(r.Host) && !onLoopback(r.Host+":80") {
			http.Error(w, "this is served for loopback addresses only", http.StatusForbidden)
			return
		}
		x.metrics.ServeHTTP(w, r)
	})
	hs := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, WriteTimeout: x.opt.stallTime, IdleTimeout: idleTime, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(x.log.Handler(), slog.LevelWarn),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := hs.Serve(web.Limit(l, x.opt.maxConns)); !errors.Is(err, http.ErrServerClosed) {
			x.log.Error("metrics are served no more", "err", err)
		}
	}()
	x.log.Info("metrics", "address", l.Addr())
	return func() { hs.Close(); <-served; gathered() }
}
