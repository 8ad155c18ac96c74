package http

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// maxScripts bounds how many scripts run without a client, or have ended and were not
// stopped yet.
const maxScripts = 128

// keptScript is a script that runs without a client, on a goroutine of its own, until it is
// stopped. One that has ended by itself stays until then, with what it has printed.
type keptScript struct {
	*runningScript
	req    api.RunScript
	since  time.Time
	log    *scriptLog
	begin  api.Start     // for those who read
	origin string        // as of an attached one; said before anybody is served
	done   chan struct{} // closed at its end
}

// scripts are those without a client.
type scripts struct {
	mu      sync.Mutex
	byName  map[string]*keptScript      // nil: the name is taken by one that is being compiled
	open    map[*runningScript]struct{} // those with a client
	closing bool                        // the daemon stops
	running sync.WaitGroup
}

// reserve takes a name.
func (s *scripts) reserve(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName == nil {
		s.byName = map[string]*keptScript{}
	}
	_, taken := s.byName[name]
	switch {
	case s.closing:
		return errClosing
	case taken:
		return &api.Error{Code: api.CodeNameTaken, Errno: "EEXIST", Message: fmt.Sprintf("there is a script %q already", name), Detail: "'guestprobe stop " + name + "' ends it and prints its maps"}
	case len(s.byName) >= maxScripts:
		return &api.Error{Code: api.CodeTooMany, Errno: "ENOSPC", Message: fmt.Sprintf("more than %d scripts", maxScripts), Detail: "'guestprobe scripts' lists them; stop some"}
	}
	s.byName[name] = nil
	return nil
}

// start has a script run by the name that was reserved for it, or gives that back for nil.
func (s *scripts) start(name string, k *keptScript) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k == nil || s.closing {
		delete(s.byName, name)
		return errClosing
	}
	s.byName[name] = k
	s.running.Go(k.live)
	return nil
}

// find returns the script of a name.
func (s *scripts) find(name string) (*keptScript, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.byName[name]; k != nil {
		return k, nil
	}
	return nil, &api.Error{Code: api.CodeNoScript, Errno: "ENOENT", Message: fmt.Sprintf("no script %q", name), Detail: "'guestprobe scripts' lists those there are"}
}

// forget takes a script away.
func (s *scripts) forget(k *keptScript) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[k.req.Detach] == k {
		delete(s.byName, k.req.Detach)
	}
}

// all returns the scripts by name.
func (s *scripts) all() (ks []*keptScript) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.byName {
		if k != nil {
			ks = append(ks, k)
		}
	}
	slices.SortFunc(ks, func(a, b *keptScript) int { return cmp.Compare(a.req.Detach, b.req.Detach) })
	return ks
}

