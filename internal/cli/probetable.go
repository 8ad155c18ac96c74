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

// probeColumns are all columns of the table of probes, in their order.
var probeColumns = columnList{
	{"ADDRESS", func(p api.Probe) string { return fmt.Sprintf("%016x", uint64(p.Addr)) }},
	{"K", func(p api.Probe) string { return p.Kind }},
	{"SYMBOL+OFFSET", place},
	{"FLAGS", flags},
	{"NAME", func(p api.Probe) string { return p.Name }},
	{"PLAN", func(p api.Probe) string { return p.Plan }},
	{"HITS", func(p api.Probe) string { return u64(p.Stats.Hits) }},
	{"MISSED", func(p api.Probe) string { return u64(p.Stats.Missed) }},
	{"RUNS", runs},
	{"OPTIMIZED", optimized},
}

// Columns that the table is without, unless they are asked for: omitted always, and of
// leftOut as many from the first on as make it fit the width of a terminal.
var (
	omitted = []string{"ADDRESS", "PLAN"}
	leftOut = []string{"MISSED", "RUNS", "OPTIMIZED", "K", "FLAGS", "HITS", "SYMBOL+OFFSET"}
)

// tableWidth is how wide the table of probes may be, in characters.
const tableWidth = 80

// columnList are columns, as the value of a flag.
type columnList []column

// String is the columns' headings with commas between.
func (l *columnList) String() string { return strings.ToLower(strings.Join(l.headings(), ",")) }

// Type says what the flag's value is.
func (l *columnList) Type() string { return "columns" }

// Set takes headings in either case with commas between.
func (l *columnList) Set(text string) error {
	*l = nil
	for name := range strings.SplitSeq(text, ",") {
		i := slices.IndexFunc(probeColumns, func(c column) bool { return strings.EqualFold(c.heading, name) })
		if i < 0 {
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

// without returns l without the columns that are named.
func (l columnList) without(names ...string) columnList {
	return slices.DeleteFunc(slices.Clone(l), func(c column) bool { return slices.Contains(names, c.heading) })
}

// width is that of the table of ps with the columns l.
func (l columnList) width(ps []api.Probe) (n int) {
	for _, c := range l {
		var cells []string
		for _, p := range ps {
			cells = append(cells, c.cell(p))
		}
		n += widest(c.heading, cells) + 2
	}
	return n - 2 // nothing stands behind the last one
}

// cells are those of a probe.
func (l columnList) cells(p api.Probe) (out []string) {
	for _, c := range l {
		out = append(out, c.cell(p))
	}
	return out
}

// widest is the width of a column of texts.
func widest(heading string, texts []string) int {
	n := len(heading)
	for _, t := range texts {
		n = max(n, utf8.RuneCountInString(command.Clean(t)))
	}
	return n
}

// narrow are the columns that the table of ps has where none are asked for, beside so many characters.
func narrow(ps []api.Probe, beside int) columnList {
	l := probeColumns.without(omitted...)
	for _, name := range leftOut {
		if l.width(ps)+beside <= tableWidth {
			break
		}
		l = l.without(name)
	}
	return l
}

// optimized is whether a probe's site has a jump, or why not.
func optimized(p api.Probe) string {
	switch {
	case p.Optimized:
		return "yes"
	case p.Unoptimized != nil:
		return p.Unoptimized.Reason
	}
	return "-"
}

// noteUnoptimized says in a sentence for each probe why its site has no jump.
func noteUnoptimized(r *command.Run, ps []api.Probe) {
	for _, p := range ps {
		u := p.Unoptimized
		if u == nil || p.Optimized {
			continue
		}
		why := u.Reason
		if strings.HasPrefix(u.Detail, u.Reason) {
			why = u.Detail // flow's begin with the reason
		} else if u.Detail != "" {
			why += ": " + u.Detail
		}
		r.Note("%s is not optimized: %s (%s).", command.Clean(p.Name), u.Meaning, command.Clean(why))
	}
}

// notePending says which probes wait for their modules.
func notePending(r *command.Run, ps []api.Probe) {
	for _, p := range ps {
		if p.Pending {
			r.Note("%s waits for the module of %s, which is not loaded.", command.Clean(p.Name), command.Clean(p.Symbol))
		}
	}
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
