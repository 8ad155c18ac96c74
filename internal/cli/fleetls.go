package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
)

func (a *app) fleetCommands() command.Spec {
	return command.Spec{
		Use:   "fleet",
		Short: "List daemons on many machines, and run the server that connects them",
		Sub:   []command.Spec{a.fleet.lsCommand(), a.fleet.reportCommand(), a.fleet.serveCommand(), a.fleet.initCommand()},
	}
}

// fleetRow is a daemon of a fleet, as JSON and templates show it.
type fleetRow struct {
	Name     string            `json:"name"`
	ID       string            `json:"id"`
	Host     string            `json:"host"`
	Image    string            `json:"image"`
	Version  string            `json:"version"`
	Labels   map[string]string `json:"labels"`
	AnswerMS float64           `json:"answerMs"`
	Unkept   *fleet.Unkept     `json:"unkept,omitempty"` // set if no server keeps the daemon's published records
}

// state says whether a server keeps the daemon's published records.
func (r fleetRow) state() string {
	if u := r.Unkept; u != nil {
		return "unkept since " + u.Since.Local().Format(time.DateTime)
	}
	return "ok"
}

func rowOf(d fleet.Daemon) fleetRow {
	own := maps.Clone(d.Labels)
	maps.DeleteFunc(own, func(name, _ string) bool { return slices.Contains(fleet.Own, name) })
	var unkept *fleet.Unkept
	if d.State != nil {
		unkept = d.State.Unkept
	}
	return fleetRow{
		Unkept: unkept,
		Name:   d.Name, ID: d.ID, Host: d.Labels["host"], Image: d.Labels["image"], Version: d.Labels["version"], Labels: own,
		AnswerMS: float64(d.Since.Round(10*time.Microsecond)) / float64(time.Millisecond),
	}
}

// labels returns the labels that the daemon's user has set, or "-".
func (r fleetRow) labels() string {
	if len(r.Labels) == 0 {
		return "-"
	}
	return fleet.Labels(r.Labels).String()
}

// fleetList is the JSON output of fleet ls.
type fleetList struct {
	Daemons []fleetRow `json:"daemons"`
}

func (ff *fleetFlags) lsCommand() command.Spec {
	quiet := false
	return command.Spec{
		Use:   "ls",
		Short: "List the daemons of a fleet",
		Long: `List the daemons that 'guestprobed --fleet URL' has brought to a fleet, with their labels and the
time that each took to answer; with --where only the daemons that it selects. A daemon reports its name
(--fleet-name), its host, the image of its guest and its version; in --where these are
name, host, image and version. If several daemons have one name, part of each daemon's number
follows the name. docs/fleet.md has more.

` + tableTemplateHelp,
		Example: `  guestprobe fleet ls --fleet nats://farm:4222
  guestprobe fleet ls --fleet nats://farm:4222 --where 'kernel=6.1.*,rack!=2'
  guestprobe fleet ls --fleet nats://farm:4222 --expect 3 --format 'table {{.Name}}\t{{.Host}}'`,
		Args: command.ArgsBetween(0, 0, ""),
		Row:  fleetRow{},
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&quiet, "quiet", "q", false, "only the names, a line each")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			if ff.URL == "" {
				return command.Usagef("say which fleet: --fleet URL")
			}
			if err := rejectQuiet(r); err != nil {
				return err
			}
			n, ds, err := ff.findWith(ctx, true)
			if err != nil {
				return err
			}
			defer n.Close()
			l := fleetList{Daemons: []fleetRow{}}
			for _, d := range ds {
				l.Daemons = append(l.Daemons, rowOf(d))
			}
			switch {
			case quiet:
				for _, d := range l.Daemons {
					if err := r.Print("%s\n", command.Clean(d.Name)); err != nil {
						return err
					}
				}
				return nil
			case r.Templated():
				return command.PrintRows(r, l.Daemons)
			}
			for _, u := range unkeptDaemons(ds) {
				r.Note("%s", u.String())
			}
			return r.Show(l, func() error {
				var rows [][]string
				for _, d := range l.Daemons {
					rows = append(rows, []string{d.Name, d.Host, d.Image, d.Version, fmt.Sprintf("%.1fms", d.AnswerMS), d.state(), d.labels()})
				}
				return r.Table([]string{"NAME", "HOST", "IMAGE", "VERSION", "ANSWER", "STATE", "LABELS"}, rows)
			})
		},
	}
}

func (ff *fleetFlags) serveCommand() command.Spec {
	var o fleet.Serve
	return command.Spec{
		Use:   "serve",
		Short: "Run the server that connects the daemons of a fleet",
		Long: `Run the server that connects the daemons of a fleet and their clients: a NATS server, on
loopback unless --listen says otherwise, with JetStream in --store. Clients need the password
of --password-file; --fleet-creds of guestprobed and guestprobe takes that file. Anyone who has it
can control all guests, as users of the daemons can. Beyond this machine TLS is required
(--tls-cert, --tls-key; --fleet-ca for clients).

The server is guestprobe-fleetd, beside guestprobe or in PATH: it is a program of its own
because it would make guestprobe a third larger. Any other NATS server of version 2.10 or
later does as well; for a cluster of several give it their configuration (--config). The server runs until Ctrl-C.`,
		Example: `  guestprobe fleet serve
  guestprobe fleet serve --listen 0.0.0.0:4222 --tls-cert farm.pem --tls-key farm.key
  guestprobed --fleet nats://127.0.0.1:4222 --fleet-creds ~/.local/state/guestprobe/fleet/creds --label kernel=6.1`,
		Args:        command.ArgsBetween(0, 0, ""),
		Plain:       true,
		ThisMachine: true,
		Files:       fleet.Files,
		Flags:       o.Flags,
		Run: func(_ context.Context, r *command.Run) error {
			if ff.URL != "" {
				return command.Usagef("--fleet is where the fleet is; --listen says where it is to be")
			}
			if err := o.Check(r.Given, os.Geteuid() == 0, r.Getenv); err != nil {
				return command.Usagef("%w", err)
			}
			bin, err := command.Find(fleet.Server)
			if err != nil {
				return err
			}
			args := []string{fleet.Server}
			r.ForEachGiven(func(f *pflag.Flag) { args = append(args, "--"+f.Name+"="+f.Value.String()) })
			if err := syscall.Exec(bin, args, os.Environ()); err != nil {
				return fmt.Errorf("start %s: %w", strings.Join(args, " "), err)
			}
			return nil
		},
	}
}
