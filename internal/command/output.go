package command

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// Run is one run of a command: its arguments, and its output. Data goes to
// standard output, notes go to standard error.
type Run struct {
	Env
	Args   []string
	Format string // table, json, one of the Spec's Formats, or a template

	flags     *pflag.FlagSet
	template  *rowTemplate // nil: Format is not a template
	color     string
	noHeaders bool
}

// Values of --color.
const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

// Given reports whether a flag was set on the command line.
func (r *Run) Given(flag string) bool { return r.flags.Changed(flag) }

// ForEachGiven calls f for each flag that was set on the command line.
func (r *Run) ForEachGiven(f func(*pflag.Flag)) { r.flags.Visit(f) }

// WantsJSON reports whether to print JSON.
func (r *Run) WantsJSON() bool { return r.Format == formatJSON }

// Show prints v as JSON if that was requested, and calls table otherwise.
func (r *Run) Show(v any, table func() error) error {
	if !r.WantsJSON() {
		return table()
	}
	enc := json.NewEncoder(r.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Print writes data to standard output.
func (r *Run) Print(format string, args ...any) error {
	_, err := fmt.Fprintf(r.Stdout, format, args...)
	return err
}

// Note writes a line for the user to standard error.
func (r *Run) Note(format string, args ...any) { fmt.Fprintf(r.Stderr, format+"\n", args...) }

// Headings reports whether to print headings.
func (r *Run) Headings() bool { return !r.noHeaders }

// Table prints a table with a heading.
func (r *Run) Table(heading []string, rows [][]string) error {
	return r.table(r.Stdout, heading, rows)
}

// TableBetween prints a table with extra lines. before has the line to print before each row,
// or "".
func (r *Run) TableBetween(heading []string, rows [][]string, before []string) error {
	var b strings.Builder
	if err := r.table(&b, heading, rows); err != nil {
		return err
	}
	row := 0
	if r.Headings() {
		row--
	}
	for line := range strings.Lines(b.String()) {
		if row >= 0 && before[row] != "" {
			line = Line(before[row]) + "\n" + line
		}
		row++
		if _, err := io.WriteString(r.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

func (r *Run) table(w io.Writer, heading []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if r.Headings() {
		fmt.Fprintln(tw, strings.Join(heading, "\t"))
	}
	for _, row := range rows {
		for i := range row {
			row[i] = Line(row[i])
		}
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return tw.Flush()
}

// inCell escapes line breaks and tabs in a table cell.
var inCell = strings.NewReplacer("\n", `\n`, "\t", `\t`)

// Clean makes text from the guest safe for a terminal: it replaces everything that
// could move the cursor or change colors with \xNN. It keeps newlines and
// tabs.
func Clean(s string) string {
	ok := true
	for _, r := range s {
		ok = ok && (r == '\n' || r == '\t' || r != utf8.RuneError && unicode.IsPrint(r))
	}
	if ok {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1):
			b.WriteString(s[i : i+n])
		default:
			for _, c := range []byte(s[i : i+n]) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		}
		i += n
	}
	return b.String()
}

// Line is Clean for a part of a line: it also escapes newlines and tabs, as in C.
func Line(s string) string {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' {
			return Clean(inCell.Replace(s))
		}
	}
	return s
}

// Plural formats a number of things: "1 probe", "2 probes".
func Plural[N int | int64 | uint64](n N, one string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, one)
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// Sum adds counts. The result saturates at the maximum, because counts from another machine cannot be trusted.
func Sum(counts ...uint64) (sum uint64) {
	for _, n := range counts {
		if sum += n; sum < n {
			return math.MaxUint64
		}
	}
	return sum
}

// IsOrAre returns the verb for a number of things.
func IsOrAre[N int | int64 | uint64](n N) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// Colors reports whether to color output to w.
func (r *Run) Colors(w io.Writer) bool {
	switch r.color {
	case colorAlways:
		return true
	case colorNever:
		return false
	}
	return r.Getenv("NO_COLOR") == "" && r.Getenv("TERM") != "dumb" && Terminal(w)
}

// Terminal reports whether w is a character device that is not /dev/null.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	if err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(st, null)
}

// Paint returns text in a color of the terminal's palette (ECMA-48, SGR).
func Paint(on bool, sgr, text string) string {
	if !on {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}

// Colors.
const (
	Dim  = "2"
	Bold = "1"
	Name = "36"
)
