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
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// errNotYet is for a daemon that does not follow the fleet's definitions just now.
var errNotYet = errors.New("it does not know of it yet, and does it once it does")

// define leaves something to the fleet: the daemons that --where chooses do it, also those that come later.
func (a *app) define(ctx context.Context, r *command.Run, name string, what api.Definition) error {
	if len(name) > api.MaxScriptName || !api.ScriptName.MatchString(name) {
		return command.Usagef("%q: want a letter or _, then letters, digits and _ . -, at most %d in all", name, api.MaxScriptName)
	}
	body, err := json.Marshal(what)
	if err != nil {
		return err
	}
	m, err := a.fleet.anyMembers(ctx)
	if err != nil {
		return err
	}
	defer m.close()
	host, _ := os.Hostname()
	def, x, err := m.n.Define(ctx, fleet.Definition{Name: name, Where: m.where.String(), By: fmt.Sprintf("uid %d on %s", os.Getuid(), host)}, body)
	if err != nil {
		return undefined(err, name)
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
		// It is of no use to daemons that come later either.
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

// orLeft leaves a script to the fleet where --fleet and --detach say so; otherwise run does what it does.
func (a *app) orLeft(s *scriptFlags, files *[]string, run func(context.Context, *command.Run) error) func(context.Context, *command.Run) error {
	return func(ctx context.Context, r *command.Run) error {
		if a.fleet.URL == "" || !r.Given("detach") || r.Given("list") {
			return run(ctx, r)
		}
		if len(*files) > 0 {
			return command.Usagef("--file: a script that is left to the fleet has none")
		}
		return a.defineScript(ctx, r, s)
	}
}

// defineScript leaves a script to the fleet.
func (a *app) defineScript(ctx context.Context, r *command.Run, s *scriptFlags) error {
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
	return a.define(ctx, r, name, api.Definition{Script: &s.req})
}

// undefined makes errors about definitions those of scripts of one daemon.
func undefined(err error, name string) error {
	switch {
	case errors.Is(err, fleet.ErrDefined):
		return &api.Error{Code: api.CodeNameTaken, Errno: "EEXIST", Message: fmt.Sprintf("the fleet has %q already", name), Detail: "'guestprobe stop " + name + "' ends it"}
	case errors.Is(err, fleet.ErrUndefined):
		return &api.Error{Code: api.CodeNoScript, Errno: "ENOENT", Message: fmt.Sprintf("the fleet has no %q", name), Detail: "'guestprobe scripts' lists those there are"}
	}
	return err
}

// stateOf asks the daemons that are there what has become of a definition, once they know that revision. One that does not
// have it is refused or late; with id "" it is to be gone.
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

// orKeep leaves probes to the fleet where --keep says so; otherwise run does what it does.
func (a *app) orKeep(name *string, p *probeFlags, run func(context.Context, *command.Run) error) func(context.Context, *command.Run) error {
	return func(ctx context.Context, r *command.Run) error {
		if !r.Given("keep") {
			return run(ctx, r)
		}
		return a.keepProbes(ctx, r, *name, p)
	}
}

// keepProbes leaves probes to the fleet.
func (a *app) keepProbes(ctx context.Context, r *command.Run, name string, p *probeFlags) error {
	switch {
	case a.fleet.URL == "":
		return command.Usagef("--keep: goes with --fleet; guestprobed --state keeps the probes of one daemon")
	case r.Given("program") || len(p.files) > 0:
		return command.Usagef("--keep leaves definitions to the fleet: it goes with neither --program nor --file")
	case len(r.Args) == 0:
		return command.Usagef("say what to probe: DEFINITION...")
	}
	for _, d := range r.Args {
		if k := letter(d); k == '-' || k == '#' || k == 0 {
			return command.Usagef("--keep: %q is no definition of a probe", d)
		}
	}
	specs, err := p.specs(r, r.Args, true)
	if err != nil {
		return err
	}
	return a.define(ctx, r, name, api.Definition{Probes: specs})
}

// keptProbes returns the fleet's definitions of probes that go by these names: those of all names, or none.
func keptProbes(ctx context.Context, m *members, x fleet.Index, names []string) (defs []fleet.Definition, err error) {
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

// orKept ends what is left to the fleet where all arguments are names of that; otherwise run does what it does.
func (a *app) orKept(run func(context.Context, *command.Run) error) func(context.Context, *command.Run) error {
	return func(ctx context.Context, r *command.Run) error {
		if a.fleet.URL == "" || len(r.Args) == 0 {
			return run(ctx, r)
		}
		m, x, err := a.membersAndDefinitions(ctx, r)
		if err != nil {
			return err
		}
		defer m.close()
		defs, err := keptProbes(ctx, m, x, r.Args)
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

// detachKept detaches what definitions have attached, shows the final counts, and withdraws them.
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
