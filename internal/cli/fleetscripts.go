package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// fleetScriptRow is what the daemons of a fleet run under one name.
type fleetScriptRow struct {
	Name    string     `json:"name"`
	Kind    string     `json:"kind"` // a kind of api.FleetDefinition
	Fleet   bool       `json:"fleet"`
	ID      string     `json:"id,omitempty"` // of the fleet's definition, as the next two
	Where   string     `json:"where,omitempty"`
	By      string     `json:"by,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	Daemons int        `json:"daemons"` // connected daemons that have it or rejected it
	Running int        `json:"running"`
	Ended   int        `json:"ended"` // or stopped on the daemon itself
	Refused int        `json:"refused"`
	Hits    uint64     `json:"hits"`
	Written uint64     `json:"written"`
	Lost    uint64     `json:"lost"`
	Script  string     `json:"script,omitempty"`
}

// scriptsOf are a daemon's scripts, and its state of the fleet's definitions.
type scriptsOf struct {
	Scripts []api.ScriptInfo `json:"scripts"`
	Fleet   api.FleetState   `json:"fleet"`
}

// fleetScripts is the JSON output of scripts for a fleet.
type fleetScripts struct {
	Scripts []fleetScriptRow    `json:"scripts"`
	Daemons []answer[scriptsOf] `json:"daemons"`
}

// membersAndDefinitions returns the matching daemons, of a fleet possibly none, and the fleet's definitions. Without a fleet,
// or if no server of it stores definitions, these are empty.
func (a *app) membersAndDefinitions(ctx context.Context, r *command.Run) (*members, fleet.Index, error) {
	if a.fleet.URL == "" {
		m, err := a.dialOne(ctx, r)
		return m, fleet.Index{}, err
	}
	m, err := a.fleet.findMembers(ctx)
	if err != nil {
		return nil, fleet.Index{}, err
	}
	x, err := m.n.Definitions(ctx)
	if err != nil && !errors.Is(err, fleet.ErrKeepsNothing) {
		m.close()
		return nil, fleet.Index{}, err
	}
	return m, x, nil
}

// listScripts lists a daemon's scripts. For a fleet it lists the fleet's definitions and the daemons' other scripts, by name.
func (a *app) listScripts(ctx context.Context, r *command.Run) error {
	m, x, err := a.membersAndDefinitions(ctx, r)
	if err != nil {
		return err
	}
	defer m.close()
	return askEach(ctx, r, m, func(ctx context.Context, c *remote.Client) (s scriptsOf, err error) {
		if s.Scripts, err = c.Scripts(ctx); err == nil && !m.alone {
			s.Fleet, err = c.Fleet(ctx, 0)
		}
		return s, err
	}, func(o answersOf[scriptsOf]) error {
		var rows [][]string
		if o.alone {
			l := o.Daemons[0].Answer.Scripts
			return r.Show(api.ScriptList{Scripts: l}, func() error {
				for _, s := range l {
					rows = append(rows, []string{s.Name, scriptState(s), fmt.Sprint(s.Attached), u64(s.Hits), u64(s.Written), u64(s.Lost), s.Since.Local().Format(time.DateTime), firstLine(s.Script)})
				}
				return r.Table([]string{"NAME", "STATE", "PROBES", "HITS", "WRITTEN", "LOST", "SINCE", "SCRIPT"}, rows)
			})
		}
		l := scriptRows(r, x, o)
		return r.Show(fleetScripts{Scripts: l, Daemons: o.Daemons}, func() error {
			for _, s := range l {
				from, since := "daemons", "-"
				if s.Fleet {
					from = "fleet"
				}
				if s.Since != nil {
					since = s.Since.Local().Format(time.DateTime)
				}
				rows = append(rows, []string{s.Name, from, s.state(), u64(s.Hits), u64(s.Written), u64(s.Lost), since, cmp.Or(s.Where, "-"), cmp.Or(firstLine(s.Script), s.Kind)})
			}
			return r.Table([]string{"NAME", "FROM", "STATE", "HITS", "WRITTEN", "LOST", "SINCE", "WHERE", "SCRIPT"}, rows)
		})
	})
}

// state returns in how many daemons the script runs, has ended and was rejected.
func (s *fleetScriptRow) state() string {
	out := fmt.Sprintf("%d running", s.Running)
	if s.Ended > 0 {
		out += fmt.Sprintf(", %d ended", s.Ended)
	}
	if s.Refused > 0 {
		out += fmt.Sprintf(", %d refused", s.Refused)
	}
	return out
}

// scriptRows adds up the daemons' answers, and prints a note for each definition that a daemon rejected.
func scriptRows(r *command.Run, x fleet.Index, got answersOf[scriptsOf]) []fleetScriptRow {
	rows := map[string]*fleetScriptRow{} // definitions by ID, other scripts by name
	for _, d := range x.Definitions {
		rows["id "+d.ID] = &fleetScriptRow{Name: d.Name, Kind: api.KindScript, Fleet: true, ID: d.ID, Where: d.Where, By: d.By, Since: &d.Since}
	}
	for _, a := range got.Daemons {
		if a.Answer == nil {
			continue
		}
		of := map[string]*fleetScriptRow{}
		for _, d := range a.Answer.Fleet.Definitions {
			row := rows["id "+d.ID]
			if row == nil {
				continue // withdrawn or defined while we asked
			}
			row.Kind = d.Kind
			switch row.Daemons++; d.State {
			case api.DefinitionRunning:
				row.Running++
				of[d.Name] = row
			case api.DefinitionRefused:
				row.Refused++
				if d.Error != nil {
					r.Note("%s: %s is refused: %s", command.Line(a.Daemon), command.Line(d.Name), command.Line(d.Error.Error()))
				}
			case api.DefinitionEnded:
				row.Ended++
				of[d.Name] = row
			default:
				row.Ended++
			}
		}
		for _, s := range a.Answer.Scripts {
			row := of[s.Name]
			if row == nil {
				if row = rows["name "+s.Name]; row == nil {
					row = &fleetScriptRow{Name: s.Name, Kind: api.KindScript}
					rows["name "+s.Name] = row
				}
				if row.Daemons++; s.Ended == "" {
					row.Running++
				} else {
					row.Ended++
				}
			}
			row.Hits, row.Written, row.Lost, row.Script = row.Hits+s.Hits, row.Written+s.Written, row.Lost+s.Lost, s.Script
		}
	}
	out := []fleetScriptRow{}
	for _, row := range rows {
		out = append(out, *row)
	}
	slices.SortFunc(out, func(a, b fleetScriptRow) int {
		return cmp.Or(fleet.CompareNames(a.Name, b.Name), strings.Compare(b.ID, a.ID))
	})
	return out
}

// selectHaving drops the answers that failed with that code. If all did, it returns the first.
func (o answersOf[T]) selectHaving(code api.Code) (out []answer[T]) {
	for _, a := range o.Daemons {
		var wire *api.Error
		if !errors.As(a.err, &wire) || wire.Code != code {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return o.Daemons[:min(1, len(o.Daemons))]
	}
	return out
}

// stopScript ends a script in all daemons, or what the fleet's definition of that name has started, and prints the combined end.
func (a *app) stopScript(ctx context.Context, r *command.Run) error {
	name := r.Args[0]
	m, x, err := a.membersAndDefinitions(ctx, r)
	if err != nil {
		return err
	}
	defer m.close()
	fs := newScriptStream(r, &scriptFlags{}, m.alone, r.Stdout, func(ctx context.Context, c *remote.Client) (*remote.Stream, error) { return c.StopScript(ctx, name) })
	fs.fixed = true
	if m.alone {
		return fs.runEverywhere(ctx, m, func() error { return nil })
	}
	def := x.Find(name)
	if def != nil && a.fleet.where != "" {
		return command.Usagef("--where: %s is the fleet's, and ends everywhere", name)
	}
	some := *m
	some.all = nil
	got := gather(ctx, m, func(ctx context.Context, c *remote.Client) (s scriptsOf, err error) {
		if s.Scripts, err = c.Scripts(ctx); err == nil && def != nil {
			s.Fleet, err = c.Fleet(ctx, 0)
		}
		return s, err
	})
	for i, a := range got.Daemons {
		if a.Answer != nil && a.Answer.has(name, def) {
			some.all = append(some.all, m.all[i])
		}
	}
	asked := got.verdict(r)
	if def == nil && len(some.all) == 0 {
		return cmp.Or(asked, definitionError(fleet.ErrUndefined, name))
	}
	var ended error
	if len(some.all) > 0 {
		ended = fs.runEverywhere(ctx, &some, func() error { return nil })
	}
	if def == nil {
		return cmp.Or(ended, asked)
	}
	if err := noteGone(ctx, r, m, def); err != nil {
		ended = cmp.Or(ended, err)
	}
	_, x, err = m.n.Withdraw(ctx, name)
	if err != nil && !errors.Is(err, fleet.ErrUndefined) {
		return err
	}
	if err == nil {
		err = m.stateOf(ctx, x.Revision, "").verdict(r)
	}
	r.Note("%s is withdrawn from the fleet.", name)
	return cmp.Or(ended, err, asked)
}

// noteGone names the runs of a definition that are not in the sums that stop prints because their daemons are gone. Their
// published records stay available.
func noteGone(ctx context.Context, r *command.Run, m *members, def *fleet.Definition) error {
	here := map[string]bool{}
	for _, c := range m.all {
		here[c.ID] = true
	}
	gone := map[string]fleet.Head{}
	if err := m.n.Snapshots(ctx, def.ID, func(h fleet.Head, _ []byte) error {
		if !here[h.Run] && h.Seq >= gone[h.Run].Seq && len(gone) < fleet.MaxDaemons {
			gone[h.Run] = h
		}
		return nil
	}); err != nil {
		return err
	}
	for _, h := range slices.SortedFunc(maps.Values(gone), func(a, b fleet.Head) int {
		return cmp.Or(fleet.CompareNames(a.Daemon, b.Daemon), a.Time.Compare(b.Time))
	}) {
		r.Note("%s: a run of it whose daemon is gone is not in the sums (%s, last heard of at %s); 'guestprobe fleet report %s' has it", h.Daemon, command.Plural(h.Hits, "hit"), h.Time.Local().Format(time.DateTime), def.Name)
	}
	return nil
}

// has reports whether a daemon has the script of a definition, or, if def is nil, a script of its own of that name.
func (s *scriptsOf) has(name string, def *fleet.Definition) bool {
	there := slices.ContainsFunc(s.Scripts, func(i api.ScriptInfo) bool { return i.Name == name })
	if def == nil || !there {
		return there
	}
	return slices.ContainsFunc(s.Fleet.Definitions, func(d api.FleetDefinition) bool {
		return d.ID == def.ID && d.Kind == api.KindScript && (d.State == api.DefinitionRunning || d.State == api.DefinitionEnded)
	})
}
