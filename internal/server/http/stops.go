package http

import (
	"cmp"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

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
	out := api.Stop{CPU: x.CPU, TimeNS: s.probes.Now() - time.Since(x.At).Nanoseconds(), Since: x.At, RIP: api.Hex(x.RIP), Symbol: s.near(x.RIP), All: x.All}
	switch by := x.By.(type) {
	case *session.Probe:
		out.Probe = by.Name()
	case *program.Program:
		out.Probe = cmp.Or(by.Section, by.Name)
	}
	return out
}
