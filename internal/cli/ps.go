package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
)

// localList is the JSON output of ps.
type localList struct {
	Daemons []localRow `json:"daemons"`
}

func (a *app) ps() command.Spec {
	quiet := false
	return command.Spec{
		Use:   "ps",
		Short: "List the daemons on this machine",
		Long: `List the daemons of this user and of the system: daemons with sockets in $XDG_RUNTIME_DIR/guestprobed and
/run/guestprobed, or in the folders that $` + socketsEnv + ` names, separated by colons; and the daemon of --socket
or $GUESTPROBE_SOCKET. NAME is the name of the socket without .sock, or its whole path if two have the same name.
Other commands take it: 'guestprobe -s NAME list'. Without -s they use the only running daemon.

STATE is the guest's state, or the reason why it is not known:

  hangs    a process has the socket, but has not answered for 5 seconds ($` + answerTimeEnv + `): it is stopped, or has no time
  refused  the socket is another user's, or its daemon rejects the connection
  gone     the daemon was killed; the next one at this socket removes the file
  waits    a service manager listens, and starts the daemon when the first client connects; ps does not connect
  failed   the answer is not from a guestprobed of a compatible version

'guestprobe --all list', and stat, trace and run with --all, ask all daemons that answer. 'guestprobe fleet ls' lists
daemons on other machines.

` + tableTemplateHelp,
		Example: `  guestprobe ps
  guestprobe ps --format 'table {{.Name}}\t{{.Guest}}\t{{.Image}}'
  while read -r s; do guestprobe --socket "$s" guest status; done < <(guestprobe ps -q)`,
		Args:        command.ArgsBetween(0, 0, ""),
		ThisMachine: true,
		Row:         localRow{},
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&quiet, "quiet", "q", false, "only the sockets of daemons that answer, a line each")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			switch {
			case a.core != "" || a.vm.Name != "":
				return command.Usagef("ps lists the daemons of this machine: leave out --core and --vm")
			case a.fleet.URL != "":
				return command.Usagef("ps is of this machine: 'guestprobe fleet ls' lists the daemons of --fleet")
			}
			if _, err := a.fleet.check(); err != nil {
				return err
			}
			if err := rejectQuiet(r); err != nil {
				return err
			}
			rows, err := a.locals(ctx, r.Getenv, r.Stderr)
			if err != nil {
				return err
			}
			switch {
			case quiet:
				for _, row := range rows {
					if row.State == localAnswers {
						if err := r.Print("%s\n", command.Clean(row.Socket)); err != nil {
							return err
						}
					}
				}
				return nil
			case r.Templated():
				return command.PrintRows(r, rows)
			}
			return r.Show(localList{append([]localRow{}, rows...)}, func() error { return printLocals(r, rows) })
		},
	}
}

// printLocals prints the table of daemons, and their errors.
func printLocals(r *command.Run, rows []localRow) error {
	var table [][]string
	for _, row := range rows {
		state, pid, probes, uptime := row.State, "-", "-", "-"
		if row.PID > 0 {
			pid = strconv.Itoa(row.PID)
		}
		if row.State == localAnswers {
			state, probes = row.Guest, strconv.Itoa(row.Probes)
			uptime = (time.Duration(row.UptimeMS) * time.Millisecond).Truncate(time.Second).String()
		}
		table = append(table, []string{row.Name, state, pid, probes, uptime, row.Socket})
	}
	if err := r.Table([]string{"NAME", "STATE", "PID", "PROBES", "UPTIME", "SOCKET"}, table); err != nil {
		return err
	}
	for _, row := range rows {
		if row.err != nil {
			r.Note("%s: %s", row.Name, command.Clean(row.err.Error()))
		}
	}
	if len(rows) == 0 {
		r.Note("There is no socket in %s. A daemon that was started with --socket elsewhere is found by 'guestprobe --socket PATH ps', or by $GUESTPROBE_SOCKET.", strings.Join(socketFolders(r.Getenv), " and "))
	}
	return nil
}
