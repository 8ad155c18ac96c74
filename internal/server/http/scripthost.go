package http

import (
	"context"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/metrics"
	"github.com/guestprobe/guestprobe/probe/script"
)

// scriptHost checks, runs, lists and stops scripts, with clients and without.
// Requests use it from any goroutine; each running script has a goroutine of its
// own.
type scriptHost struct {
	*probeHost
	opt     *options
	streams *streams
	scripts scripts
	exits   exitWatch
}

// scripts are the scripts without a client.
type scripts struct {
	mu      sync.Mutex
	byName  map[string]*keptScript      // nil: the name is reserved for one that is being compiled
	open    map[*runningScript]struct{} // the scripts with a client
	closing bool                        // the daemon stops
	running sync.WaitGroup
}

// scriptTime is how long a scrape waits for a script to print its maps.
const scriptTime = 2 * time.Second

// scriptMetrics returns the scripts whose maps are metrics.
func (sh *scriptHost) scriptMetrics() (out []metrics.Script) {
	ctx, cancel := context.WithTimeout(context.Background(), scriptTime)
	defer cancel()
	for _, k := range sh.scripts.list() {
		if !k.req.Metrics {
			continue
		}
		m := metrics.Script{Name: k.req.Detach, Lost: k.dropped.Load()}
		m.Running = k.lookAt(ctx, func(p *script.Printer) { m.Maps = p.Values() })
		out = append(out, m)
	}
	return out
}
