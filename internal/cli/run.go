package cli

import (
	"context"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
)

// maxScript bounds a script, in bytes, as the daemon does.
const maxScript = 1 << 20

func (a *app) run() command.Spec {
	var sf scriptFlags
	var list bool
	var files []string
	return command.Spec{
		Use:   "run [flags] {-e SCRIPT | FILE | -l [PATTERN]} [ARG...]",
		Short: "Run a script in bpftrace's language",
		Long: `Run a script in bpftrace's language at the guest: probes, conditions, variables, maps and
their aggregations, printf. What it prints goes to standard output, as bpftrace prints it;
remarks and warnings go to standard error. docs/scripts.md has the language, and what of
bpftrace's is not there. FILE - is standard input; each ARG is $1 and so on in the script.

Scripts are compiled to eBPF programs, which run in the guest, without an exit, where the
probe's site and the script allow it; otherwise on the host. -v says of each probe where it
runs, and if on the host why.

A script ends with Ctrl-C, when it calls exit(), when the guest ends or somebody detaches
its probes, or, if it has only BEGIN and END, by itself. Then its probes stop, END runs, and
all maps are printed. A second Ctrl-C does not wait for anything.

With --format json each line is an object as bpftrace -f json prints.

--detach NAME leaves the script running in the daemon. 'guestprobe scripts' lists such
scripts, 'guestprobe script NAME' shows one and its maps, and 'guestprobe stop NAME' ends it
and prints what it prints at its end. NAME is a letter or _, then letters, digits and _ . -.

--duration ends the script after that time. --interval prints all maps and clears them, as print(@m); clear(@m) in an interval do, with
an empty line behind each time.

` + chartHelp + `

With --fleet the script runs in the guests of all daemons that are meant. What it prints are lines with
their daemon's name, in the order of time; with --format json objects have it as "daemon". Maps are
printed as one: counts, sums, averages, extremes, stats, histograms and series of all guests together; of
other values each daemon's, with its name before the key. With --interval it is so for each interval. A
daemon that goes away is told, and its last counts are in the sums; in one that comes the script runs, too.
With --detach NAME the script is the fleet's: daemons run it that are meant by --where, also those that come later, until
'guestprobe stop NAME' with --fleet; 'guestprobe fleet report NAME' has what they have printed and counted (docs/fleet.md).

-l lists where a script may have probes: all functions of the guest that can be probed, or
those that a pattern as 'kprobe:vfs_*' matches, and -lv with each the types and names of its
parameters, and of what it returns, where the guest's image says so (BTF, DWARF). Behind
watchpoint: there are variables, behind interval: and profile: units of time, and behind
vm: events, and the reasons why vCPUs leave the guest.`,
		Example: `  guestprobe run -e 'kprobe:vfs_read { @[arg2] = count(); } interval:s:1 { exit(); }'
  guestprobe run -v -e 'kprobe:vfs_* { @[func] = hist(arg2); } interval:s:1 { exit(); }'
  guestprobe run latency.bt 1
  guestprobe run --interval 1s --duration 3s -e 'kprobe:vfs_* { @[func] = count(); }'
  guestprobe run --heat --interval 200ms --duration 3s -e 'kprobe:vfs_read { @ = hist(arg2); }'
  guestprobe run --detach reads -e 'kprobe:vfs_read { @ = hist(arg2); }'
  guestprobe run -lv 'kprobe:vfs_*'`,
		Args:    command.Between(0, -1, ""),
		Formats: []string{formatSVG},
		Files:   []string{"file", "output"},
		Flags: func(f *pflag.FlagSet) {
			a.fleet.addAll(f)
			f.StringVarP(&sf.req.Script, "execute", "e", "", "run this `SCRIPT`")
			f.BoolVarP(&list, "list", "l", false, "list where probes may be; with -v also the types of arguments")
			f.BoolVar(&sf.req.Unsafe, "unsafe", false, "the script may change what the guest does: override, return of a number, setreg, poke")
			f.BoolVar(&sf.req.Emulate, "emulate", false, "watchpoints protect pages: every access to these costs an exit")
			fileFlag(f, &files)
			sf.declare(f)
		},
		Complete: a.completePlaces(),
		Run: a.orLeft(&sf, &files, a.askAll(func(ctx context.Context, r *command.Run, m *members) (err error) {
			if list || sf.heat || r.Given("detach") || r.Format == formatSVG {
				if m, err = m.only("-l, --detach, --heat and --format svg"); err != nil {
					return err
				}
			}
			if !list {
				if err := sf.read(ctx, r); err != nil {
					return err
				}
			}
			give := func(ctx context.Context, c *remote.Client) (struct{}, error) {
				return struct{}{}, giveFiles(ctx, r, c, files)
			}
			if err := gather(ctx, m, give).verdict(r); err != nil {
				return err
			}
			switch {
			case !list:
				return sf.run(ctx, r, m)
			case r.Given("execute") || r.Given("output") || r.Given("detach") || len(r.Args) > 1:
				return command.Usagef("-l takes a pattern, and nothing to run")
			}
			return listPlaces(ctx, r, m.all[0].Client, strings.Join(r.Args, ""), sf.verbose)
		})),
	}
}

// read takes the script and its arguments from the command line.
func (s *scriptFlags) read(ctx context.Context, r *command.Run) (err error) {
	if s.req.Args = r.Args; r.Given("execute") {
		return isText("stdin", s.req.Script) // its name in all errors
	}
	if len(r.Args) == 0 {
		return command.Usagef("say what to run: -e SCRIPT, or FILE")
	}
	if r.Only != nil {
		return command.Usagef("there are no files here: write -e SCRIPT")
	}
	s.req.Name, s.req.Args = r.Args[0], r.Args[1:]
	s.req.Script, err = readScript(ctx, r, r.Args[0])
	return err
}

// readScript reads the file of a script.
func readScript(ctx context.Context, r *command.Run, path string) (string, error) {
	var in io.Reader
	if path == "-" {
		in = r.Stdin
	}
	b, err := files.Input(ctx, in, path, maxScript)
	if err == nil {
		err = isText(path, string(b))
	}
	return string(b), err
}

// isText refuses a script with bytes that are no UTF-8, which a request cannot carry as they are.
func isText(name, script string) error {
	line, col := 1, 1
	for i := 0; i < len(script); {
		c, n := utf8.DecodeRuneInString(script[i:])
		switch {
		case c == utf8.RuneError && n == 1:
			return command.Usagef("%s:%d:%d-%d: ERROR: byte %#02x is no UTF-8: write \\x%02x in a string", name, line, col, col+1, script[i], script[i])
		case c == '\n':
			line, col = line+1, 1
		default:
			col += n
		}
		i += n
	}
	return nil
}
