package cli

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// column is one column of the table of probes.
type column struct {
	heading string
	cell    func(api.Probe) string
}

// probeColumns are all columns of the table of probes, in order.
var probeColumns = columnList{
	{"ADDRESS", func(p api.Probe) string { return fmt.Sprintf("%016x", uint64(p.Addr)) }},
	{"K", func(p api.Probe) string { return p.Kind }},
	{"SYMBOL+OFFSET", place},
	{"FLAGS", flags},
	{"NAME", func(p api.Probe) string { return p.Name }},
	{"PLAN", func(p api.Probe) string { return p.Plan }},
	{"HITS", func(p api.Probe) string { return u64(p.Stats.Hits) }},
	{"MISSED", func(p api.Probe) string { return u64(p.Stats.Missed) }},
	{"RUNS", handlerPlace},
	{"OPTIMIZED", optimizedText},
}

// Columns that the table leaves out by default: always the ones of omitted, and, from the first on, as many
// of leftOut as necessary to fit a terminal.
var (
	omitted = []string{"ADDRESS", "PLAN"}
	leftOut = []string{"MISSED", "RUNS", "OPTIMIZED", "K", "FLAGS", "HITS", "SYMBOL+OFFSET"}
)

// tableWidth is the maximum width of the table of probes, in characters.
const tableWidth = 80

// columnList is a list of columns. It is the value of a flag.
type columnList []column

// String returns the columns' names, separated by commas.
func (l *columnList) String() string { return strings.ToLower(strings.Join(l.headings(), ",")) }

// Type returns the type of the flag's value.
func (l *columnList) Type() string { return "columns" }

// Set parses names of columns, in upper or lower case, separated by commas.
func (l *columnList) Set(text string) error {
	*l = nil
	for name := range strings.SplitSeq(text, ",") {
		i := slices.IndexFunc(probeColumns, func(c column) bool { return strings.EqualFold(c.heading, name) })
		if i < 0 {
			if name == formatJSON {
				return fmt.Errorf("no column %q: --format json prints JSON", name)
			}
			return fmt.Errorf("no column %q; there are %s", name, strings.ToLower(strings.Join(probeColumns.headings(), ", ")))
		}
		*l = append(*l, probeColumns[i])
	}
	return nil
}

func (l columnList) headings() (out []string) {
	for _, c := range l {
		out = append(out, c.heading)
	}
	return out
}

// drop returns l without the named columns.
func (l columnList) drop(names ...string) columnList {
	return slices.DeleteFunc(slices.Clone(l), func(c column) bool { return slices.Contains(names, c.heading) })
}

// width returns the width of the table of ps with the columns l.
func (l columnList) width(ps []api.Probe) (n int) {
	for _, c := range l {
		var cells []string
		for _, p := range ps {
			cells = append(cells, c.cell(p))
		}
		n += columnWidth(c.heading, cells) + 2
	}
	return n - 2 // no gap after the last column
}

// cells returns a probe's cells.
func (l columnList) cells(p api.Probe) (out []string) {
	for _, c := range l {
		out = append(out, c.cell(p))
	}
	return out
}

// columnWidth returns the width of a column.
func columnWidth(heading string, texts []string) int {
	n := len(heading)
	for _, t := range texts {
		n = max(n, utf8.RuneCountInString(command.Clean(t)))
	}
	return n
}

// narrowColumns returns the default columns for the table of ps. beside is the width of other columns in the table.
func narrowColumns(ps []api.Probe, beside int) columnList {
	l := probeColumns.drop(omitted...)
	for _, name := range leftOut {
		if l.width(ps)+beside <= tableWidth {
			break
		}
		l = l.drop(name)
	}
	return l
}

// optimizedText returns "jump" if the probe's site is optimized, as in top and on the web page, else the reason why not.
func optimizedText(p api.Probe) string {
	switch {
	case p.Optimized:
		return "jump"
	case p.Unoptimized != nil:
		return p.Unoptimized.Reason
	}
	return "-"
}

// noteUnoptimized explains for each probe that is not optimized why.
func noteUnoptimized(r *command.Run, ps []api.Probe) {
	for _, p := range ps {
		u := p.Unoptimized
		if u == nil || p.Optimized {
			continue
		}
		why := u.Reason
		if strings.HasPrefix(u.Detail, u.Reason) {
			why = u.Detail // details of package flow begin with the reason
		} else if u.Detail != "" {
			why += ": " + u.Detail
		}
		r.Note("%s is not optimized: %s (%s).", command.Clean(p.Name), u.Meaning, command.Clean(why))
	}
}

// notePending lists the probes that wait for their module or tracepoint.
func notePending(r *command.Run, ps []api.Probe) {
	for _, p := range ps {
		if p.Pending && p.Tracepoint != "" {
			r.Note("%s waits for the guest's kernel to switch the tracepoint %s on, which it does when it runs.", command.Clean(p.Name), command.Clean(p.Tracepoint))
		} else if p.Pending {
			r.Note("%s waits for the module of %s, which is not loaded.", command.Clean(p.Name), command.Clean(p.Symbol))
		}
	}
}

// handlerPlace returns where a probe's handlers run, or "-" if the probe has no choice.
func handlerPlace(p api.Probe) string {
	if p.Runs == "" {
		return "-"
	}
	return p.Runs
}

// place formats a probe's place as the kernel's list of kprobes does.
func place(p api.Probe) string {
	if p.Symbol == "" {
		return p.Addr.String()
	}
	return fmt.Sprintf("%s+0x%x", p.Symbol, p.Offset)
}

// flags returns a probe's flags as in the kernel's list of kprobes, or "-".
func flags(p api.Probe) string {
	var f []string
	switch {
	case p.Gone:
		f = append(f, "[GONE]")
	case p.Pending && p.Enabled:
		f = append(f, "[PENDING]")
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
	if p.Override != nil {
		f = append(f, overrideFlag(p.Override))
	}
	if p.Origin != "" {
		f = append(f, "["+strings.ToUpper(p.Origin)+"]")
	}
	if len(f) == 0 {
		return "-"
	}
	return strings.Join(f, "")
}
