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

// stopsAfter returns the vCPUs that are stopped and that wanted accepts, in the
// order of their stops. It skips stops up to number last, and sets last to the
// number of the latest one.
func (in *inspector) stopsAfter(last *uint64, wanted func(by any) bool) (out []api.Stop) {
	g, ok := in.guest.(stepping)
	if !ok {
		return nil
	}
	stops := g.Stops()
	slices.SortFunc(stops, func(a, b machine.Stop) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, x := range stops {
		if x.Seq > *last {
			*last = x.Seq
			if wanted(x.By) {
				out = append(out, in.wireStop(&x))
			}
		}
	}
	return out
}

// wireStop describes a stop: which vCPU, where, by what, and since when.
func (in *inspector) wireStop(x *machine.Stop) api.Stop {
	out := api.Stop{CPU: x.CPU, TimeNS: in.probes.Now() - time.Since(x.At).Nanoseconds(), Since: x.At, RIP: api.Hex(x.RIP), Symbol: in.nearSymbol(x.RIP), All: x.All}
	switch by := x.By.(type) {
	case *session.Probe:
		out.Probe = by.Name()
	case *program.Program:
		out.Probe = cmp.Or(by.Section, by.Name)
	}
	return out
}
