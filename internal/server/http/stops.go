package http

import (
	"cmp"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// stops has the hits of a that pass its filter stop the vCPU. Callers hold changes.
func (st *store) stops(a *attached, hit func(*probe.Context) bool) error {
	g, err := st.stepper()
	switch {
	case err != nil:
		return err
	case a.spec.Stop != api.StopVCPU && a.spec.Stop != api.StopAll:
		return badValue("stop %q: not %s or %s", a.spec.Stop, api.StopVCPU, api.StopAll)
	case a.spec.Mirror != "":
		return badValue("stop: the vCPU of a jprobe with a mirror goes on in that; attach a probe at the same place that stops")
	}
	all := a.spec.Stop == api.StopAll
	stop := func(c *probe.Context) {
		c.StopBy(a)
		if all {
			g.StopAll(c)
		}
	}
	passed := func(c *probe.Context) {
		if hit(c) {
			stop(c)
		}
	}
	switch p := a.probe.(type) {
	case *probe.Kretprobe:
		p.Return = passed
	case *probe.Jprobe:
		p.Entry = func(c *probe.Context, _ probe.Args) { stop(c) } // the filter has run
	default:
		if a.watch != nil {
			a.watch.Handler = passed
			break
		}
		a.kprobe.Pre = func(c *probe.Context) int { stop(c); return 0 }
	}
	return nil
}

// stopsAfter returns the vCPUs that a probe has stopped, and that are stopped yet, in their order: those behind
// number last, which becomes that of the latest.
func (s *server) stopsAfter(last *uint64, wanted func(by any) bool) (out []api.Stop) {
	g, ok := s.guest.(stepping)
	if !ok {
		return nil
	}
	stops := g.Stopped()
	slices.SortFunc(stops, func(a, b machine.Stop) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, x := range stops {
		if x.Seq > *last {
			*last = x.Seq
			if wanted(x.By) {
				out = append(out, s.wireStop(&x))
			}
		}
	}
	return out
}

// wireStop says which vCPU is stopped, where, by what, and since when.
func (s *server) wireStop(x *machine.Stop) api.Stop {
	out := api.Stop{CPU: x.CPU, TimeNS: s.probes.now() - time.Since(x.At).Nanoseconds(), Since: x.At, RIP: api.Hex(x.RIP), Symbol: s.near(x.RIP), All: x.All}
	switch by := x.By.(type) {
	case *attached:
		out.Probe = by.def.Name()
	case *program.Program:
		out.Probe = cmp.Or(by.Section, by.Name)
	}
	return out
}
