package http

import (
	"log/slog"

	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// probeHost attaches, describes, changes and detaches probes and programs for clients, and reads the programs' maps. Requests, streams
// and scripts use it from any goroutine: the session has its own locks.
type probeHost struct {
	*inspector
	log     *slog.Logger
	control *runControl // a change of filters holds its resetMu
	effort  effort
	state   *saved.Store // set before clients are served; nil: the attachments of clients end with the daemon
}

// attach attaches probes and describes them. It returns an *api.Error.
func (ph *probeHost) attach(specs []api.ProbeSpec, own *session.Owner) (api.ProbeList, []*session.Probe, error) {
	a, err := ph.probes.Attach(probeSpecs(specs), own)
	list := wireAttached(&a)
	list.Probes = wireInfos(ph.probes.Describe(a.Probes))
	if err != nil {
		err = toAPI(err)
	}
	return list, a.Probes, err
}

// endSession detaches the probes that a stream has attached, except the ones that
// stay.
func (ph *probeHost) endSession(own *session.Owner) { ph.logEnd(ph.probes.EndOwner(own)) }

// logEnd logs the end of the probes of a stream.
func (ph *probeHost) logEnd(ps []session.Info, err error) {
	if err != nil {
		ph.log.Error("detach at the end of a stream", "err", err)
	}
	for _, p := range ps {
		ph.log.Info("detached with its stream", "probe", p.Name, "hits", p.Stats.Hits)
	}
}

// eventCounts returns the event counts of all probes.
func (ph *probeHost) eventCounts() api.EventCounts {
	hub := ph.probes.EventCounts()
	total := hub.Total()
	return api.EventCounts{Emitted: total.Stored + total.Lost, Stored: total.Stored, Lost: total.Lost, Reordered: hub.Reordered}
}
