package http

import (
	"bufio"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"

	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

func (ph *probeHost) getProbes(w http.ResponseWriter, _ *http.Request, q values) error {
	as, err := ph.probes.Choose(q.texts("probe")...)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	b := bufio.NewWriter(w)
	b.WriteString(`{"probes":`)
	writeList(b, wireProbes(ph.probes.Infos(as)))
	if ph.probes.Closed() {
		panic(http.ErrAbortHandler) // the client must not take a part of the list for all of it
	}
	b.WriteString("}\n")
	_ = b.Flush() // an error means that the client is gone
	return nil
}

func (ph *probeHost) createProbes(w http.ResponseWriter, r *http.Request) error {
	if err := ph.effort.room(); err != nil {
		return err
	}
	var req api.CreateProbes
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	specs := req.Probes
	switch single := req.ProbeSpec != (api.ProbeSpec{}); {
	case single && specs != nil:
		return badValue("either one definition in def, or several in probes")
	case single:
		specs = []api.ProbeSpec{req.ProbeSpec}
	case len(specs) == 0:
		return badValue("no probe: def or probes is missing")
	}
	for i := range specs {
		specs[i].Stay = true
	}
	a, err := ph.probes.Attach(probeSpecs(specs), nil)
	if err != nil {
		return err
	}
	if err := ph.state.Keep(); err != nil {
		ours := setOf(a.Probes)
		_, gone := ph.probes.DetachIf(func(p *session.Probe) bool { return ours[p] })
		return errors.Join(err, gone)
	}
	list, peer := wireAttached(&a), requestPeer(r)
	// Each probe is described once, for the log and for the answer. All are logged, even if the
	// client is gone.
	ps := func(yield func(api.Probe) bool) {
		there := true
		for part := range slices.Chunk(a.Probes, atOnce) {
			for _, i := range ph.probes.Describe(part) {
				p := wireProbe(&i)
				ph.logAttached(slices.Values([]api.Probe{p}), "uid", peer.UID, "pid", peer.PID)
				there = there && yield(p)
			}
		}
		ph.logDetached(list.Detached)
	}
	writeProbes(w, http.StatusCreated, ps, list)
	giveBack(len(a.Probes))
	return nil
}

// atOnce is how many probes of a long list are described at a time.
const atOnce = 500

// setOf returns probes as a set.
func setOf(as []*session.Probe) map[*session.Probe]bool {
	only := make(map[*session.Probe]bool, len(as))
	for _, a := range as {
		only[a] = true
	}
	return only
}

// selectAttached returns the probes of only that are attached, or all for nil, by number.
func (ph *probeHost) selectAttached(only map[*session.Probe]bool) []*session.Probe {
	all := ph.probes.Probes()
	if only == nil {
		return all
	}
	var as []*session.Probe
	for _, a := range all {
		if only[a] {
			as = append(as, a)
		}
	}
	return as
}

// allDetached reports whether all of the probes were detached. It returns false
// when the daemon stops: their streams have another end then.
func (ph *probeHost) allDetached(only iter.Seq[*session.Probe]) bool {
	for a := range only {
		if ph.probes.Has(a) {
			return false
		}
	}
	return !ph.probes.Closed()
}

// giveBack returns memory to the host after many probes were attached or
// detached: it is not needed again soon.
func giveBack(probes int) {
	if probes > 4*atOnce {
		debug.FreeOSMemory()
	}
}

// logAttached logs each probe, with the client that has attached it.
func (ph *probeHost) logAttached(ps iter.Seq[api.Probe], who ...any) {
	for p := range ps {
		ph.log.Info("attached", append([]any{"probe", p.Name, "def", p.Def, "addr", p.Addr, "plan", p.Plan}, who...)...)
	}
}

// logDetached logs each probe.
func (ph *probeHost) logDetached(ps []api.Probe) {
	for _, p := range ps {
		ph.log.Info("detached", "probe", p.Name, "hits", p.Stats.Hits)
	}
}

func (ph *probeHost) deleteProbes(w http.ResponseWriter, _ *http.Request, q values) error {
	names := q.texts("probe")
	gone, err := ph.probes.Detach(names...)
	if errors.Is(err, session.ErrProbeNotFound) {
		return forgetPending(ph.state, err, false, names...)
	}
	if err != nil {
		return err
	}
	ps := wireInfos(gone)
	if len(names) == 0 {
		ph.state.ForgetAll()
	}
	ph.logDetached(ps)
	if err := keepDone(ph.state, "detached"); err != nil {
		return err
	}
	writeProbes(w, http.StatusOK, slices.Values(ps), api.ProbeList{})
	giveBack(len(ps))
	return nil
}

func (ph *probeHost) patchProbes(w http.ResponseWriter, r *http.Request) error {
	var req api.PatchProbes
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	ps, err := ph.patch(req.Names, req.PatchProbe)
	if err == nil {
		err = keepDone(ph.state, "changed")
	}
	if err != nil {
		return err
	}
	writeProbes(w, http.StatusOK, slices.Values(ps), api.ProbeList{})
	return nil
}

func (ph *probeHost) getProbe(w http.ResponseWriter, r *http.Request) error {
	i, err := ph.probes.Get(r.PathValue("probe"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, wireProbe(&i))
	return nil
}

func (ph *probeHost) patchProbe(w http.ResponseWriter, r *http.Request) error {
	var req api.PatchProbe
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	return ph.changeOne(w, r, func(number []string) ([]api.Probe, error) { return ph.patch(number, req) })
}

// patch changes probes. A filter is replaced while the guest is paused, so no
// other client may pause or resume it during that time.
func (ph *probeHost) patch(names []string, req api.PatchProbe) ([]api.Probe, error) {
	if req.Filter != nil {
		ph.control.resetMu.Lock()
		defer ph.control.resetMu.Unlock()
	}
	var ps []session.Info
	var err error
	switch {
	case (req.Enabled == nil) == (req.Filter == nil):
		return nil, badValue("either enabled is to be changed or filter")
	case req.Filter != nil:
		ps, err = ph.probes.SetFilter(*req.Filter, names...)
	default:
		ps, err = ph.probes.SetEnabled(*req.Enabled, names...)
	}
	return wireInfos(ps), err
}

func (ph *probeHost) deleteProbe(w http.ResponseWriter, r *http.Request) error {
	return ph.changeOne(w, r, func(number []string) ([]api.Probe, error) {
		gone, err := ph.probes.Detach(number...)
		ps := wireInfos(gone)
		ph.logDetached(ps)
		return ps, err
	})
}

// changeOne calls f with the number of the probe that the path names, and
// answers with the changed probe.
func (ph *probeHost) changeOne(w http.ResponseWriter, r *http.Request, f func(number []string) ([]api.Probe, error)) error {
	name := r.PathValue("probe")
	a, err := ph.probes.Find(name)
	if errors.Is(err, session.ErrProbeNotFound) && r.Method == http.MethodDelete {
		return forgetPending(ph.state, err, false, name)
	}
	if err != nil {
		return err
	}
	ps, err := f([]string{strconv.FormatUint(a.ID(), 10)})
	switch {
	case errors.Is(err, session.ErrProbeNotFound), err == nil && len(ps) == 0:
		return ph.probes.NotFoundError(name) // it was detached in the meantime
	case err != nil:
		return err
	}
	if err := keepDone(ph.state, "done"); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, ps[0])
	return nil
}

// writeProbes answers with a list of probes, which may have tens of thousands,
// and with the other fields of l.
func writeProbes(w http.ResponseWriter, status int, ps iter.Seq[api.Probe], l api.ProbeList) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	b := bufio.NewWriter(w)
	b.WriteString(`{"probes":`)
	writeList(b, ps)
	if len(l.Detached) > 0 {
		b.WriteString(`,"detached":`)
		writeList(b, slices.Values(l.Detached))
	}
	if len(l.Skipped) > 0 {
		b.WriteString(`,"skipped":`)
		writeList(b, slices.Values(l.Skipped))
	}
	if len(l.Notes) > 0 {
		b.WriteString(`,"notes":`)
		writeList(b, slices.Values(l.Notes))
	}
	b.WriteString("}\n")
	_ = b.Flush() // an error means that the client is gone
}

// writeList writes a list as JSON, a part at a time.
func writeList[T any](w *bufio.Writer, ps iter.Seq[T]) {
	sep := byte('[')
	for p := range ps {
		b, err := json.Marshal(p)
		if err != nil {
			panic("BUG: marshal answer: " + err.Error())
		}
		w.WriteByte(sep)
		if _, err := w.Write(b); err != nil {
			return // the reader is gone
		}
		sep = ','
	}
	if sep == '[' {
		w.WriteByte(sep)
	}
	w.WriteByte(']')
}
