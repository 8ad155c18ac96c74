package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/analyze"
)

func (a *app) analyzeCmd() *cobra.Command {
	var rules string
	var top int
	cmd := &cobra.Command{
		Use:   "analyze FILE...",
		Short: "Count what of a program or kernel could be optimized",
		Long: `Count, without running anything, at how many function entries and at how many
instructions of FILE a probe could be a jump into a detour instead of an int3: by
the rules of Linux 6.12, for the way FILE was built, and by ours, without and with
calls at the end of what is displaced.

FILE is an x86-64 ELF file with the names of its functions (.symtab, else .dynsym),
or a bzImage (vmlinuz), packed with gzip, bzip2, xz, zstd or lz4, whose names are
read from its own kallsyms tables. Of a kernel the code that is gone after the boot
and what may not be probed at all are left out, and what it rewrites itself while
it runs (ftrace, static branches and calls) is refused. The code is looked at as it
is in the file: what a kernel rewrites once, at boot, is not rewritten.

--format may also be markdown.`,
		Example: `  guestprobe analyze /boot/vmlinuz
  guestprobe analyze --rule ours --top 10 /lib/x86_64-linux-gnu/libc.so.6`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("say which file: FILE...")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.wantFormat("markdown"); err != nil {
				return err
			}
			o := analyze.Options{Rules: analyze.Rules(rules)}
			switch o.Rules {
			case analyze.RulesKernel, analyze.RulesOurs, analyze.RulesBoth:
			default:
				return &usageError{fmt.Errorf("--rule %q: not kernel, ours or both", rules)}
			}
			if top < 0 {
				return &usageError{fmt.Errorf("--top %d: not a number of reasons", top)}
			}
			var rs []*analyze.Report
			for _, path := range args {
				r, err := a.analyzeFile(cmd.Context(), path, o)
				if err != nil {
					return err
				}
				rs = append(rs, r)
			}
			switch a.format {
			case "json":
				return a.printJSON(struct {
					Files []*analyze.Report `json:"files"`
				}{rs})
			case "markdown":
				for _, r := range rs {
					fmt.Fprint(a.env.Stdout, analyzeMarkdown(r, top))
				}
				return nil
			}
			return a.printAnalyze(rs, top)
		},
	}
	f := cmd.Flags()
	f.StringVar(&rules, "rule", "both", "kernel, ours or both")
	f.IntVar(&top, "top", 5, "show at most `N` reasons each; 0 for all")
	return cmd
}

// printAnalyze writes one table; with several files their names come first.
func (a *app) printAnalyze(rs []*analyze.Report, top int) error {
	heading := []string{"RULES", "PLACES", "OPTIMIZABLE", "OF", "SHARE", "WHY NOT"}
	if len(rs) > 1 {
		heading = append([]string{"FILE"}, heading...)
	}
	var rows [][]string
	for _, r := range rs {
		a.note("%s", analyzeFacts(r))
		for _, row := range analyzeRows(r, top) {
			if len(rs) > 1 {
				row = append([]string{filepath.Base(r.File)}, row...)
			}
			rows = append(rows, row)
		}
	}
	return a.table(heading, rows)
}

// progressAfter is how long a file may take before progress is shown.
const progressAfter = time.Second

// analyzeFile analyzes one file, with signs of life on a terminal.
func (a *app) analyzeFile(ctx context.Context, path string, o analyze.Options) (*analyze.Report, error) {
	shown, start := false, time.Now()
	if terminal(a.env.Stderr) {
		o.Progress = func(done, total int) {
			if time.Since(start) > progressAfter {
				shown = true
				fmt.Fprintf(a.env.Stderr, "\r%s: %d of %d functions", clean(path), done, total)
			}
		}
	}
	r, err := analyze.File(ctx, path, o)
	if shown {
		fmt.Fprint(a.env.Stderr, "\r\x1b[K")
	}
	return r, err
}

// analyzeFacts says in one line what was looked at.
func analyzeFacts(r *analyze.Report) string {
	what := r.Kind
	if r.Packing != "" {
		what += ", " + r.Packing
	}
	if r.Version != "" {
		what += ", Linux " + r.Version
	}
	if r.BuildID != "" {
		what += ", build ID " + r.BuildID
	}
	s := fmt.Sprintf("%s: %s; %d functions by %s, %d instructions in %d bytes", r.File, what, r.Count, r.Names, r.Insts, r.Text)
	if r.Broken > 0 {
		s += fmt.Sprintf("; %d functions not decodable to their end", r.Broken)
	}
	if r.Jumps > 0 {
		s += fmt.Sprintf("; %d indirect jumps, %d with their table", r.Jumps, r.Tables)
	}
	for _, c := range r.LeftOut {
		s += fmt.Sprintf("; left out: %d %s", c.Count, c.Reason)
	}
	return clean(s) + fmt.Sprintf("; %.1f s", r.Seconds)
}

// analyzePlaces are the places of a share, by name.
func analyzePlaces(s *analyze.Share) []struct {
	name string
	t    *analyze.Tally
} {
	return []struct {
		name string
		t    *analyze.Tally
	}{{"function entries", &s.Entries}, {"behind an ftrace call", &s.BehindFtrace}, {"all instructions", &s.Boundaries}}
}

// analyzeRows are the rows of a report's table.
func analyzeRows(r *analyze.Report, top int) (rows [][]string) {
	for i := range r.Rules {
		s := &r.Rules[i]
		for _, p := range analyzePlaces(s) {
			if p.t.Total > 0 {
				rows = append(rows, []string{s.Rule, p.name, fmt.Sprint(p.t.Yes), fmt.Sprint(p.t.Total), fmt.Sprintf("%.1f%%", p.t.Percent()), analyzeReasons(p.t, top)})
			}
		}
	}
	return rows
}

// analyzeReasons lists the most frequent reasons.
func analyzeReasons(t *analyze.Tally, top int) string {
	var out []string
	for i, c := range t.Reasons {
		if top > 0 && i == top {
			out = append(out, "...")
			break
		}
		out = append(out, fmt.Sprintf("%s %d", c.Reason, c.Count))
	}
	return strings.Join(out, ", ")
}

// analyzeMarkdown is a report as part of a page.
func analyzeMarkdown(r *analyze.Report, top int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | |\n|---|---|\n| file | `%s` (%s) |\n", clean(filepath.Base(r.File)), strings.Trim(r.Kind+", "+r.Packing, ", "))
	if r.Version != "" {
		fmt.Fprintf(&b, "| Linux | %s |\n", clean(r.Version))
	}
	if r.BuildID != "" {
		fmt.Fprintf(&b, "| build ID | `%s` |\n", r.BuildID)
	}
	names := r.Names
	if r.Checked > 0 {
		names += fmt.Sprintf(", %d of them confirmed by the table of exports", r.Checked)
	}
	fmt.Fprintf(&b, "| functions | %d, names from %s |\n| instructions | %d |\n", r.Count, names, r.Insts)
	for _, c := range r.LeftOut {
		fmt.Fprintf(&b, "| left out: %s | %d functions |\n", c.Reason, c.Count)
	}
	fmt.Fprintf(&b, "| indirect jumps | %d, of %d the table was found |\n", r.Jumps, r.Tables)
	fmt.Fprintf(&b, "| took | %.1f s |\n", r.Seconds)
	b.WriteString("\n| rules | places | optimizable | of | share | why not |\n|---|---|--:|--:|--:|---|\n")
	for _, row := range analyzeRows(r, top) {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteString("\n")
	return b.String()
}
