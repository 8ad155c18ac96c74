package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// detachScript starts a script that keeps running in the daemon.
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
		Long: `List the scripts that 'guestprobe run --detach NAME' has left running: their probes,
their hits, the records that they have written and lost, and their start time.
A script that has ended by itself, by exit() or with its probes or the guest, stays in the
list with the reason until 'guestprobe stop NAME' prints its end.

With --fleet it lists the scripts kept by the fleet (FROM is fleet), with the number of daemons that run or
reject each and the sums of their counts, and other scripts of the daemons.`,
		Example: "  guestprobe scripts\n  guestprobe scripts --format json",
		Args:    command.ArgsBetween(0, 0, ""),
		Run:     a.listScripts,
	}
}

// scriptState returns whether a script is running, or why it has ended.
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

// firstLine returns the first line of a script, shortened if it is long.
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
	return command.Spec{
		Use:   "script [flags] NAME",
		Short: "Show the maps of a script that runs without a client",
		Long: `Show the current maps of a script, as it would print them at its end, and the names of the files
that it imports. With --follow print
its output so far, of which the daemon keeps the last 4 MiB, and new output until the
script ends. Ctrl-C ends this, and leaves the script running. --format json prints
as bpftrace -f json does; with --follow the script's own format is used.

With --fleet the maps of all daemons that have the script are printed as one (docs/fleet.md).

` + chartHelp + ` Histograms that the script clears show lower counts.`,
		Example:  "  guestprobe script reads\n  guestprobe script --follow reads",
		Args:     command.ArgsBetween(1, 1, ""),
		Formats:  []string{formatSVG},
		Complete: completeFirst(a.completeScripts()),
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&followed, "follow", "f", false, "print its output until it ends")
			heat.declare(f)
		},
		Run: a.askFleet(func(ctx context.Context, r *command.Run, m *members) (err error) {
			name := r.Args[0]
			if followed || heat.heat || r.Format == formatSVG {
				if m, err = m.requireOne("--follow, --heat and --format svg"); err != nil {
					return err
				}
			}
			if err := heat.check(r); err != nil {
				return err
			}
			switch {
			case followed && (heat.heat || r.Format == formatSVG):
				return command.Usagef("--follow prints what the script prints: it goes with neither --heat nor --format svg")
			case heat.heat:
				return heat.poll(ctx, r, name, func(ctx context.Context) (map[string][]chart.Bucket, bool, error) {
					s, err := m.all[0].Script(ctx, name, api.ScriptJSON)
					if err != nil || s.Maps == nil {
						return nil, false, err
					}
					all, err := parseHists(r, *s.Maps)
					return all, true, err
				})
			case followed:
				fs := newScriptStream(r, &scriptFlags{}, true, r.Stdout, func(ctx context.Context, c *remote.Client) (*remote.Stream, error) { return c.FollowScript(ctx, name) })
				return fs.runEverywhere(ctx, m, func() error { return nil })
			}
			return printScriptMaps(ctx, r, m, name)
		}),
	}
}

// printScriptMaps prints the current maps of a script, added up if there are several daemons.
func printScriptMaps(ctx context.Context, r *command.Run, m *members, name string) error {
	format := api.ScriptData
	switch {
	case m.alone && (r.WantsJSON() || r.Format == formatSVG):
		format = api.ScriptJSON
	case m.alone:
		format = api.ScriptText
	}
	o := gather(ctx, m, func(ctx context.Context, c *remote.Client) (api.ScriptInfo, error) {
		return c.Script(ctx, name, format)
	})
	o.Daemons = o.selectHaving(api.CodeNoScript)
	var total script.Total
	for _, a := range o.Daemons {
		s := a.Answer
		if s != nil && m.alone {
			noteFiles(r, s)
		}
		switch {
		case s == nil:
			continue
		case s.Maps == nil && s.States == nil:
			r.Note("%s%s has ended (%s); 'guestprobe stop %s' prints its end.", m.prefix(a.Daemon), name, scriptState(*s), name)
			continue
		case m.alone && r.Format == formatSVG:
			all, err := parseHists(r, *s.Maps)
			if err != nil {
				return err
			}
			return chart.Picture(r.Stdout, name, pictures(all))
		case m.alone:
			return printGuestText(r, *s.Maps)
		case s.Left > 0:
			r.Note("%s%s of maps %s left out: there are too many", m.prefix(a.Daemon), command.Plural(s.Left, "element"), command.IsOrAre(s.Left))
		}
		var states []script.MapState
		if err := json.Unmarshal(s.States, &states); err != nil {
			return fmt.Errorf("%s: %w: %w", a.Daemon, remote.ErrProtocol, err)
		}
		for _, p := range total.Add(a.Daemon, states) {
			noteOf(r, a.Daemon, p)
		}
	}
	var err error
	total.Print(r.WantsJSON(), func(text string) { err = cmp.Or(err, printGuestText(r, text)) })
	return cmp.Or(err, o.verdict(r))
}

// noteFiles says which files a script imports.
func noteFiles(r *command.Run, s *api.ScriptInfo) {
	var names []string
	for _, f := range s.Files {
		names = append(names, command.Line(f.Name))
	}
	if len(names) > 0 {
		r.Note("%s imports %s.", s.Name, strings.Join(names, ", "))
	}
}

func (a *app) stop() command.Spec {
	return command.Spec{
		Use:   "stop NAME",
		Short: "End a script that runs without a client",
		Long: `End a script: its probes stop, END runs, and all maps are printed, as when Ctrl-C ends
'guestprobe run'. If the script has already ended by itself, its final output is printed.
Afterwards the name is free for another script.

With --fleet the script ends in all daemons that have it, and its maps are printed as one. The fleet no longer
keeps the script: a daemon that is away now ends it when it is back.`,
		Example:  "  guestprobe stop reads",
		Args:     command.ArgsBetween(1, 1, ""),
		Complete: completeFirst(a.completeScripts()),
		Run:      a.stopScript,
	}
}

// completeScripts completes names of scripts.
func (a *app) completeScripts() command.Completion {
	return a.complete(func(ctx context.Context, c *remote.Client, _ string) (names []string) {
		ss, _ := c.Scripts(ctx)
		for _, s := range ss {
			names = append(names, s.Name)
		}
		return names
	})
}
