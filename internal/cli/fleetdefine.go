package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// errNotYet reports that a daemon has not yet received the fleet's current definitions.
var errNotYet = errors.New("it does not know of it yet, and does it once it does")

// define gives the fleet a definition. All daemons that match --where run it, including daemons that join later.
func (ff *fleetFlags) define(ctx context.Context, r *command.Run, name string, what api.Definition) error {
	if len(name) > api.MaxScriptName || !api.ScriptName.MatchString(name) {
		return command.Usagef("%q: want a letter or _, then letters, digits and _ . -, at most %d in all", name, api.MaxScriptName)
	}
	body, err := json.Marshal(what)
	if err != nil {
		return err
	}
	m, err := ff.findMembers(ctx)
	if err != nil {
		return err
	}
	defer m.close()
	host, _ := os.Hostname()
	def, x, err := m.n.Define(ctx, fleet.Definition{Name: name, Where: m.where.String(), By: fmt.Sprintf("uid %d on %s", os.Getuid(), host)}, body)
	if err != nil {
		return definitionError(err, name)
	}
	o := m.stateOf(ctx, x.Revision, def.ID)
	refused := 0
	for _, d := range o.Daemons {
		var wire *api.Error
		if d.err != nil && errors.As(d.err, &wire) {
			refused++
		}
	}
	verdict, ends := o.verdict(r), "stop"
	if what.Script == nil {
		ends = "detach"
	}
	if refused > 0 && refused == len(o.Daemons) {
		// Daemons that join later would reject it too.
		if _, _, err := m.n.Withdraw(context.WithoutCancel(ctx), name); err != nil {
			return errors.Join(verdict, err)
		}
		return verdict
	}
	switch n := len(o.Daemons) - refused; {
	case len(o.Daemons) == 0:
		r.Note("No daemon is there that it means; those that come do it. 'guestprobe %s %s' ends it.", ends, name)
	default:
		r.Note("In %s, and in those that come; 'guestprobe %s %s' ends it.", command.Plural(n, "daemon"), ends, name)
	}
	return verdict
}

// leaveOrRun gives the script to the fleet with --fleet and --detach, and calls run otherwise.
func (ff *fleetFlags) leaveOrRun(s *scriptFlags, files *[]string, run func(context.Context, *command.Run) error) func(context.Context, *command.Run) error {
	return func(ctx context.Context, r *command.Run) error {
		if ff.URL == "" || !r.Given("detach") || r.Given("list") {
			return run(ctx, r)
		}
		if len(*files) > 0 {
			return command.Usagef("--file: a script that is left to the fleet has none")
		}
		return ff.defineScript(ctx, r, s)
	}
}

// defineScript gives the fleet a script.
func (ff *fleetFlags) defineScript(ctx context.Context, r *command.Run, s *scriptFlags) error {
	if err := s.read(ctx, r); err != nil {
		return err
	}
	if err := s.check(r); err != nil {
		return err
	}
	if s.heat || r.Format == formatSVG || s.every != 0 || s.output != "" || s.duration != 0 || s.verbose {
		return command.Usagef("--detach leaves the script to the fleet: it goes with none of --verbose, --interval, --duration, --heat, --output and --format svg")
	}
	name := s.req.Detach
	s.req.Detach = ""
	return ff.define(ctx, r, name, api.Definition{Script: &s.req})
}

// definitionError converts errors about definitions to the ones that a daemon returns for its scripts.
func definitionError(err error, name string) error {
	switch {
	case errors.Is(err, fleet.ErrDefined):
		return &api.Error{Code: api.CodeNameTaken, Errno: "EEXIST", Message: fmt.Sprintf("the fleet has %q already", name), Detail: "'guestprobe stop " + name + "' ends it"}
	case errors.Is(err, fleet.ErrUndefined):
		return &api.Error{Code: api.CodeNoScript, Errno: "ENOENT", Message: fmt.Sprintf("the fleet has no %q", name), Detail: "'guestprobe scripts' lists the existing ones"}
	}
	return err
}

// stateOf waits until the daemons know that revision and returns their state of a definition. A daemon that rejected the
// definition, or does not know the revision in time, has an error. With id "" the definition was withdrawn.
func (m *members) stateOf(ctx context.Context, revision uint64, id string) answersOf[api.FleetState] {
	return gather(ctx, m, func(ctx context.Context, c *remote.Client) (api.FleetState, error) {
		st, err := c.Fleet(ctx, revision)
		if err != nil {
			return st, err
		}
		if st.Revision < revision {
			return st, errNotYet
		}
		for _, d := range st.Definitions {
			if d.ID == id && d.Error != nil {
				return st, d.Error
			}
		}
		return st, nil
	})
}

