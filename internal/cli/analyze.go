package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/analyze"
	"github.com/guestprobe/guestprobe/internal/command"
)

// formatMarkdown is a report in Markdown, to paste into a page.
const formatMarkdown = "markdown"

func analyzeCommand() command.Spec {
	var rules string
	var top int
	return command.Spec{
		Local: true,
		Use:   "analyze FILE...",
		Short: "Count the places of a program or kernel that can be optimized",
		Long: `Count the function entries and the instructions of FILE at which a probe could be a
jump into a detour instead of an int3. Nothing is run. The counts follow the rules of
Linux 6.12, for the way FILE was built, and guestprobe's own rules, without and with calls
at the end of the displaced code.

FILE is an x86-64 ELF file with the names of its functions (.symtab, else .dynsym),
or a bzImage (vmlinuz), packed with gzip, bzip2, xz, zstd, lz4 or lzo, whose names
are read from its own kallsyms tables. For a kernel, the report leaves out code that is
freed after boot and code that cannot be probed, and rejects places that the kernel rewrites
while it runs (ftrace, static branches and calls). The code is analyzed as it is in the file,
without the changes that a kernel makes once at boot.

--format may also be markdown.`,
		Example: `  guestprobe analyze /boot/vmlinuz
  guestprobe analyze --rule ours --top 10 /lib/x86_64-linux-gnu/libc.so.6`,
		Args:    command.ArgsBetween(1, -1, "say which file: FILE..."),
		Formats: []string{formatMarkdown},
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&rules, "rule", "both", "`whose` rules: kernel, ours or both")
			f.IntVar(&top, "top", 5, "show at most `N` reasons each; 0: all")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			o := analyze.Options{Rules: analyze.Rules(rules)}
			switch o.Rules {
			case analyze.RulesKernel, analyze.RulesOurs, analyze.RulesBoth:
			default:
				return command.Usagef("--rule %q: not kernel, ours or both", rules)
			}
			if top < 0 {
				return command.Usagef("--top %d: not a number of reasons", top)
			}
			var rs []*analyze.Report
			for _, path := range r.Args {
				rep, err := analyzeFile(ctx, r, path, o)
				if err != nil {
					return err
				}
				rs = append(rs, rep)
			}
			if r.Format != formatMarkdown {
				return r.Show(struct {
					Files []*analyze.Report `json:"files"`
				}{rs}, func() error { return printAnalyze(r, rs, top) })
			}
			for _, rep := range rs {
				if err := r.Print("%s", analyzeMarkdown(rep, top)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// printAnalyze prints the table of each report, headed by the file's name if there are several.
func printAnalyze(run *command.Run, rs []*analyze.Report, top int) error {
	heading := []string{"RULES", "PLACES", "OPTIMIZABLE", "OF", "SHARE", "WHY NOT"}
	if len(rs) > 1 {
		heading = append([]string{"FILE"}, heading...)
	}
	var rows [][]string
	for _, r := range rs {
		run.Note("%s", analyzeFacts(r))
		for _, row := range analyzeRows(r, top) {
			if len(rs) > 1 {
				row = append([]string{filepath.Base(r.File)}, row...)
			}
			rows = append(rows, row)
		}
	}
	return run.Table(heading, rows)
}

// progressAfter is how long a file may take before progress is shown.
const progressAfter = time.Second

// analyzeFile analyzes one file. If that takes long it shows its progress on a terminal.
func analyzeFile(ctx context.Context, run *command.Run, path string, o analyze.Options) (*analyze.Report, error) {
	shown, start := false, time.Now()
	if command.Terminal(run.Stderr) {
		o.Progress = func(done, total int) {
			if time.Since(start) > progressAfter {
				shown = true
				fmt.Fprintf(run.Stderr, "\r%s: %d of %d functions", command.Clean(path), done, total)
			}
		}
	}
	r, err := analyze.File(ctx, path, o)
	if shown {
		fmt.Fprint(run.Stderr, "\r\x1b[K")
	}
	return r, err
}

// analyzeFacts returns a summary of the analysis in one line.
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
	s := fmt.Sprintf("%s: %s; %s by %s, %s in %s", r.File, what, command.Plural(r.Count, "function"), r.Names, command.Plural(r.Insts, "instruction"), command.Plural(r.Text, "byte"))
	if r.Broken > 0 {
		s += fmt.Sprintf("; %s not decodable to the end", command.Plural(r.Broken, "function"))
	}
	if r.Jumps > 0 {
		s += fmt.Sprintf("; %s, %d with a table", command.Plural(r.Jumps, "indirect jump"), r.Tables)
	}
	for _, c := range r.LeftOut {
		s += fmt.Sprintf("; left out: %d %s", c.Count, c.Reason)
	}
	return command.Clean(s) + fmt.Sprintf("; %.1f s", r.Seconds)
}

// analyzePlaces returns the places of a share with their names.
func analyzePlaces(s *analyze.Share) []struct {
	name string
	t    *analyze.Tally
} {
	return []struct {
		name string
		t    *analyze.Tally
	}{{"function entries", &s.Entries}, {"after an ftrace call", &s.BehindFtrace}, {"all instructions", &s.Boundaries}}
}

// analyzeRows returns the rows of a report's table.
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

// analyzeReasons returns the most frequent reasons.
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

// analyzeMarkdown returns a report in Markdown.
func analyzeMarkdown(r *analyze.Report, top int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | |\n|---|---|\n| file | `%s` (%s) |\n", command.Clean(filepath.Base(r.File)), strings.Trim(r.Kind+", "+r.Packing, ", "))
	if r.Version != "" {
		fmt.Fprintf(&b, "| Linux | %s |\n", command.Clean(r.Version))
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
		fmt.Fprintf(&b, "| left out: %s | %s |\n", c.Reason, command.Plural(c.Count, "function"))
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
