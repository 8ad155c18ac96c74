package http

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// sampledGuest is a Guest whose vCPUs can be sampled while they run: see
// machine.Machine.
type sampledGuest interface {
	Sample(f machine.Sampled) (asked, missed int)
	OnExit(f func(cpu int, reason string, s probe.State))
}

// sampler calls functions for samples and exits of vCPUs, on the vCPUs' threads.
type sampler struct {
	guest   Guest
	g       sampledGuest // the same
	log     *slog.Logger
	stop    chan struct{}
	stopped atomic.Bool
	clocks  sync.WaitGroup
	missed  atomic.Uint64 // in the middle of hits
	late    atomic.Uint64 // ticks that the host was too late for
}

// newSampler returns a sampler of a guest, or an error if its vCPUs cannot be
// sampled.
func newSampler(of Guest, log *slog.Logger) (*sampler, error) {
	g, ok := of.(sampledGuest)
	if !ok {
		return nil, &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "what the vCPUs of this guest do cannot be looked at"}
	}
	return &sampler{guest: of, g: g, log: log, stop: make(chan struct{})}, nil
}

// callEvery calls functions on each running vCPU, one after the other, every
// period, until end.
func (m *sampler) callEvery(period time.Duration, fs ...func(*probe.Context)) {
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
				// A ticker drops ticks when its reader is too slow.
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
	if !m.stopped.Load() && !m.guest.Engine().Sample(cpu, state, f) {
		m.missed.Add(1)
	}
}

// end stops all calls, and returns when none is running any more. It reports
// false if it was called before.
func (m *sampler) end() bool {
	if m.stopped.Swap(true) {
		return false
	}
	close(m.stop)
	m.clocks.Wait()
	// A vCPU that is in the middle of a call stops only after it.
	if err := m.guest.Stop(func(probe.World) error { return nil }); err != nil {
		m.log.Debug("stop after samples", "err", err)
	}
	return true
}
