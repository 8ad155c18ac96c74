package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Watching is how much slower a busy guest with probes is while 'guestprobe top' watches them, by the rounds of work
// that it does.
type Watching struct {
	Unavailable string       `json:"unavailable,omitempty"`
	VCPUs       int          `json:"vcpus"`
	Probes      []string     `json:"probes"`
	Plain       *Spread      `json:"plain,omitempty"` // rounds per second of processor time of a guest that is not watched
	Every       []WatchingAt `json:"every"`
}

// WatchingAt is one interval of watching.
type WatchingAt struct {
	IntervalMS int     `json:"intervalMs"`
	Slower     *Spread `json:"slower"` // percent, each against the window before it without a watcher
	Moments    int     `json:"moments"`
	Timed      uint64  `json:"timed"` // calls of the return probe
}

// Of a measurement of watching.
var (
	watchedProbes  = []string{"p:watched/count vfs_read fd=%di:s32", "r:watched/took do_fork", "p:watched/user user_hot"}
	watchIntervals = []int{1000, 100} // the usual one, and one with ten times the cost
	watchingWindow = 1200 * time.Millisecond
	shortWatching  = 100 * time.Millisecond // of a run that only checks that everything works
)

// measureWatching measures the cost of guestprobe top for the guest, through the
// daemon's socket. Windows with and without a watcher alternate; each is at least span long.
func measureWatching(ctx context.Context, runs int, span time.Duration) (out Watching, err error) {
	out.VCPUs, out.Probes = 2, watchedProbes
	c, end, err := startGuest(ctx, out.VCPUs, "busy quiet")
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, end()) }()
	var specs []api.ProbeSpec
	for _, def := range watchedProbes {
		specs = append(specs, api.ProbeSpec{Def: def})
	}
	if _, err := c.Attach(ctx, specs...); err != nil {
		return out, err
	}
	if _, err := rounds(ctx, c); err != nil { // the first reads debug information
		return out, err
	}
	var plain []float64
	slower := make([][]float64, len(watchIntervals))
	out.Every = make([]WatchingAt, len(watchIntervals))
	for range runs {
		for i, every := range watchIntervals {
			before, err := window(ctx, c, rounds, span, nil)
			if err != nil {
				return out, err
			}
			plain = append(plain, before.all)
			w := &out.Every[i]
			w.IntervalMS = every
			with, err := w.window(ctx, c, span)
			if err != nil {
				return out, err
			}
			slower[i] = append(slower[i], 100*(1-with.all/before.all))
		}
	}
	sp := spread(plain)
	out.Plain = &sp
	for i := range slower {
		sp := spread(slower[i])
		out.Every[i].Slower = &sp
	}
	return out, nil
}

// window returns the rate of a window with a watcher that reads every record, at least one with a timed call.
func (w *WatchingAt) window(ctx context.Context, c *remote.Client, span time.Duration) (with usage, err error) {
	s, err := c.Counts(ctx, api.StreamCounts{IntervalMS: w.IntervalMS, Durations: true})
	if err != nil {
		return with, err
	}
	read := make(chan error, 1)
	started := make(chan uint64, 1)
	timed := w.Timed
	var seen atomic.Bool // a moment, and one with a call that was timed
	go func() {
		for {
			r, err := s.Next()
			if err == nil && r.Type == api.RecordEnd {
				read <- nil
				return
			}
			if err == nil {
				err = w.take(r, started)
				seen.Store(w.Timed > timed)
			}
			if err != nil {
				read <- err
				return
			}
		}
	}()
	select {
	case id := <-started:
		with, err = window(ctx, c, rounds, span, seen.Load)
		err = errors.Join(err, c.EndStream(ctx, id), <-read)
	case err = <-read:
	}
	return with, errors.Join(err, s.Close())
}

// take adds the counts of a record.
func (w *WatchingAt) take(r api.Record, started chan<- uint64) error {
	switch r.Type {
	case api.RecordStart:
		var start api.Start
		if err := json.Unmarshal(r.Data, &start); err != nil {
			return err
		}
		started <- start.Stream
	case api.RecordCounts:
		var n api.Counted
		if err := json.Unmarshal(r.Data, &n); err != nil {
			return err
		}
		w.Moments++
		for _, p := range n.Probes {
			if p.Durations != nil {
				w.Timed += p.Durations.Count
			}
		}
	}
	return nil
}

// String describes the measurements.
func (w *Watching) String() string {
	if w.Plain == nil {
		return fmt.Sprintf("What top costs was not measured: %s.", w.Unavailable)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Top on a busy guest on %d vCPUs with %d probes, by the rounds of work that it does in a second of processor time:", w.VCPUs, len(w.Probes))
	for i, x := range w.Every {
		if i > 0 {
			b.WriteByte(';')
		}
		fmt.Fprintf(&b, " every %d ms %.2f %% slower (%.2f to %.2f), %d calls timed", x.IntervalMS, x.Slower.Median, x.Slower.Min, x.Slower.Max, x.Timed)
	}
	return b.String() + "."
}
