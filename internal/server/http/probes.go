package http

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (s *server) getProbes(w http.ResponseWriter, _ *http.Request, q values) error {
	as, err := s.probes.choose(q.texts("probe"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	b := bufio.NewWriter(w)
	b.WriteString(`{"probes":`)
	writeList(b, s.probes.described(as))
	if s.probes.closed.Load() {
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
	come, list, err := s.probes.apply(specs, nil, nil)
	if err != nil {
		return err
	}
	if err := s.keep(); err != nil {
		_, gone := s.probes.detachIf(func(a *attached) bool { return slices.Contains(come, a) })
		return errors.Join(err, gone)
	}
	ps := func(yield func(api.Probe) bool) {
		for part := range slices.Chunk(come, atOnce) {
			for _, p := range s.probes.came(part) {
				if !yield(p) {
					return
				}
			}
		}
	}
	s.logAttached(ps, "uid", requestPeer(r).UID, "pid", requestPeer(r).PID)
	s.logDetached(list.Detached)
	writeProbes(w, http.StatusCreated, ps, list)
	giveBack(len(come))
	return nil
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
	ps, err := s.probes.detach(names)
	if errors.Is(err, api.ErrProbeNotFound) {
		return s.forgotten(err, false, names...)
	}
	if err != nil {
		return err
	}
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
	p, err := s.probes.get(r.PathValue("probe"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, p)
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
	return s.probes.patch(names, req)
}

func (s *server) deleteProbe(w http.ResponseWriter, r *http.Request) error {
	return s.onOne(w, r, func(number []string) ([]api.Probe, error) {
		ps, err := s.probes.detach(number)
		s.logDetached(ps)
		return ps, err
	})
}

// onOne does one thing with the probe that the path names, which f is called with, and
// answers with what it is then.
func (s *server) onOne(w http.ResponseWriter, r *http.Request, f func(number []string) ([]api.Probe, error)) error {
	name := r.PathValue("probe")
	a, err := s.probes.find(name)
	if errors.Is(err, api.ErrProbeNotFound) && r.Method == http.MethodDelete {
		return s.forgotten(err, false, name)
	}
	if err != nil {
		return err
	}
	ps, err := f([]string{strconv.FormatUint(a.id, 10)})
	switch {
	case errors.Is(err, api.ErrProbeNotFound), err == nil && len(ps) == 0:
		return s.probes.noProbe(name) // it went just now
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

// described describes probes, some at a time, so that a long list takes little memory
// and stops when the daemon does. It leaves out those that have gone meanwhile.
func (st *store) described(as []*attached) iter.Seq[api.Probe] { return st.parts(as, st.wire) }

// counted is described for who asks again and again: with what outline has.
func (st *store) counted(as []*attached) iter.Seq[api.Probe] { return st.parts(as, st.outline) }

func (st *store) parts(as []*attached, how func(*attached) api.Probe) iter.Seq[api.Probe] {
	return func(yield func(api.Probe) bool) {
		for part := range slices.Chunk(as, atOnce) {
			if st.closed.Load() {
				return // they all go
			}
			for _, p := range st.settled(part, how) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// came describes probes that a request has attached. One that has gone meanwhile, by
// somebody else or with the daemon, is told as it was then: it was attached.
func (st *store) came(as []*attached) []api.Probe {
	out := make([]api.Probe, 0, len(as))
	for _, a := range as {
		a.mu.Lock()
		if a.gone {
			out = append(out, *a.last)
		} else {
			out = append(out, st.wire(a))
		}
		a.mu.Unlock()
	}
	return out
}

// describe describes probes, without those that have gone meanwhile.
func (st *store) describe(as []*attached) []api.Probe {
	return slices.AppendSeq(make([]api.Probe, 0, len(as)), st.each(as, st.wire))
}

// each describes probes one by one, without those that have gone meanwhile.
func (st *store) each(as []*attached, how func(*attached) api.Probe) iter.Seq[api.Probe] {
	return func(yield func(api.Probe) bool) {
		for _, a := range as {
			a.mu.Lock()
			gone := a.gone
			var p api.Probe
			if !gone {
				p = how(a)
			}
			a.mu.Unlock()
			if !gone && !yield(p) {
				return
			}
		}
	}
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

// settled describes probes with what only a stopped world tells about the calls that
// return probes follow, which is seldom anything.
func (st *store) settled(as []*attached, how func(*attached) api.Probe) []api.Probe {
	out := slices.AppendSeq(make([]api.Probe, 0, len(as)), st.each(as, how))
	if !slices.ContainsFunc(out, func(p api.Probe) bool { return p.InUse > 0 }) || !st.engine.Undecided() {
		return out
	}
	if err := st.engine.Reclaim(); err != nil {
		st.log.Warn("calls that have been left could not be told from those under way", "err", err)
		return out
	}
	return slices.AppendSeq(out[:0], st.each(as, how))
}

// wire describes one registered probe. Callers hold its mu, or changes.
func (st *store) wire(a *attached) api.Probe {
	if a.watch != nil {
		return st.wireWatch(a)
	}
	info, _ := st.engine.Info(a.kprobe)
	p := st.outlined(a, info, st.stats(a))
	p.Def, p.User, p.Space = a.def.String(), info.User, api.Hex(info.Space)
	p.Pending, p.Changed = info.Pending, info.Changed
	p.Post, p.Regs, p.Stack, p.Stay, p.Stop, p.Origin = a.spec.Post, a.spec.Regs, a.spec.Stack, a.stay, a.spec.Stop, a.origin
	p.MaxActive, p.HighWater = info.MaxActive, info.HighWater
	p.Insn = hex.EncodeToString(info.Insn)
	if j, ok := a.probe.(*probe.Jprobe); ok && j.Mirror != "" {
		p.Mirror, p.MirrorStack = j.Mirror, j.StackSize
	}
	p.Filter, p.Program, p.Override = a.spec.Filter, a.wireProgram(), a.injector.wire()
	p.OnHost = a.whyOnHost(info)
	wireOptimization(&p, info)
	if sym, ok := st.guest.Image().Find(info.Addr); ok {
		p.Size = sym.Size
	}
	if img, ok := st.guest.Image().(interface{ Parts(name string) []string }); ok && (p.Offset == 0 || p.Offset == uint64(len(x86.Endbr64))) {
		p.Parts = img.Parts(p.Symbol)
	}
	return p
}

// outline describes as much of one registered probe as changes all the time, with the counts of all vCPUs together:
// it is asked for again and again, of ten thousand probes. Callers hold its mu, or changes.
func (st *store) outline(a *attached) api.Probe {
	if a.watch != nil {
		return st.wireWatch(a)
	}
	info, _ := st.engine.Info(a.kprobe)
	total := info.Stats
	total.Add(a.past.total)
	return st.outlined(a, info, a.sums(total))
}

// outlined is outline, with what the engine has said and these counts.
func (st *store) outlined(a *attached, info probe.Info, s api.Stats) api.Probe {
	p := api.Probe{
		ID: a.id, Name: a.kprobe.Name, Kind: string(rune(info.Type)), Symbol: info.Symbol, Offset: info.Offset, Addr: api.Hex(info.Addr),
		Enabled: !info.Disabled, Armed: info.Armed, Gone: info.Gone, Optimized: info.Optimized, Plan: info.Plan, Runs: api.RunsOnHost, Stats: s,
	}
	if info.InGuest {
		p.Runs = api.RunsInGuest
	}
	if info.Type == 'r' {
		p.InUse = underWay(s)
	}
	return p
}

// underWay returns how many calls a return probe that is attached follows, without those
// that it followed with another filter: by its counts,
// because what else tells changes while these are read.
func underWay(s api.Stats) int { return int(max(0, int64(s.Handled-s.Returns-s.Abandoned-s.UnderWay))) }

// settleReturns makes the events of a return probe that was detached as many as its
// returns: a task that was stopped on its way from the count to the program in the guest
// comes there no more, and what is counted during a guest call makes no event.
func (st *store) settleReturns(a *attached) {
	if a.program == nil || a.def.Kind != event.KindReturn {
		return
	}
	total, _ := st.engineStats(a)
	have := a.source.Counts()
	if missing := int64(total.Returns - a.program.Rejected() - a.program.Unwanted() - have.Stored - have.Lost); missing > 0 {
		a.source.Lose(0, uint64(missing))
	}
}

// stats returns a probe's counters, after it was detached too. Callers hold its mu, or
// changes.
func (st *store) stats(a *attached) api.Stats {
	total, cpus := st.engineStats(a)
	total.Add(a.past.total)
	for i := range a.past.cpus {
		cpus[i].Add(a.past.cpus[i])
	}
	s := a.sums(total)
	if a.program != nil && a.def.Kind != event.KindProbe {
		s.Rejected = a.past.rejected + a.program.Rejected()
	}
	for i, c := range cpus {
		s.CPUs = append(s.CPUs, api.CPUStats{CPU: i, Counts: wireCounts(c)})
	}
	return s
}

// sums are the counts of all vCPUs together, with those of a's events. Callers hold its mu, or changes.
func (a *attached) sums(total probe.Stats) api.Stats {
	events := a.counts()
	return api.Stats{
		Counts: wireCounts(total), Abandoned: total.Abandoned, UnderWay: total.UnderWay, Events: events.Stored + events.Lost, Lost: events.Lost,
	}
}

// counts are the events of a. Callers hold its mu, or changes.
func (a *attached) counts() event.Counts {
	c := a.source.Counts()
	return event.Counts{Stored: c.Stored + a.past.events.Stored, Lost: c.Lost + a.past.events.Lost}
}

func wireCounts(s probe.Stats) api.Counts {
	return api.Counts{
		Hits: s.Hits, Handled: s.Handled, Filtered: s.Filtered, Missed: s.Missed, Elsewhere: s.Elsewhere, Skipped: s.Skipped,
		SecondExits: s.SecondExits, Faults: s.Faults, Panics: s.Panics, BadAccesses: s.BadAccesses,
		Returns: s.Returns,
	}
}
