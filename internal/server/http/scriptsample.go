package http

import (
	"fmt"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/program"
)

// exitWatch passes the exits of vCPUs to several scripts.
type exitWatch struct {
	mu   sync.Mutex
	subs map[*sampling]bool
}

// set adds or removes a subscriber.
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
				s.run(cpu, state, p.RunSample)
			}
		}
	})
}

// sampling runs programs of a script for samples and exits of vCPUs.
type sampling struct {
	*sampler
	watch    *exitWatch
	programs []*program.Program
	exits    map[string][]*program.Program // by reason
}

// newSampling returns the runner of a script's programs for samples and exits,
// or nil if the script has none.
func (rs *runningScript) newSampling() (*sampling, error) {
	if len(rs.script.Samples)+len(rs.script.Exits) == 0 {
		return nil, nil
	}
	m, err := newSampler(rs.host.guest, rs.host.log)
	if err != nil {
		return nil, err
	}
	return &sampling{sampler: m, watch: &rs.host.exits, exits: map[string][]*program.Program{}}, nil
}

// begin has the programs run.
func (m *sampling) begin(rs *runningScript) {
	if m == nil {
		return
	}
	load := func(name string) *program.Program {
		p := rs.loaded.Sample(name)
		m.programs = append(m.programs, p)
		return p
	}
	for _, x := range rs.script.Exits {
		m.exits[x.Reason] = append(m.exits[x.Reason], load(x.Program))
	}
	if len(m.exits) > 0 {
		m.watch.set(m.g, m, true)
	}
	// Programs of one period share a clock, so that they run in the order of the
	// source.
	var periods []time.Duration
	of := map[time.Duration][]func(*probe.Context){}
	for _, x := range rs.script.Samples {
		if of[x.Period] == nil {
			periods = append(periods, x.Period)
		}
		of[x.Period] = append(of[x.Period], load(x.Program).RunSample)
	}
	for _, p := range periods {
		m.callEvery(p, of[p]...)
	}
}

// end stops running the programs. It may be repeated.
func (m *sampling) end() {
	if m == nil {
		return
	}
	if len(m.exits) > 0 {
		m.watch.set(m.g, m, false)
	}
	m.sampler.end()
}

// warnLost warns about how often programs did not run.
func (m *sampling) warnLost() (texts []string) {
	if m == nil {
		return nil
	}
	if n := m.missed.Load(); n > 0 {
		texts = append(texts, fmt.Sprintf("missed %s, in the middle of hits", command.Plural(n, "sample")))
	}
	return texts
}