// wait lets no further script begin, and waits until those there are have ended, or ctx
// has.
func (s *scripts) wait(ctx context.Context) {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// keepScript begins a script that goes on without its client.
func (s *server) keepScript(w http.ResponseWriter, r *http.Request, req *api.RunScript) error {
	if len(req.Detach) > api.MaxScriptName || !api.ScriptName.MatchString(req.Detach) {
		return badValue("detach %q: want a letter or _, then letters, digits and _ . -, at most %d in all", req.Detach, api.MaxScriptName)
	}
	if err := s.scripts.reserve(req.Detach); err != nil {
		return err
	}
	k, warnings, err := s.startKept(r.Context(), req, requestPeer(r), nil)
	if err != nil {
		return err
	}
	if err := s.keep(); err != nil {
		k.dismiss()
		return err
	}
	info := k.info()
	info.Warnings, info.Begin = warnings, &k.begin
	writeJSON(w, http.StatusCreated, info)
	return nil
}

// startKept begins a script whose name is reserved, for who asks, and lets it go on; publish gives where the fleet has
// what it prints from then on, or is nil. On an error the name is free again.
func (s *server) startKept(ctx context.Context, req *api.RunScript, who peer, publish func(epoch time.Time) *fleet.Publisher) (*keptScript, []string, error) {
	rs, warnings, err := s.startScript(ctx, req)
	if err != nil {
		_ = s.scripts.start(req.Detach, nil)
		return nil, nil, err
	}
	k := &keptScript{runningScript: rs, req: *req, since: time.Now(), log: newScriptLog(), done: make(chan struct{})}
	rs.stream = s.newStream(k.log)
	if publish != nil {
		k.origin, rs.fleet = api.OriginFleet, &published{scriptLog: k.log, rs: rs, to: publish(s.probes.Epoch())}
		rs.w = rs.fleet
	}
	rs.ending, rs.look, rs.over = k.log.mark, make(chan func()), k.done
	k.begin = rs.start(who, 0)
	rs.warn(warnings)
	if err := s.scripts.start(req.Detach, k); err != nil {
		rs.close()
		rs.ended.Reason = api.EndShutdown
		rs.fleet.finish()
		return nil, nil, err
	}
	s.log.Info("script", "name", req.Detach, "uid", who.UID, "pid", who.PID)
	return k, warnings, nil
}

// live runs the script to its end.
func (k *keptScript) live() {
	defer func() {
		if v := recover(); v != nil {
			k.s.log.Error("panic in a script", "name", k.req.Detach, "panic", v, "stack", string(debug.Stack()))
			k.close()
			k.ended = api.End{Reason: api.EndShutdown, Probes: wireInfos(k.own().Finals())}
			k.end(k.ended.Reason, nil, k.ended.Probes)
		}
		k.fleet.finish()
		k.log.close()
		close(k.done)
	}()
	// No write into the log fails.
	_ = k.run(context.Background(), nil)
	k.s.changed() // it is not to run again
	k.s.log.Info("script ended", "name", k.req.Detach, "reason", k.ended.Reason, "written", k.delivered, "lost", k.lost)
}

// dismiss forgets a script and has it come to its end.
func (k *keptScript) dismiss() {
	k.s.scripts.forget(k)
	select {
	case k.asked <- struct{}{}:
	default:
	}
}

// info describes the script.
func (k *keptScript) info() api.ScriptInfo {
	i := api.ScriptInfo{
		Name: k.req.Detach, Script: k.req.Script, Args: k.req.Args, Format: k.req.Format, Since: k.since, Origin: k.origin, Attached: k.begin.Attached,
		Written: k.written.Load(), Lost: k.dropped.Load(),
	}
	ps := wireInfos(k.s.probes.Present(slices.Collect(k.own().Probes())))
	select {
	case <-k.done:
		i.Ended, i.Code = k.ended.Reason, k.ended.Code
		ps = k.ended.Probes
	default:
		ps = append(ps, wireInfos(k.own().Finals())...)
	}
	for _, p := range ps {
		i.Hits += p.Stats.Hits
	}
	return i
}

// maps prints the maps as they are now, or returns nil when the script has ended.
func (k *keptScript) maps(ctx context.Context, format string) *string {
	var b strings.Builder
	if !k.looked(ctx, func(p *script.Printer) {
		p.Like(format == api.ScriptJSON, func(text string) { b.WriteString(text) }).Maps()
	}) {
		return nil
	}
	text := b.String()
	return &text
}

// looked calls f with what prints the script's maps as they are now, and reports whether it did: the script runs.
func (rs *runningScript) looked(ctx context.Context, f func(*script.Printer)) bool {
	done := make(chan struct{})
	select {
	case rs.look <- func() {
		defer close(done)
		rs.s.probes.Poll()
		f(rs.printer)
	}:
		<-done
		return true
	case <-rs.over:
	case <-ctx.Done():
	}
	return false
}

func (s *server) getScripts(w http.ResponseWriter, _ *http.Request) error {
	l := api.ScriptList{Scripts: []api.ScriptInfo{}}
	for _, k := range s.scripts.all() {
		l.Scripts = append(l.Scripts, k.info())
	}
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s *server) getScript(w http.ResponseWriter, r *http.Request, q values) error {
	k, err := s.scripts.find(r.PathValue("script"))
	if err != nil {
		return err
	}
	format := k.req.Format
	switch f := q.text("format"); f {
	case "":
	case api.ScriptData:
		var states json.RawMessage
		left := 0
		k.looked(r.Context(), func(p *script.Printer) {
			var maps []script.MapState
			maps, left = p.States()
			states = encodeStates(maps)
		})
		info := k.info()
		info.States, info.Left = states, left
		writeJSON(w, http.StatusOK, info)
		return nil
	default:
		format = f
	}
	maps := k.maps(r.Context(), format)
	info := k.info()
	info.Maps = maps
	writeJSON(w, http.StatusOK, info)
	return nil
}
