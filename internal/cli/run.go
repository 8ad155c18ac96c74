package cli

import (
	"context"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/scriptfiles"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// maxScript is the maximum size of a script, in bytes. The daemon has the same limit.
const maxScript = 1 << 20

func (a *app) run() command.Spec {
	var sf scriptFlags
	var list, check bool
	var files []string
	return command.Spec{
		Use:   "run [flags] {-e SCRIPT | FILE | -l [PATTERN]} [ARG...]",
		Short: "Run a script in bpftrace's language",
		Long: `Run a script in bpftrace's language on the guest: probes, conditions, variables, maps and
their aggregations, printf. Its output goes to standard output, as bpftrace prints it;
remarks and warnings go to standard error. docs/scripts.md describes the language and lists
the parts of bpftrace's that are missing. FILE - is standard input; each ARG is $1 and so on in the
script, and --NAME=VALUE, after --, is the result of getopt("NAME") in the script. Files that the script imports are
read from its folder, or from the current one with -e and for standard input.

Scripts are compiled to eBPF programs, which run in the guest, without an exit, where the
probe's site and the script allow it; otherwise on the host. -v shows for each probe where
it runs, and the reason if that is the host.

A script ends with Ctrl-C, when it calls exit(), when the guest ends, when its probes are
detached, or, if it has only BEGIN and END, by itself. Then its probes stop, END runs, and
all maps are printed. A second Ctrl-C exits at once.

With --format json each line is an object as bpftrace -f json prints.

--detach NAME leaves the script running in the daemon. 'guestprobe scripts' lists such
scripts, 'guestprobe script NAME' shows one and its maps, and 'guestprobe stop NAME' ends it
and prints its final output. NAME is a letter or _, then letters, digits and _ . -.

--duration ends the script after that time, which begins when its probes are attached. --interval prints all maps and clears them, as print(@m); clear(@m)
in an interval probe do, with an empty line after each time.

` + chartHelp + `

With --fleet the script runs in the guests of all selected daemons. Each line of output has its daemon's
name, and lines are in order of time; with --format json objects have the name as "daemon". Maps are
printed as one: counts, sums, averages, extremes, stats, histograms and series of all guests together; for
other values each daemon's value, with its name before the key. The same holds for each --interval. If a
daemon goes away, guestprobe reports it and keeps its last counts in the sums; if one joins, the script runs there too.
With --detach NAME the fleet keeps the script: daemons that --where selects run it, including daemons that join later, until
'guestprobe stop NAME' with --fleet; 'guestprobe fleet report NAME' shows their output and counts (docs/fleet.md).

--check compiles the script for the guest and does not run it. Warnings go to standard error. An error
is reported with its position, and the exit status is then 2.

-l lists where a script may have probes: all functions of the guest that can be probed, or
the functions that a pattern such as 'kprobe:vfs_*' matches. -lv adds the types and names of their
parameters, and the type of the result, if the guest's image has them (BTF, DWARF). The names after
watchpoint: are variables, after interval: and profile: units of time, and after vm: events,
and the reasons why vCPUs leave the guest. 'struct NAME', 'union NAME' and 'enum NAME' list types of the
guest by their names, which may be patterns, and -lv prints their definitions. -l with a script, as FILE or
after -e, lists the places of its probes, with patterns expanded.`,
		Example: `  guestprobe run -e 'kprobe:vfs_read { @[arg2] = count(); } interval:s:1 { exit(); }'
  guestprobe run -v -e 'kprobe:vfs_* { @[func] = hist(arg2); } interval:s:1 { exit(); }'
  guestprobe run latency.bt 1
  guestprobe run --check -e 'kprobe:vfs_read { @[arg2] = count(); }'
  guestprobe run --interval 1s --duration 3s -e 'kprobe:vfs_* { @[func] = count(); }'
  guestprobe run --heat --interval 200ms --duration 3s -e 'kprobe:vfs_read { @ = hist(arg2); }'
  guestprobe run --detach reads -e 'kprobe:vfs_read { @ = hist(arg2); }'
  guestprobe run -lv 'kprobe:vfs_*'
  guestprobe run -lv 'struct task_struct'`,
		Args:    command.ArgsBetween(0, -1, ""),
		Cures:   curesOfRun,
		Formats: []string{formatSVG},
		Files:   []string{"file", "output"},
		Flags: func(f *pflag.FlagSet) {
			a.fleet.addAll(f)
			f.StringVarP(&sf.req.Script, "execute", "e", "", "run this `SCRIPT`")
			f.BoolVar(&check, "check", false, "compile the script, and do not run it")
			f.BoolVarP(&list, "list", "l", false, "list where probes may be; with -v also the types of arguments")
			f.BoolVar(&sf.req.Unsafe, "unsafe", false, "the script may change what the guest does: override, return of a number, setreg, poke")
			f.BoolVar(&sf.req.Emulate, "emulate", false, "watchpoints protect pages: every access to these costs an exit")
			fileFlag(f, &files)
			sf.declare(f)
		},
		Complete: a.completePlaces(),
		Run: a.fleet.leaveOrRun(&sf, &files, a.askAll(func(ctx context.Context, r *command.Run, m *members) (err error) {
			if list || check || sf.heat || r.Given("detach") || r.Format == formatSVG {
				if m, err = m.requireOne("-l, --check, --detach, --heat and --format svg"); err != nil {
					return err
				}
			}
			ofScript := list && (r.Given("execute") || len(r.Args) > 0 && r.Only == nil && isFile(r.Args[0]))
			if !list || ofScript {
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
			case list && check:
				return command.Usagef("-l lists places: it cannot be used with --check")
			case check:
				return sf.checkOnly(ctx, r, m.all[0].Client)
			case !list:
				return sf.run(ctx, r, m)
			case r.Given("output") || r.Given("detach") || len(r.Args) > 1 && !ofScript:
				return command.Usagef("-l takes one pattern, or a script, and runs nothing")
			case ofScript:
				return sf.listScript(ctx, r, m.all[0].Client)
			}
			return listPlaces(ctx, r, m.all[0].Client, strings.Join(r.Args, ""), sf.verbose)
		})),
	}
}

// isFile reports whether there is a file with a name, which is then not a pattern for -l.
func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && !info.IsDir()
}

