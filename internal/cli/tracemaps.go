package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// minMapEvery is the minimum interval between samples of a map, and maxMapKeys is how many of its keys become
// counters.
const (
	minMapEvery = 10 * time.Millisecond
	maxMapKeys  = 64
)

// mapSampler samples maps during a trace.
type mapSampler struct {
	asked time.Time // when the stream was requested
	began chan int64
	stop  func() // stops the sampler and waits for it

	mu   sync.Mutex
	seen []api.MapSample
}

// sampleMaps samples maps from the beginning of a stream that the caller requests next, until it is stopped. It returns an
// error if a map does not exist.
func sampleMaps(ctx context.Context, c *remote.Client, names []string, every time.Duration) (*mapSampler, error) {
	for _, name := range names {
		if _, err := c.Map(ctx, name); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	m := &mapSampler{asked: time.Now(), began: make(chan int64, 1)}
	var work sync.WaitGroup
	m.stop = func() { cancel(); work.Wait() }
	work.Go(func() {
		var began int64
		select {
		case began = <-m.began:
		case <-ctx.Done():
			return
		}
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			for _, name := range names {
				now := began + time.Since(m.asked).Nanoseconds()
				d, err := c.Map(ctx, name)
				if err != nil { // the map was removed with its program
					continue
				}
				m.mu.Lock()
				m.seen = append(m.seen, counters(now, d))
				m.mu.Unlock()
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return m, nil
}

// start begins sampling. ns is the time of the stream's start in the stream's clock.
func (m *mapSampler) start(ns int64) { m.began <- ns }

// take returns the samples since the last call.
func (m *mapSampler) take() []api.MapSample {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := m.seen
	m.seen = nil
	return seen
}

// counters returns the numbers in a map.
func counters(now int64, d api.MapDump) api.MapSample {
	out := api.MapSample{TimeNS: now, Map: d.Name, Values: []api.MapCount{}}
	for _, b := range d.Buckets {
		out.Values = append(out.Values, api.MapCount{Key: fmt.Sprintf("%d-%d", uint64(b.Low), uint64(b.High)), Value: int64(b.Count)})
	}
	for _, e := range d.Values {
		sum, numbers := uint64(0), len(e.Values) > 0
		for i, v := range e.Values {
			n, ok := number(v, typedValue(e, i))
			sum, numbers = sum+n, numbers && ok
		}
		switch {
		case !numbers:
		case len(out.Values) == maxMapKeys:
			out.Left++
		default:
			out.Values = append(out.Values, api.MapCount{Key: cell(e.Key, e.KeyData), Value: int64(sum)})
		}
	}
	return out
}
