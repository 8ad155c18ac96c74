package http

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// sampledGuest is a Guest whose vCPUs can be looked at while they run: see machine.Machine.
type sampledGuest interface {
	Sample(f machine.Sampled) (asked, missed int)
	OnExit(f func(cpu int, reason string, s probe.State))
}

// sampler has functions called on what vCPUs do, on the threads of these.
type sampler struct {
	s       *server
	g       sampledGuest
	stop    chan struct{}
	stopped atomic.Bool
	clocks  sync.WaitGroup
	missed  atomic.Uint64 // in the middle of hits
	late    atomic.Uint64 // that the host did not come for in time
}

func (s *server) newSampler() (*sampler, error) {
	g, ok := s.guest.(sampledGuest)
	if !ok {
		return nil, &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "what the vCPUs of this guest do cannot be looked at"}
	}
	return &sampler{s: s, g: g, stop: make(chan struct{})}, nil
}

// every has functions called on each vCPU that runs, one after the other, every period, until end.
func (m *sampler) every(period time.Duration, fs ...func(*probe.Context)) {
	m.clocks.Go(func() {
		t := time.NewTicker(period)
		defer t.Stop()
		last := time.Now()
		for {
			select {
			case now := <-t.C:
				asked, missed := m.g.Sample(func(cpu int, state probe.State) {
					for _, f := range fs {
						m.run(cpu, state, f)
					}
				})
				m.missed.Add(uint64(missed * len(fs)))
				// A ticker leaves out what its reader is too slow for.
				m.late.Add(uint64(max(0, int64((now.Sub(last)+period/2)/period-1))) * uint64(asked*len(fs)))
				last = now
			case <-m.stop:
				return
			}
		}
	})
}

// run calls f on the thread of a vCPU.
func (m *sampler) run(cpu int, state probe.State, f func(*probe.Context)) {
	if !m.stopped.Load() && !m.s.guest.Engine().Sample(cpu, state, f) {
		m.missed.Add(1)
	}
}

// end has nothing called any more, and no call is under way behind it. It reports false when it
// has been called before.
func (m *sampler) end() bool {
	if m.stopped.Swap(true) {
		return false
	}
	close(m.stop)
	m.clocks.Wait()
	// A vCPU that is in the middle of a call comes to rest behind it.
	if err := m.s.guest.Stop(func(probe.World) error { return nil }); err != nil {
		m.s.log.Debug("stop behind samples", "err", err)
	}
	return true
}