// checkOnly has the daemon compile the script, and prints its number of probes.
func (s *scriptFlags) checkOnly(ctx context.Context, r *command.Run, c *remote.Client) error {
	for _, f := range []string{"output", "detach", "duration", "interval", "heat"} {
		if r.Given(f) {
			return command.Usagef("--check runs nothing: it cannot be used with --%s", f)
		}
	}
	if err := s.check(r); err != nil {
		return err
	}
	checked, err := c.Check(ctx, api.Check{Script: &s.req})
	if err != nil {
		return err
	}
	return r.Show(checked, func() error {
		for _, w := range checked.Warnings {
			r.Note("%s", command.Clean(w))
		}
		return r.Print("%s\n", command.Plural(checked.Probes, "probe"))
	})
}

// read reads the script and its arguments from the command line.
func (s *scriptFlags) read(ctx context.Context, r *command.Run) (err error) {
	if s.req.Args = r.Args; r.Given("execute") {
		const name = "stdin" // in error messages
		if err := isText(name, s.req.Script); err != nil {
			return err
		}
		if r.Only != nil && len(script.Imports(s.req.Script)) > 0 {
			return command.Usagef("there are no files here: the script cannot import any")
		}
		s.req.Files, err = scriptfiles.Read(name, s.req.Script)
		return err
	}
	if len(r.Args) == 0 {
		return command.Usagef("say what to run: -e SCRIPT, or FILE")
	}
	if strings.Contains(r.Args[0], "{") {
		if _, err := os.Stat(r.Args[0]); err != nil {
			return command.Usagef("%q is not a file: to run a script from the command line, put it after -e", r.Args[0])
		}
	}
	if r.Only != nil {
		return command.Usagef("there are no files here: write -e SCRIPT")
	}
	s.req.Name, s.req.Args = r.Args[0], r.Args[1:]
	if s.req.Script, err = readScript(ctx, r, r.Args[0]); err != nil {
		return err
	}
	s.req.Files, err = scriptfiles.Read(r.Args[0], s.req.Script)
	return err
}

// readScript reads a script from a file.
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

// isText returns an error for a script that is not valid UTF-8: a request could not carry it unchanged.
func isText(name, script string) error {
	if strings.HasPrefix(script, "\x7fELF") {
		return command.Usagef("%s is an ELF file, and a script is wanted here; a guest is named by --guest, an object by 'guestprobe bpf load'", name)
	}
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