// keepOrRun gives the probes to the fleet with --keep, and calls run otherwise.
func (ff *fleetFlags) keepOrRun(name *string, p *probeFlags, run func(context.Context, *command.Run) error) func(context.Context, *command.Run) error {
	return func(ctx context.Context, r *command.Run) error {
		if !r.Given("keep") {
			return run(ctx, r)
		}
		return ff.keepProbes(ctx, r, *name, p)
	}
}

// keepProbes gives the fleet a definition of probes.
func (ff *fleetFlags) keepProbes(ctx context.Context, r *command.Run, name string, p *probeFlags) error {
	switch {
	case ff.URL == "":
		return command.Usagef("--keep: goes with --fleet; guestprobed --state keeps the probes of one daemon")
	case r.Given("program") || len(p.files) > 0:
		return command.Usagef("--keep leaves definitions to the fleet: it goes with neither --program nor --file")
	case len(r.Args) == 0:
		return command.Usagef("say what to probe: DEFINITION...")
	}
	for _, d := range r.Args {
		if c := event.ReadCommand(d); c.IsBlank() || c.IsDeletion() {
			return command.Usagef("--keep: %q is no definition of a probe", d)
		}
	}
	specs, err := p.specs(r, r.Args, true)
	if err != nil {
		return err
	}
	return ff.define(ctx, r, name, api.Definition{Probes: specs})
}

// findKeptProbes returns the fleet's definitions of probes with these names. It returns an error if only some names have one.
func findKeptProbes(ctx context.Context, m *members, x fleet.Index, names []string) (defs []fleet.Definition, err error) {
	for _, name := range names {
		def := x.Find(name)
		if def == nil {
			continue
		}
		body, err := m.n.Body(ctx, *def)
		if err != nil {
			return nil, err
		}
		var what api.Definition
		if err := json.Unmarshal(body, &what); err == nil && what.Script == nil {
			defs = append(defs, *def)
		}
	}
	if len(defs) > 0 && len(defs) < len(names) {
		return nil, command.Usagef("%s is left to the fleet, and not all of the others are: detach them apart", defs[0].Name)
	}
	return defs, nil
}

// endKeptOrRun ends the fleet's definitions of probes if the arguments name such definitions, and calls run otherwise.
func (a *app) endKeptOrRun(run func(context.Context, *command.Run) error) func(context.Context, *command.Run) error {
	return func(ctx context.Context, r *command.Run) error {
		if a.fleet.URL == "" || len(r.Args) == 0 {
			return run(ctx, r)
		}
		m, x, err := a.membersAndDefinitions(ctx, r)
		if err != nil {
			return err
		}
		defer m.close()
		defs, err := findKeptProbes(ctx, m, x, r.Args)
		if err != nil {
			return err
		}
		if len(defs) == 0 {
			return run(ctx, r)
		}
		if a.fleet.where != "" {
			return command.Usagef("--where: %s is the fleet's, and ends everywhere", defs[0].Name)
		}
		return detachKept(ctx, r, m, defs)
	}
}

// detachKept detaches the probes of definitions, prints their final counts, and withdraws the definitions.
func detachKept(ctx context.Context, r *command.Run, m *members, defs []fleet.Definition) error {
	failed := doAndPrint(ctx, r, m, func(ctx context.Context, c *remote.Client) ([]api.Probe, error) {
		st, err := c.Fleet(ctx, 0)
		if err != nil {
			return nil, err
		}
		var ids []string
		for _, d := range st.Definitions {
			if slices.ContainsFunc(defs, func(def fleet.Definition) bool { return def.ID == d.ID }) {
				for _, id := range d.Probes {
					ids = append(ids, u64(id))
				}
			}
		}
		return c.DetachMany(ctx, ids...)
	})
	for _, def := range defs {
		_, x, err := m.n.Withdraw(ctx, def.Name)
		if err != nil && !errors.Is(err, fleet.ErrUndefined) {
			return errors.Join(failed, err)
		}
		if err == nil {
			if err := m.stateOf(ctx, x.Revision, "").verdict(r); failed == nil {
				failed = err
			}
		}
		r.Note("%s is withdrawn from the fleet.", def.Name)
	}
	return failed
}
