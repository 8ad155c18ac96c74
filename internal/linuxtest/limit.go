package linuxtest

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/guestprobe/guestprobe/probe"
)

// limiter disables probes that have been hit often enough, while the guest goes on: a few
// functions that are called all the time would take a test's whole time.
type limiter struct {
	hits uint64 // that are enough
	busy chan limited
	over chan struct{}
	done sync.WaitGroup
}

// limited is a probe with the number of its hits.
type limited struct {
	probe *probe.Kprobe
	n     *atomic.Uint64
}

// newLimiter begins to disable the engine's probes. At most n are waiting for that.
func newLimiter(t testing.TB, e *probe.Engine, n int, hits uint64) *limiter {
	l := &limiter{hits: hits, busy: make(chan limited, n), over: make(chan struct{})}
	l.done.Go(func() {
		for {
			select {
			case p := <-l.busy:
				if err := e.Disable(p.probe); err != nil {
					t.Errorf("disable: %v", err)
				}
				p.n.Store(0) // somebody may enable it again
			case <-l.over:
				return
			}
		}
	})
	return l
}

// counter returns what p's handlers call at each hit.
func (l *limiter) counter(p *probe.Kprobe) func() {
	n := new(atomic.Uint64)
	return func() {
		if n.Add(1) == l.hits {
			l.busy <- limited{p, n}
		}
	}
}

// end disables no more probes.
func (l *limiter) end() {
	close(l.over)
	l.done.Wait()
}
