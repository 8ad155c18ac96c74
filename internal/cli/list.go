package cli

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
	"github.com/guestprobe/guestprobe/internal/command"
)

// formatDefs is the form of list that attach takes.
const formatDefs = "defs"

func (a *app) list() command.Spec {
	var wide bool
	var columns columnList
	return command.Spec{
		Use:   "list [PROBE...]",
		Short: "List the attached probes",
		Long: `List the attached probes. The table has the columns of the kernel's kprobes/list
first: address, kind, symbol+offset and flags; then name, how the displaced
instruction is executed (PLAN), hits, misses, where the handlers run, and whether the
site has a jump or why not (OPTIMIZED). In 80 columns it is without ADDRESS and PLAN,
and with long names without others; --wide shows all, --columns those that are named,
in that order. For probes that are named a sentence says why their sites have no jump.
The kinds are

  k  a kprobe on kernel code      u  a kprobe on user code (CPL3)
  r  a function's return          j  a jprobe (attach --args, --mirror)
  w  a watch

r, j and w stand for both sorts of code; the flag [USER] tells them apart. Other
flags are [GONE], [DISABLED] and [OPTIMIZED], as in the kernel, [CHANGED] where the
guest has changed the instruction, [SPACE CR3], [POST] and [MIRROR FUNCTION].
--format kernel prints the kernel's own format, --format defs the definitions in a
form that attach takes.

` + probeNames + ` Without a name all are meant.`,
		Example: `  guestprobe list --wide
  guestprobe list -o name,hits,optimized
  guestprobe list 'io/*'`,
		Args:    command.Between(0, -1, ""),
		Formats: []string{formatKernel, formatDefs},
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&wide, "wide", "w", false, "all columns of the table, however wide")
			f.VarP(&columns, "columns", "o", "only these `COLUMNS` of the table, with commas between")
		},
		Complete: a.completeProbes(),
		Run: a.ask(func(ctx context.Context, r *command.Run, c *client.Client) error {
			switch {
			case wide && len(columns) > 0:
				return command.Usagef("--wide and --columns: say one of them")
			case r.Format == formatKernel && len(r.Args) > 0:
				return command.Usagef("--format kernel has every probe: it takes no name")
			case r.Format == formatKernel:
				return kernelFile(ctx, r, c, "list")
			}
			ps, err := c.Probes(ctx, r.Args...)
			if err != nil {
				return err
			}
			if r.Format == formatDefs {
				for _, p := range ps {
					if err := r.Print("%s\n", command.Clean(defLine(p))); err != nil {
						return err
					}
				}
				return nil
			}
			armed, err := c.Armed(ctx)
			if err != nil {
				return err
			}
			if wide {
				columns = probeColumns
			}
			if err := printProbes(r, ps, columns...); err != nil {
				return err
			}
			if len(r.Args) > 0 && !r.WantsJSON() {
				noteUnoptimized(r, ps)
			}
			if !armed && !r.WantsJSON() {
				r.Note("All probes are disarmed; 'guestprobe arm' arms them.")
			}
			return nil
		}),
	}
}

// defLine is a probe's definition as attach takes it; what that has no form for
// is in a comment.
func defLine(p api.Probe) string {
	switch {
	case p.Program != nil:
		return fmt.Sprintf("# %s: a program, of section %s", p.Name, p.Program.Section)
	case p.Filter != "":
		return fmt.Sprintf("%s # --filter %q", p.Def, p.Filter)
	}
	return p.Def
}
