package linuxtest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/machine"
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

// A probe that has been hit often enough is disabled, each time that it is enabled.
func TestLimiter(t *testing.T) {
	kvmtest.Require(t)
	const enough = 100
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(machine.Config{Image: img, Cmdline: "busy quiet", Tick: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	e := m.Engine()
	l := newLimiter(t, e, 1, enough)
	defer l.end()
	var n atomic.Uint64
	p := &probe.Kprobe{Symbol: "vfs_read"}
	hit := l.counter(p)
	p.Pre = func(*probe.Context) int { n.Add(1); hit(); return 0 }
	if err := e.Register(p); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	for turn := range uint64(3) {
		ctx, look := patience.Context(t), time.NewTicker(time.Millisecond)
		for info, _ := e.Info(p); !info.Disabled; info, _ = e.Info(p) {
			select {
			case <-look.C:
			case <-ctx.Done():
				t.Fatalf("%d hits, and it is not disabled", n.Load())
			}
		}
		look.Stop()
		if n.Load() < (turn+1)*enough {
			t.Errorf("disabled after %d hits, in turn %d", n.Load(), turn)
		}
		if err := e.Enable(p); err != nil {
			t.Fatal(err)
		}
	}
}
