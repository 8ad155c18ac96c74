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

func (s *server) getProbes(w http.ResponseWriter, _ *http.Request, q values) error {
	as, err := s.probes.Choose(q.texts("probe")...)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	b := bufio.NewWriter(w)
	b.WriteString(`{"probes":`)
	writeList(b, wireProbes(s.probes.Infos(as)))
	if s.probes.Closed() {
		panic(http.ErrAbortHandler) // nobody is to take what there is of the list for all of it
	}
	b.WriteString("}\n")
	_ = b.Flush() // an error: nobody is left to tell
	return nil
}

func (s *server) createProbes(w http.ResponseWriter, r *http.Request) error {
	if err := s.effort.room(); err != nil {
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
	a, err := s.probes.Attach(probeSpecs(specs), nil)
	if err != nil {
		return err
	}
	if err := s.keep(); err != nil {
		_, gone := s.probes.DetachIf(func(p *session.Probe) bool { return slices.Contains(a.Probes, p) })
		return errors.Join(err, gone)
	}
	ps := func(yield func(api.Probe) bool) {
		for part := range slices.Chunk(a.Probes, atOnce) {
			for _, i := range s.probes.Describe(part) {
				if !yield(wireProbe(&i)) {
					return
				}
			}
		}
	}
	list := wireAttached(&a)
	s.logAttached(ps, "uid", requestPeer(r).UID, "pid", requestPeer(r).PID)
	s.logDetached(list.Detached)
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

// attachedOf returns the probes of only that are attached, or all for nil, by number.
func (s *server) attachedOf(only map[*session.Probe]bool) []*session.Probe {
	all := s.probes.Probes()
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

// allDetached reports whether all of the probes were detached. When the daemon stops
// it says no: their streams have another end then.
func (s *server) allDetached(only iter.Seq[*session.Probe]) bool {
	for a := range only {
		if s.probes.Has(a) {
			return false
		}
	}
	return !s.probes.Closed()
}

// giveBack gives the host the memory that so many probes took while they came or went, where
// that was much: it is not needed again soon.
func giveBack(probes int) {
	if probes > 4*atOnce {
		debug.FreeOSMemory()
	}
}

// logAttached logs each probe, with who asked for it.
func (s *server) logAttached(ps iter.Seq[api.Probe], who ...any) {
	for p := range ps {
		s.log.Info("attached", append([]any{"probe", p.Name, "def", p.Def, "addr", p.Addr, "plan", p.Plan}, who...)...)
	}
}

// logDetached logs each probe.
func (s *server) logDetached(ps []api.Probe) {
	for _, p := range ps {
		s.log.Info("detached", "probe", p.Name, "hits", p.Stats.Hits)
	}
}

func (s *server) deleteProbes(w http.ResponseWriter, _ *http.Request, q values) error {
	names := q.texts("probe")
	gone, err := s.probes.Detach(names...)
	if errors.Is(err, session.ErrProbeNotFound) {
		return s.forgotten(err, false, names...)
	}
	if err != nil {
		return err
	}
	ps := wireInfos(gone)
	if len(names) == 0 {
		s.state.forgetAll()
	}
	s.logDetached(ps)
	if err := s.kept("detached"); err != nil {
		return err
	}
	writeProbes(w, http.StatusOK, slices.Values(ps), api.ProbeList{})
	giveBack(len(ps))
	return nil
}

func (s *server) patchProbes(w http.ResponseWriter, r *http.Request) error {
	var req api.PatchProbes
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	ps, err := s.patch(req.Names, req.PatchProbe)
	if err == nil {
		err = s.kept("changed")
	}
	if err != nil {
		return err
	}
	writeProbes(w, http.StatusOK, slices.Values(ps), api.ProbeList{})
	return nil
}

func (s *server) getProbe(w http.ResponseWriter, r *http.Request) error {
	i, err := s.probes.Get(r.PathValue("probe"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, wireProbe(&i))
	return nil
}

func (s *server) patchProbe(w http.ResponseWriter, r *http.Request) error {
	var req api.PatchProbe
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	return s.onOne(w, r, func(number []string) ([]api.Probe, error) { return s.patch(number, req) })
}

// patch changes probes. Another filter comes while the guest stands still, so nobody else
// has it pause or go on meanwhile.
func (s *server) patch(names []string, req api.PatchProbe) ([]api.Probe, error) {
	if req.Filter != nil {
		s.resetMu.Lock()
		defer s.resetMu.Unlock()
	}
	var ps []session.Info
	var err error
	switch {
	case (req.Enabled == nil) == (req.Filter == nil):
		return nil, badValue("either enabled is to be changed or filter")
	case req.Filter != nil:
		ps, err = s.probes.SetFilter(*req.Filter, names...)
	default:
		ps, err = s.probes.SetEnabled(*req.Enabled, names...)
	}
	return wireInfos(ps), err
}

func (s *server) deleteProbe(w http.ResponseWriter, r *http.Request) error {
	return s.onOne(w, r, func(number []string) ([]api.Probe, error) {
		gone, err := s.probes.Detach(number...)
		ps := wireInfos(gone)
		s.logDetached(ps)
		return ps, err
	})
}

// onOne does one thing with the probe that the path names, which f is called with, and
// answers with what it is then.
func (s *server) onOne(w http.ResponseWriter, r *http.Request, f func(number []string) ([]api.Probe, error)) error {
	name := r.PathValue("probe")
	a, err := s.probes.Find(name)
	if errors.Is(err, session.ErrProbeNotFound) && r.Method == http.MethodDelete {
		return s.forgotten(err, false, name)
	}
	if err != nil {
		return err
	}
	ps, err := f([]string{strconv.FormatUint(a.ID(), 10)})
	switch {
	case errors.Is(err, session.ErrProbeNotFound), err == nil && len(ps) == 0:
		return s.probes.NotFound(name) // it went just now
	case err != nil:
		return err
	}
	if err := s.kept("done"); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, ps[0])
	return nil
}

// forgotten takes away what waits to be attached again and has one of these names; the error, that there is no such probe or
// script, says so then.
func (s *server) forgotten(err error, script bool, names ...string) error {
	if !s.state.forget(script, names...) {
		return err
	}
	s.changed()
	e := *toAPI(err)
	e.Message += ": it waited to be attached again (--state), and is forgotten now"
	e.Detail = ""
	return &e
}

// writeProbes answers with a list of probes, of which there may be tens of thousands, and
// with what else l has.
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
	b.WriteString("}\n")
	_ = b.Flush() // an error: nobody is left to tell
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
