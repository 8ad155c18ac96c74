package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
)

func (a *app) listCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the attached probes",
		Long: `List the attached probes. The table has the columns of the kernel's kprobes/list
first: address, kind, symbol+offset and flags; then name, how the displaced
instruction is executed, hits and misses. The kinds are

  k  a kprobe on kernel code      u  a kprobe on user code (CPL3)
  r  a function's return          j  a jprobe (attach --args, --mirror)
  w  a watch

r, j and w stand for both sorts of code; the flag [USER] tells them apart. Other
flags are [GONE], [DISABLED] and [OPTIMIZED], as in the kernel, [SPACE CR3], [POST] and
[MIRROR FUNCTION]. --format kernel prints the kernel's own format, --format defs the definitions in a form that
attach takes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.wantFormat("kernel", "defs"); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			if a.format == "kernel" {
				text, err := c.KernelList(cmd.Context(), "list")
				if err != nil {
					return err
				}
				_, err = io.WriteString(a.env.Stdout, clean(text))
				return err
			}
			ps, err := c.Probes(cmd.Context())
			if err != nil {
				return err
			}
			if a.format == "defs" {
				for _, p := range ps {
					fmt.Fprintln(a.env.Stdout, clean(defLine(p)))
				}
				return nil
			}
			armed, err := c.Armed(cmd.Context())
			if err != nil {
				return err
			}
			return a.printProbes(ps, &armed)
		},
	}
}

// printProbes prints probes as list does. With armed it also remarks that
// everything is disarmed.
func (a *app) printProbes(ps []api.Probe, armed *bool) error {
	if a.format == "json" {
		return a.printJSON(api.ProbeList{Probes: ps})
	}
	var rows [][]string
	for _, p := range ps {
		rows = append(rows, []string{
			fmt.Sprintf("%016x", uint64(p.Addr)), p.Kind, place(p), flags(p), p.Name, p.Plan,
			strconv.FormatUint(p.Stats.Hits, 10), strconv.FormatUint(p.Stats.Missed, 10),
			runs(p), optimized(p),
		})
	}
	if err := a.table([]string{"ADDRESS", "K", "SYMBOL+OFFSET", "FLAGS", "NAME", "PLAN", "HITS", "MISSED", "RUNS", "OPTIMIZED"}, rows); err != nil {
		return err
	}
	if armed != nil && !*armed {
		a.note("All probes are disarmed; 'guestprobe arm' arms them.")
	}
	return nil
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
		f = append(f, fmt.Sprintf("[MIRROR %s]", clean(p.Mirror)))
	}
	if p.Post {
		f = append(f, "[POST]")
	}
	if len(f) == 0 {
		return "-"
	}
	return strings.Join(f, "")
}
