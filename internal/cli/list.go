package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
	"github.com/guestprobe/guestprobe/internal/command"
)

// formatDefs is the form of list that attach takes.
const formatDefs = "defs"

func (a *app) list() command.Spec {
	return command.Spec{
		Use:   "list",
		Short: "List the attached probes",
		Long: `List the attached probes. The table has the columns of the kernel's kprobes/list
first: address, kind, symbol+offset and flags; then name, how the displaced
instruction is executed, hits and misses. The kinds are

  k  a kprobe on kernel code      u  a kprobe on user code (CPL3)
  r  a function's return          j  a jprobe (attach --args, --mirror)
  w  a watch

r, j and w stand for both sorts of code; the flag [USER] tells them apart. Other
flags are [GONE], [DISABLED] and [OPTIMIZED], as in the kernel, [CHANGED] where the
guest has changed the instruction, [SPACE CR3], [POST] and [MIRROR FUNCTION].
--format kernel prints the kernel's own format, --format defs the definitions in a
form that attach takes.`,
		Formats: []string{formatKernel, formatDefs},
		Run: a.ask(func(ctx context.Context, r *command.Run, c *client.Client) error {
			if r.Format == formatKernel {
				return kernelFile(ctx, r, c, "list")
			}
			ps, err := c.Probes(ctx)
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
			if err := printProbes(r, ps); err != nil {
				return err
			}
			if !armed && !r.WantsJSON() {
				r.Note("All probes are disarmed; 'guestprobe arm' arms them.")
			}
			return nil
		}),
	}
}

// printProbes prints probes as list does.
func printProbes(r *command.Run, ps []api.Probe) error {
	return r.Show(api.ProbeList{Probes: ps}, func() error {
		var rows [][]string
		for _, p := range ps {
			rows = append(rows, []string{
				fmt.Sprintf("%016x", uint64(p.Addr)), p.Kind, place(p), flags(p), p.Name, p.Plan,
				fmt.Sprint(p.Stats.Hits), fmt.Sprint(p.Stats.Missed), runs(p), optimized(p),
			})
		}
		if err := r.Table([]string{"ADDRESS", "K", "SYMBOL+OFFSET", "FLAGS", "NAME", "PLAN", "HITS", "MISSED", "RUNS", "OPTIMIZED"}, rows); err != nil {
			return err
		}
		return underWayTable(ps).below(r)
	})
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

// runs is where the handlers of a probe run, or a dash where there is no choice.
func runs(p api.Probe) string {
	if p.Runs == "" {
		return "-"
	}
	return p.Runs
}

// place is where a probe is, as the kernel's list has it.
func place(p api.Probe) string {
	if p.Symbol == "" {
		return p.Addr.String()
	}
	return fmt.Sprintf("%s+0x%x", p.Symbol, p.Offset)
}

// flags are those of the kernel's list, or a dash for none.
func flags(p api.Probe) string {
	var f []string
	switch {
	case p.Gone:
		f = append(f, "[GONE]")
	case !p.Enabled:
		f = append(f, "[DISABLED]")
	case p.Changed:
		f = append(f, "[CHANGED]")
	case p.Optimized:
		f = append(f, "[OPTIMIZED]")
	}
	if p.Space != 0 {
		f = append(f, fmt.Sprintf("[SPACE %#x]", uint64(p.Space)))
	}
	if p.User && p.Kind != "u" {
		f = append(f, "[USER]")
	}
	if p.Mirror != "" {
		f = append(f, fmt.Sprintf("[MIRROR %s]", command.Clean(p.Mirror)))
	}
	if p.Post {
		f = append(f, "[POST]")
	}
	if len(f) == 0 {
		return "-"
	}
	return strings.Join(f, "")
}
