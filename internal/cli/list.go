package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// formatDefs prints definitions for attach.
const formatDefs = "defs"

func (a *app) list() command.Spec {
	var wide, quiet bool
	var columns columnList
	return command.Spec{
		Use:   "list [PROBE...]",
		Short: "List the attached probes",
		Long: `List the attached probes. The table has the columns of the kernel's kprobes/list
first: address, kind, symbol+offset and flags; then name, how the displaced
instruction is executed (PLAN), hits, misses, where the handlers run (RUNS: guest or host),
and jump, or why the site has none (OPTIMIZED). In 80 columns it is without ADDRESS and PLAN,
and with long names without others; --wide shows all, --columns those that are named,
in that order. For probes that are named a sentence says why their sites have no jump.
The kinds are

  k  a kprobe on kernel code      u  a kprobe on user code (CPL3)
  r  a function's return          j  a jprobe (attach --args, --mirror)
  w  a watch

r, j and w stand for both sorts of code; the flag [USER] tells them apart. Other
flags are [GONE], [DISABLED] and [OPTIMIZED], as in the kernel, [PENDING] where the
module is not loaded yet, [CHANGED] where the guest has changed the instruction,
[SPACE CR3], [POST], [MIRROR FUNCTION], [OVERRIDE N, M times], and [START] of what the
daemon has attached itself, by --probe, --script or its --config, or [RESTORED] of what it
has from the daemon before, by --state, or of a snapshot, by --restore.
--format kernel prints the kernel's own format, --format defs the definitions in a
form that attach and apply take; --quiet prints names only. What a definition cannot say is in comments: above one
that was attached with --filter, --mirror, --override, --post, --regs, --space or
--disabled, which to repeat; in place of a program's, and of those that --at-rets has
made with $retval. --mirror-end, --on-host, --emulate and that it is a jprobe (--args) are left out.

` + tableTemplateHelp + `

` + probeNames + ` Without a name all probes are listed.`,
		Example: `  guestprobe list --wide
  guestprobe list -o name,hits,optimized
  guestprobe list --format 'table {{.Name}}\t{{.Hits}}\t{{.Missed}}'
  guestprobe list 'io/*'`,
		Args:    command.ArgsBetween(0, -1, ""),
		Formats: []string{formatKernel, formatDefs},
		Row:     probeRow{},
		Flags: func(f *pflag.FlagSet) {
			a.fleet.addAll(f)
			f.BoolVarP(&wide, "wide", "w", false, "all columns of the table, however wide")
			f.BoolVar(&wide, "no-trunc", false, "the same, as docker calls it")
			f.BoolVarP(&quiet, "quiet", "q", false, "only the names, a line each")
			f.VarP(&columns, "columns", "o", "only these `COLUMNS` of the table, separated by commas")
		},
		Complete: a.completeProbes(),
		Run: a.askAll(func(ctx context.Context, r *command.Run, m *members) (err error) {
			if err := rejectQuiet(r); err != nil {
				return err
			}
			if r.Format == formatKernel || r.Format == formatDefs {
				if m, err = m.requireOne("--format " + r.Format); err != nil {
					return err
				}
			}
			switch {
			case wide && len(columns) > 0:
				return command.Usagef("--wide and --columns: say one of them")
			case r.Format == formatKernel && len(r.Args) > 0:
				return command.Usagef("--format kernel has every probe: it takes no name")
			case r.Format == formatKernel:
				return kernelFile(ctx, r, m.all[0].Client, "list")
			case wide:
				columns = probeColumns
			}
			lines := quiet || r.Templated() || r.Format == formatDefs
			armed := true
			return askEach(ctx, r, m, func(ctx context.Context, c *remote.Client) (l api.ProbeList, err error) {
				if l.Probes, err = c.Probes(ctx, r.Args...); err == nil && m.alone && !lines {
					armed, err = c.Armed(ctx)
				}
				return l, err
			}, func(o answersOf[api.ProbeList]) error {
				ps, _ := probesOf{o}.probes()
				switch {
				case quiet:
					return printNames(r, ps, !m.alone)
				case r.Format == formatDefs:
					return printDefs(r, ps)
				}
				if err := (probesOf{o}).print(r, columns); err != nil || !m.alone || lines || r.WantsJSON() {
					return err
				}
				if len(r.Args) > 0 {
					noteUnoptimized(r, ps)
				}
				if !armed {
					r.Note("All probes are disarmed; 'guestprobe arm' arms them.")
				}
				return nil
			})
		}),
	}
}

// printDefs prints the probes as definitions for attach.
func printDefs(r *command.Run, ps []api.Probe) error {
	for _, p := range ps {
		for _, line := range defLines(p) {
			if err := r.Print("%s\n", command.Clean(line)); err != nil {
				return err
			}
		}
	}
	return nil
}

// defLines returns a probe's definition for attach. A comment line precedes it if the probe was attached with
// flags, and replaces it if attach has no definition for the probe.
func defLines(p api.Probe) []string {
	switch without := definitionFlags(p); {
	case p.Program != nil:
		return []string{fmt.Sprintf("# %s: a program, of section %s", p.Name, p.Program.Section)}
	case strings.HasPrefix(p.Def, "p") && strings.Contains(p.Def, "$retval"):
		return []string{fmt.Sprintf("# %s: of an r definition with --at-rets: %s", p.Name, p.Def)}
	case len(without) > 0:
		return []string{fmt.Sprintf("# %s: attached with %s", p.Name, strings.Join(without, " ")), p.Def}
	}
	return []string{p.Def}
}

// definitionFlags returns the flags that p was attached with, as far as they affect
// its events.
func definitionFlags(p api.Probe) (out []string) {
	if p.Filter != "" {
		out = append(out, fmt.Sprintf("--filter %q", p.Filter))
	}
	if p.Mirror != "" {
		out = append(out, "--mirror "+p.Mirror, fmt.Sprintf("--mirror-stack %d", p.MirrorStack))
	}
	if p.Post {
		out = append(out, "--post")
	}
	if p.Regs {
		out = append(out, "--regs")
	}
	if p.Stack {
		out = append(out, "--stack")
	}
	if p.Space != 0 {
		out = append(out, fmt.Sprintf("--space %#x", uint64(p.Space)))
	}
	if o := p.Override; o != nil {
		out = append(out, overrideAgain(o)...)
	}
	if !p.Enabled {
		out = append(out, "--disabled")
	}
	return out
}
