package probe

import (
	"errors"
	"time"

	"github.com/guestprobe/guestprobe/guest"
)

// ArmAll restores the breakpoints that DisarmAll removed, for the probes that are not
// individually disabled. All or none.
func (e *Engine) ArmAll() error { return e.setDisarmed(false) }

// DisarmAll removes every breakpoint. The probes stay registered and keep their own
// enable state; new ones may be registered and are not armed.
func (e *Engine) DisarmAll() error { return e.setDisarmed(true) }

func (g *registry) setDisarmed(disarmed bool) error {
	if err := g.lock(); err != nil {
		return err
	}
	defer g.mu.Unlock()
	if g.disarmed == disarmed {
		return nil
	}
	sites := make([]*site, 0, g.sites.Len())
	for _, st := range g.sites.All() {
		sites = append(sites, st)
	}
	var lost []error
	was := g.silent
	err := g.updateInStops(sites, &lost, func(w World) { g.disarmed, g.silent = disarmed, disarmed && !g.inLoads(w) })
	if err != nil {
		undo := g.updateInStops(sites, &lost, func(World) { g.disarmed, g.silent = !disarmed, was })
		return errors.Join(err, undo)
	}
	for began := time.Now(); disarmed && !g.silent && time.Since(began) < silenceTime; {
		time.Sleep(silenceWait)
		err := g.stop(func(w World) error {
			g.silent = !g.inLoads(w)
			return nil
		})
		if err == nil && g.silent {
			err = g.updateInStops(sites, &lost, func(World) {})
		}
		if err != nil {
			return err
		}
	}
	if len(g.watches.list) != 0 {
		lost = append(lost, g.watches.apply(g.watches.list))
	}
	return errors.Join(lost...)
}

// How long DisarmAll waits for vCPUs to leave Stages that may fault, and how often it
// looks. If one stays there, because its thread does not run, essential probes stay
// armed.
const (
	silenceTime = time.Second
	silenceWait = 200 * time.Microsecond
)

// inLoads reports whether a vCPU is in a Stage that may fault, or in the guest's handler
// of such a fault, or of another exception or NMI that has arrived in one. The world is
// stopped.
func (g *registry) inLoads(w World) bool {
	for i := range g.cpus {
		s := w.CPU(i)
		if r := g.code.ResidentAt(guest.GVA(s.Regs.RIP)); r != nil && r.loads() || g.cpus[i].stageBelow(s) != nil {
			return true
		}
	}
	return false
}
