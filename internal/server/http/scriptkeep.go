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
	"time"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// maxScripts bounds how many scripts run without a client, or have ended and
// were not stopped yet.
const maxScripts = 128

// keptScript is a script that runs without a client, on a goroutine of its own,
// until it is stopped. A script that has ended by itself is kept until then,
// with its output.
type keptScript struct {
	*runningScript
	req    api.RunScript
	since  time.Time
	log    *scriptLog
	begin  api.Start     // for readers
	origin string        // as of an attached one; set before clients are served
	done   chan struct{} // closed at its end
}

// reserve reserves a name.
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

// start runs a script under its reserved name. With nil it frees the name.
func (s *scripts) start(name string, k *keptScript) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k == nil || s.closing {
		delete(s.byName, name)
		return errClosing
	}
	s.byName[name] = k
	s.running.Go(k.runToEnd)
	return nil
}

// find returns the script of a name.
func (s *scripts) find(name string) (*keptScript, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.byName[name]; k != nil {
		return k, nil
	}
	return nil, &api.Error{Code: api.CodeNoScript, Errno: "ENOENT", Message: fmt.Sprintf("no script %q", name), Detail: "'guestprobe scripts' lists the existing ones"}
}

// forget removes a script.
func (s *scripts) forget(k *keptScript) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[k.req.Detach] == k {
		delete(s.byName, k.req.Detach)
	}
}

// list returns the scripts by name.
func (s *scripts) list() (ks []*keptScript) {
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

// wait prevents further scripts from starting, and waits until all have ended,
// or until ctx ends.
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

// keepScript starts a script that continues to run without its client.
func (sh *scriptHost) keepScript(w http.ResponseWriter, r *http.Request, req *api.RunScript) error {
	if len(req.Detach) > api.MaxScriptName || !api.ScriptName.MatchString(req.Detach) {
		return badValue("detach %q: want a letter or _, then letters, digits and _ . -, at most %d in all", req.Detach, api.MaxScriptName)
	}
	if err := sh.scripts.reserve(req.Detach); err != nil {
		return err
	}
	k, warnings, err := sh.startKept(r.Context(), req, requestPeer(r), nil)
	if err != nil {
		return err
	}
	if err := sh.state.Keep(); err != nil {
		k.dismiss()
		select { // the script is gone when the client reads the error
		case <-k.done:
		case <-r.Context().Done():
		}
		return err
	}
	info := k.info()
	info.Warnings, info.Begin = warnings, &k.begin
	writeJSON(w, http.StatusCreated, info)
	return nil
}

// startKept starts a script whose name is reserved, on behalf of who, and leaves
// it running. publish, if it is not nil, returns where the script's output is
// published in the fleet from then on. On an error the name is free again.
func (sh *scriptHost) startKept(ctx context.Context, req *api.RunScript, who peer, publish func(epoch time.Time) *fleet.Publisher) (*keptScript, []string, error) {
	rs, warnings, err := sh.startScript(ctx, req)
	if err != nil {
		_ = sh.scripts.start(req.Detach, nil)
		return nil, nil, err
	}
	k := &keptScript{runningScript: rs, req: *req, since: time.Now(), log: newScriptLog(), done: make(chan struct{})}
	rs.stream = sh.streams.newStream(k.log)
	if publish != nil {
		k.origin, rs.fleet = api.OriginFleet, &published{scriptLog: k.log, rs: rs, to: publish(sh.probes.Epoch())}
		rs.w = rs.fleet
	}
	rs.ending, rs.look, rs.over = k.log.mark, make(chan func()), k.done
	k.begin = rs.start(who, 0)
	rs.warn(warnings)
	if err := sh.scripts.start(req.Detach, k); err != nil {
		rs.close()
		rs.ended.Reason = api.EndShutdown
		rs.fleet.finish()
		return nil, nil, err
	}
	sh.log.Info("script", "name", req.Detach, "uid", who.UID, "pid", who.PID)
	return k, warnings, nil
}

// runToEnd runs the script to its end.
func (k *keptScript) runToEnd() {
	defer func() {
		if v := recover(); v != nil {
			k.host.log.Error("panic in a script", "name", k.req.Detach, "panic", v, "stack", string(debug.Stack()))
			k.close()
			k.ended = api.End{Reason: api.EndShutdown, Probes: wireInfos(k.owner().Finals())}
			k.end(k.ended.Reason, nil, k.ended.Probes)
		}
		k.fleet.finish()
		k.log.close()
		close(k.done)
	}()
	// Writes into the log do not fail.
	_ = k.run(context.Background(), nil)
	k.host.state.MarkChanged() // it must not run again
	k.host.log.Info("script ended", "name", k.req.Detach, "reason", k.ended.Reason, "written", k.delivered, "lost", k.lost)
}

// dismiss removes a script and ends it.
func (k *keptScript) dismiss() {
	k.host.scripts.forget(k)
	select {
	case k.asked <- struct{}{}:
	default:
	}
}

// info describes the script.
func (k *keptScript) info() api.ScriptInfo {
	i := api.ScriptInfo{
		Name: k.req.Detach, Script: k.req.Script, Args: k.req.Args, Files: k.req.Files, Format: k.req.Format, Since: k.since, Origin: k.origin, Attached: k.begin.Attached,
		Written: k.written.Load(), Lost: k.dropped.Load(),
	}
	ps := wireInfos(k.host.probes.DescribePresent(slices.Collect(k.owner().Probes())))
	select {
	case <-k.done:
		i.Ended, i.Code = k.ended.Reason, k.ended.Code
		ps = k.ended.Probes
	default:
		ps = append(ps, wireInfos(k.owner().Finals())...)
	}
	for _, p := range ps {
		i.Hits += p.Stats.Hits
	}
	return i
}

// maps prints the present maps, or returns nil when the script has ended.
func (k *keptScript) maps(ctx context.Context, format string) *string {
	var b strings.Builder
	if !k.lookAt(ctx, func(p *script.Printer) {
		p.Derive(format == api.ScriptJSON, func(text string) { b.WriteString(text) }).Maps()
	}) {
		return nil
	}
	text := b.String()
	return &text
}

// lookAt calls f with a printer of the script's current maps. It reports false,
// without calling f, if the script no longer runs.
func (rs *runningScript) lookAt(ctx context.Context, f func(*script.Printer)) bool {
	done := make(chan struct{})
	select {
	case rs.look <- func() {
		defer close(done)
		rs.host.probes.Poll()
		f(rs.printer)
	}:
		<-done
		return true
	case <-rs.over:
	case <-ctx.Done():
	}
	return false
}

func (sh *scriptHost) getScripts(w http.ResponseWriter, _ *http.Request) error {
	l := api.ScriptList{Scripts: []api.ScriptInfo{}}
	for _, k := range sh.scripts.list() {
		l.Scripts = append(l.Scripts, k.info())
	}
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (sh *scriptHost) getScript(w http.ResponseWriter, r *http.Request, q values) error {
	k, err := sh.scripts.find(r.PathValue("script"))
	if err != nil {
		return err
	}
	format := k.req.Format
	switch f := q.text("format"); f {
	case "":
	case api.ScriptData:
		var states json.RawMessage
		left := 0
		k.lookAt(r.Context(), func(p *script.Printer) {
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
