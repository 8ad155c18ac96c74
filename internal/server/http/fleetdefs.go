package http

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// followed is the daemon's work for the definitions of its fleet.
type followed struct {
	s      *server
	n      *fleet.Network
	m      *fleet.Member
	name   string        // the daemon's, in the fleet
	nudge  chan struct{} // capacity 1: a client waits for a change
	onlyBy sync.Mutex    // held to start and end definitions

	mu       sync.Mutex
	changed  chan struct{} // closed at each change
	revision uint64
	all      map[string]*begun // by ID
}

// begun is a definition that applies to the daemon.
type begun struct {
	def    fleet.Definition
	kind   string
	script *keptScript
	probes []uint64 // numbers
	err    error    // why it could not be attached
}

// follow follows the definitions of the fleet until ctx ends.
func (f *followed) follow(ctx context.Context) {
	if err := f.n.Follow(ctx, f.nudge, func(x fleet.Index) bool { return f.apply(ctx, x) }); err != nil {
		f.s.log.Error("the fleet's definitions are not followed", "err", err)
	}
}

// apply starts definitions that are new and ends those that were withdrawn. It
// reports whether one has to be retried soon.
func (f *followed) apply(ctx context.Context, x fleet.Index) (again bool) {
	f.onlyBy.Lock()
	defer f.onlyBy.Unlock()
	f.mu.Lock()
	was := maps.Clone(f.all)
	older := x.Revision < f.revision // from a server that has not received the latest one yet
	f.mu.Unlock()
	if older {
		return true
	}
	now := map[string]*begun{}
	for _, d := range x.Definitions {
		where, err := fleet.ParseWhere(d.Where)
		if err != nil || !f.m.Meant(where) {
			continue
		}
		now[d.ID] = was[d.ID]
	}
	for id, b := range was {
		if _, stays := now[id]; !stays {
			f.end(b)
		}
	}
	for _, d := range x.Definitions {
		b, meant := now[d.ID]
		var wire *api.Error
		if meant && (b == nil || errors.As(b.err, &wire) && wire.Code == api.CodeNameTaken) {
			if b = f.begin(ctx, d); b == nil {
				again = true
				delete(now, d.ID)
				continue
			}
			now[d.ID] = b
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = now
	if !again {
		f.revision = x.Revision
	}
	close(f.changed)
	f.changed = make(chan struct{})
	return again
}

// begin attaches a definition, or returns nil if it cannot be read now.
func (f *followed) begin(ctx context.Context, d fleet.Definition) *begun {
	ask, cancel := context.WithTimeout(ctx, fleetAskTime)
	defer cancel()
	body, err := f.n.Body(ask, d)
	if err != nil {
		f.s.log.Debug("fleet", "definition", d.Name, "err", err)
		return nil
	}
	b := &begun{def: d, kind: api.KindScript}
	defer func() {
		if v := recover(); v != nil { // as for a request
			f.s.log.Error("panic in a definition of the fleet", "name", d.Name, "panic", v, "stack", string(debug.Stack()))
			b.err = &api.Error{Code: api.CodeInternal, Message: "the daemon has failed at it; its log says how"}
		}
		if b.err != nil {
			b.err = toAPI(b.err)
			f.s.log.Warn("a definition of the fleet is refused", "name", d.Name, "by", d.By, "err", b.err)
		}
	}()
	var what api.Definition
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	switch err := dec.Decode(&what); {
	case err != nil:
		b.err = badValue("definition %s: %v", d.Name, err)
	case what.Script != nil && len(what.Probes) > 0 || what.Script == nil && len(what.Probes) == 0:
		b.err = badValue("definition %s: neither a script nor probes", d.Name)
	case what.Script != nil:
		b.script, b.err = f.beginScript(d, *what.Script)
	default:
		b.kind = api.KindProbes
		b.probes, b.err = f.attach(d, what.Probes)
	}
	return b
}

// fleetAskTime is how long the fleet's server may take to return a definition.
const fleetAskTime = 5 * time.Second

// beginScript has a script run.
func (f *followed) beginScript(d fleet.Definition, req api.RunScript) (*keptScript, error) {
	if len(d.Name) > api.MaxScriptName || !api.ScriptName.MatchString(d.Name) {
		return nil, badValue("definition %q: no name of a script", d.Name)
	}
	if req.IntervalMS != 0 {
		return nil, badValue("definition %s: a script of the fleet prints no maps at intervals", d.Name)
	}
	if req.Format = cmp.Or(req.Format, api.ScriptText); req.Format != api.ScriptText && req.Format != api.ScriptJSON {
		return nil, badValue("definition %s: format %q", d.Name, req.Format)
	}
	req.Detach, req.Data = d.Name, true
	if err := f.s.scripts.reserve(d.Name); err != nil {
		return nil, err
	}
	k, warnings, err := f.s.startKept(context.Background(), &req, peer{UID: f.s.access.self, PID: int32(f.s.pid)}, func(epoch time.Time) *fleet.Publisher { return f.m.Publish(d, f.name, epoch) })
	for _, w := range warnings {
		f.s.log.Warn("script", "name", d.Name, "warning", w)
	}
	return k, err
}

// attach attaches probes.
func (f *followed) attach(d fleet.Definition, specs []api.ProbeSpec) (ids []uint64, err error) {
	for i := range specs {
		if event.ReadCommand(specs[i].Def).IsDeletion() {
			return nil, badValue("definition %s: %.40q takes probes away", d.Name, specs[i].Def)
		}
		specs[i].Stay = true
	}
	ps, come, err := f.s.attach(specs, nil)
	if err != nil {
		return nil, err
	}
	for _, a := range come {
		ids = append(ids, a.ID())
		a.SetLabel(api.OriginFleet)
	}
	f.s.state.MarkChanged()
	f.s.logAttached(slices.Values(ps.Probes), "fleet", d.Name)
	return ids, nil
}

// end detaches the probes or the script of a definition.
func (f *followed) end(b *begun) {
	if b == nil {
		return
	}
	f.s.log.Info("a definition of the fleet is withdrawn", "name", b.def.Name)
	if b.script != nil {
		b.script.dismiss()
	}
	if len(b.probes) > 0 {
		if _, err := f.s.probes.DetachIf(func(a *session.Probe) bool { return slices.Contains(b.probes, a.ID()) }); err != nil {
			f.s.log.Error("a definition's probes are not detached", "name", b.def.Name, "err", err)
		}
		f.s.state.MarkChanged()
	}
}

// definitions returns the state of each definition. The caller has mu.
func (f *followed) definitions() []api.FleetDefinition {
	out := []api.FleetDefinition{}
	for _, b := range f.all {
		d := api.FleetDefinition{Name: b.def.Name, ID: b.def.ID, Where: b.def.Where, Kind: b.kind, State: api.DefinitionRunning}
		switch k := b.script; {
		case b.err != nil:
			d.State, d.Error = api.DefinitionRefused, toAPI(b.err)
		case b.kind == api.KindProbes:
			for _, a := range f.s.probes.Probes() {
				if slices.Contains(b.probes, a.ID()) {
					d.Probes = append(d.Probes, a.ID())
				}
			}
			if d.Probes == nil {
				d.State = api.DefinitionStopped
			}
		default:
			if there, err := f.s.scripts.find(b.def.Name); err != nil || there != k {
				d.State = api.DefinitionStopped
				break
			}
			select {
			case <-k.done:
				d.State = api.DefinitionEnded
			default:
			}
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b api.FleetDefinition) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// waitTime bounds how long getFleet waits for a revision.
const waitTime = 20 * time.Second

// getFleet reports the state of the fleet's definitions in this daemon. With
// revision, it waits until the daemon has followed the definitions that far.
func (s *server) getFleet(w http.ResponseWriter, r *http.Request, q values) error {
	wanted := q.number("revision")
	f := s.followed.Load()
	if f == nil {
		writeJSON(w, http.StatusOK, api.FleetState{Definitions: []api.FleetDefinition{}})
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), waitTime)
	defer cancel()
	for {
		f.mu.Lock()
		revision, changed := f.revision, f.changed
		st := api.FleetState{
			Fleet: s.opt.fleet.Redacted(), Name: f.name, Run: f.m.ID(), Connected: f.n.Connected(), Revision: revision, Definitions: f.definitions(),
		}
		f.mu.Unlock()
		if u := f.m.Unkept(); u != nil {
			st.Unkept = (*api.Unkept)(u)
		}
		if revision >= wanted {
			writeJSON(w, http.StatusOK, st)
			return nil
		}
		select {
		case f.nudge <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-s.stop:
			return errClosing
		case <-ctx.Done():
			wanted = 0 // the answer says which it is
		}
	}
}
