package daemon

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/program"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// sampledGuest is a Guest whose vCPUs can be looked at while they run: see machine.Machine.
type sampledGuest interface {
	Sample(f machine.Sampled) (missed int)
	OnExit(f func(cpu int, reason string, s probe.State))
}

// exitWatch tells several scripts of the exits of vCPUs.
type exitWatch struct {
	mu   sync.Mutex
	subs map[*sampling]bool
}

// set adds or takes away one who is told.
func (x *exitWatch) set(g sampledGuest, s *sampling, on bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.subs == nil {
		x.subs = map[*sampling]bool{}
	}
	if x.subs[s] = true; !on {
		delete(x.subs, s)
	}
	if len(x.subs) == 0 {
		g.OnExit(nil)
		return
	}
	var all []*sampling
	for s := range x.subs {
		all = append(all, s)
	}
	g.OnExit(func(cpu int, reason string, state probe.State) {
		for _, s := range all {
			for _, p := range s.exits[reason] {
				s.run(p, cpu, state)
			}
		}
	})
}

// sampling runs programs of a script on what vCPUs do, on the threads of these.
type sampling struct {
	s        *server
	g        sampledGuest
	programs []*program.Program
	exits    map[string][]*program.Program // by reason
	stop     chan struct{}
	stopped  atomic.Bool
	clocks   sync.WaitGroup
	missed   atomic.Uint64
}

// newSampling returns what runs the programs of a script that are for samples and exits; nil
// where there are none.
func (rs *runningScript) newSampling() (*sampling, error) {
	if len(rs.script.Samples)+len(rs.script.Exits) == 0 {
		return nil, nil
	}
	g, ok := rs.s.guest.(sampledGuest)
	if !ok {
		return nil, &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "what the vCPUs of this guest do cannot be looked at"}
	}
	return &sampling{s: rs.s, g: g, exits: map[string][]*program.Program{}, stop: make(chan struct{})}, nil
}

// begin has the programs run.
func (m *sampling) begin(rs *runningScript) {
	if m == nil {
		return
	}
	load := func(name string) *program.Program {
		p := rs.obj.Sample(name)
		m.programs = append(m.programs, p)
		return p
	}
	for _, x := range rs.script.Exits {
		m.exits[x.Reason] = append(m.exits[x.Reason], load(x.Program))
	}
	if len(m.exits) > 0 {
		m.s.exits.set(m.g, m, true)
	}
	for _, x := range rs.script.Samples {
		p := load(x.Program)
		m.clocks.Go(func() { m.clock(x.Period, p) })
	}
}

// clock has a program run on each vCPU, every period.
func (m *sampling) clock(period time.Duration, p *program.Program) {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			m.missed.Add(uint64(m.g.Sample(func(cpu int, state probe.State) { m.run(p, cpu, state) })))
		case <-m.stop:
			return
		}
	}
}

// run runs a program on the thread of a vCPU.
func (m *sampling) run(p *program.Program, cpu int, state probe.State) {
	if !m.stopped.Load() && !m.s.probes.engine.Sample(cpu, state, p.Sampled) {
		m.missed.Add(1)
	}
}

// end has no program run any more. It may be repeated.
func (m *sampling) end() {
	if m == nil || m.stopped.Swap(true) {
		return
	}
	if len(m.exits) > 0 {
		m.s.exits.set(m.g, m, false)
	}
	close(m.stop)
	m.clocks.Wait()
	// A vCPU that is in the middle of a run comes to rest behind it.
	if err := m.s.guest.Stop(func(probe.World) error { return nil }); err != nil {
		m.s.log.Debug("stop behind samples", "err", err)
	}
}

// lost says how often programs did not run.
func (m *sampling) lost() (texts []string) {
	if m == nil {
		return nil
	}
	if n := m.missed.Load(); n > 0 {
		texts = append(texts, fmt.Sprintf("missed %d samples, in the middle of hits", n))
	}
	return texts
}
