package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// detachScript leaves a script running in the daemon.
func detachScript(ctx context.Context, r *command.Run, c *remote.Client, s *scriptFlags) error {
	i, err := c.DetachScript(ctx, s.req)
	if err != nil {
		return err
	}
	r.Note("Attached %s; 'guestprobe stop %s' ends it", command.Plural(i.Attached, "probe"), i.Name)
	for _, text := range i.Warnings {
		r.Note("%s", command.Clean(text))
	}
	if s.verbose && i.Begin != nil {
		return notePlaces(r, r.Stdout, *i.Begin)
	}
	return nil
}

func (a *app) scripts() command.Spec {
	return command.Spec{
		Use:   "scripts",
		Short: "List the scripts that run without a client",
		Long: `List the scripts that 'guestprobe run --detach NAME' has left running: their probes, hits
of these, records that they have written and those that were lost, and since when they run.
A script that has ended by itself, by exit() or with its probes or the guest, stays in the
list with the reason until 'guestprobe stop NAME' prints its end.

With --fleet it lists what the fleet is to do (FROM is fleet), in how many daemons that runs and where it is
refused, with the sums of their counts, and the scripts that daemons have besides.`,
		Example: "  guestprobe scripts\n  guestprobe scripts --format json",
		Args:    command.Between(0, 0, ""),
		Run: a.orMany(show(a, func(ctx context.Context, _ *command.Run, c *remote.Client) (api.ScriptList, error) {
			ss, err := c.Scripts(ctx)
			return api.ScriptList{Scripts: ss}, err
		}, func(r *command.Run, l api.ScriptList) error {
			var rows [][]string
			for _, s := range l.Scripts {
				rows = append(rows, []string{s.Name, scriptState(s), fmt.Sprint(s.Attached), fmt.Sprint(s.Hits), fmt.Sprint(s.Written), fmt.Sprint(s.Lost), s.Since.Local().Format(time.DateTime), firstLine(s.Script)})
			}
			return r.Table([]string{"NAME", "STATE", "PROBES", "HITS", "WRITTEN", "LOST", "SINCE", "SCRIPT"}, rows)
		}), a.scriptsMany),
	}
}

// scriptState says whether a script runs, or why it has ended.
func scriptState(s api.ScriptInfo) string {
	switch {
	case s.Ended == "" && s.Origin == api.OriginStart:
		return "running since start"
	case s.Ended == "" && s.Origin != "":
		return "running, " + s.Origin
	case s.Ended == "":
		return "running"
	case s.Ended == api.EndExit && s.Code != nil:
		return fmt.Sprintf("exit(%d)", *s.Code)
	}
	return strings.ReplaceAll(s.Ended, "_", " ")
}

// firstLine is the first line of a script, and not more than fits.
func firstLine(script string) string {
	line, _, more := strings.Cut(strings.TrimSpace(script), "\n")
	const most = 60
	if rs := []rune(line); len(rs) > most {
		line, more = string(rs[:most]), true
	}
	if more {
		line += "..."
	}
	return line
}

func (a *app) script() command.Spec {
	var followed bool
	var heat heatFlags
	one := func(ctx context.Context, r *command.Run, c *remote.Client) error {
		name := r.Args[0]
		if err := heat.check(r); err != nil {
			return err
		}
		if followed && (heat.heat || r.Format == formatSVG) {
			return command.Usagef("--follow prints what the script prints: it goes with neither --heat nor --format svg")
		}
		if heat.heat {
			return heat.poll(ctx, r, name, func(ctx context.Context) (map[string][]chart.Bucket, bool, error) {
				s, err := c.Script(ctx, name, api.ScriptJSON)
				if err != nil || s.Maps == nil {
					return nil, false, err
				}
				all, err := printedHists(r, *s.Maps)
				return all, true, err
			})
		}
		if followed {
			return printScript(ctx, ctx, r, c, r.Stdout, func(life context.Context) (*remote.Stream, error) { return c.FollowScript(life, name) }, nil)
		}
		format := api.ScriptText
		if r.WantsJSON() || r.Format == formatSVG {
			format = api.ScriptJSON
		}
		s, err := c.Script(ctx, name, format)
		if err != nil {
			return err
		}
		if s.Maps == nil {
			r.Note("%s has ended (%s); 'guestprobe stop %s' prints its end.", name, scriptState(s), name)
			return nil
		}
		if r.Format == formatSVG {
			all, err := printedHists(r, *s.Maps)
			if err != nil {
				return err
			}
			return chart.Picture(r.Stdout, name, pictures(all))
		}
		return printGuestText(r, *s.Maps)
	}
	return command.Spec{
		Use:   "script [flags] NAME",
		Short: "Show the maps of a script that runs without a client",
		Long: `Show the maps of a script as they are now, as it would print them at its end; or with
--follow what it has printed so far, of which the daemon keeps the last 4 MiB, and what it
prints, until it ends. Ctrl-C ends that, and leaves the script running. --format json prints
as bpftrace -f json does, and with --follow the script's own format decides.

With --fleet the maps are those of all daemons that have the script, as one (docs/fleet.md).

` + chartHelp + ` Histograms that the script clears have less in their columns.`,
		Example:  "  guestprobe script reads\n  guestprobe script --follow reads",
		Args:     command.Between(1, 1, ""),
		Formats:  []string{formatSVG},
		Complete: first(a.completeScripts()),
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&followed, "follow", "f", false, "what it prints, until it ends")
			heat.declare(f)
		},
		Run: a.orMany(a.ask(one), func(ctx context.Context, r *command.Run) error {
			m, err := a.fleet.members(ctx)
			if err != nil {
				return err
			}
			defer m.close()
			if followed || heat.heat || r.Format == formatSVG {
				c, err := m.only("--follow, --heat and --format svg")
				if err != nil {
					return err
				}
				return one(ctx, r, c.all[0].Client)
			}
			return scriptMany(ctx, r, m, r.Args[0])
		}),
	}
}

func (a *app) stop() command.Spec {
	return command.Spec{
		Use:   "stop NAME",
		Short: "End a script that runs without a client",
		Long: `End a script: its probes stop, END runs, and all maps are printed, as when Ctrl-C ends
'guestprobe run'. Of one that has ended by itself what it has printed then is printed.
The name is free for another script afterwards.

With --fleet the script ends in all daemons that have it, and its maps are printed as one. What was left to the
fleet is withdrawn from it: a daemon that is away now ends it when it is back.`,
		Example:  "  guestprobe stop reads",
		Args:     command.Between(1, 1, ""),
		Complete: first(a.completeScripts()),
		Run: a.orMany(a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			return printScript(ctx, ctx, r, c, r.Stdout, func(life context.Context) (*remote.Stream, error) { return c.StopScript(life, r.Args[0]) }, nil)
		}), func(ctx context.Context, r *command.Run) error { return a.stopMany(ctx, r, r.Args[0]) }),
	}
}

// completeScripts completes the names of scripts.
func (a *app) completeScripts() command.Completion {
	return a.complete(func(ctx context.Context, c *remote.Client, _ string) (names []string) {
		ss, _ := c.Scripts(ctx)
		for _, s := range ss {
			names = append(names, s.Name)
		}
		return names
	})
}
