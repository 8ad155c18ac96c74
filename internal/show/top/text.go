package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/internal/command"
)

// Number formats a rate or a count in at most five characters.
func Number(v float64) string {
	unit := 0
	for v >= 999.5 && unit < 6 {
		v /= 1000
		unit++
	}
	digits := 0
	switch {
	case unit == 0 && v == float64(int(v)), v >= 99.95:
	case unit > 0 && v < 9.995:
		digits = 2
	default:
		digits = 1
	}
	return fmt.Sprintf("%.*f%s", digits, v, []string{"", "k", "M", "G", "T", "P", "E"}[unit])
}

// Duration formats nanoseconds in at most six characters; - for 0.
func Duration(ns uint64) string {
	switch {
	case ns == 0:
		return "-"
	case ns < 1000:
		return fmt.Sprintf("%dns", ns)
	}
	v := float64(ns)
	for _, unit := range []string{"us", "ms"} {
		if v /= 1000; v < 999.5 {
			digits := 0
			if v < 99.95 {
				digits = 1
			}
			return fmt.Sprintf("%.*f%s", digits, v, unit)
		}
	}
	return fmt.Sprintf("%.0fs", v/1000)
}

// Column is a column of the table of probes.
type Column struct {
	Name  string
	width int // 0: the rest of the line
	least int // minimum of a column that takes the rest
	right bool
	text  func(Row) string
	less  func(a, b *Row) int // order when sorted by it, the first row first; nil: it cannot be sorted by
}

func count(of func(Row) uint64) (func(Row) string, func(a, b *Row) int) {
	return func(r Row) string { return Number(float64(of(r))) }, func(a, b *Row) int { return cmp.Compare(of(*b), of(*a)) }
}

func duration(of func(Row) uint64) (func(Row) string, func(a, b *Row) int) {
	return func(r Row) string { return Duration(of(r)) }, func(a, b *Row) int { return cmp.Compare(of(*b), of(*a)) }
}

// Share returns the part of a probe's calls that were timed; - for no call.
func Share(r Row) string {
	switch {
	case r.Timed == 0:
		return "-"
	case r.Timed*100 < r.Calls:
		return "<1%"
	}
	return fmt.Sprintf("%d%%", r.Timed*100/max(1, r.Calls))
}

// trend is the name of the column that is drawn.
const trend = "TREND"

// columns are all, in their order.
var columns = func() []Column {
	missed, byMissed := count(func(r Row) uint64 { return r.Missed })
	lost, byLost := count(func(r Row) uint64 { return r.Lost })
	hits, byHits := count(func(r Row) uint64 { return r.Hits })
	mean, byMean := duration(func(r Row) uint64 { return r.MeanNS })
	p99, byP99 := duration(func(r Row) uint64 { return r.P99NS })
	return []Column{
		{Name: "NAME", least: 10, text: func(r Row) string { return r.Name }, less: func(a, b *Row) int { return cmp.Compare(a.Name, b.Name) }},
		{Name: "K", width: 1, text: func(r Row) string { return r.Kind }},
		{Name: "HITS/S", width: 6, right: true, text: func(r Row) string { return Number(r.Rate) }, less: func(a, b *Row) int { return cmp.Compare(b.Rate, a.Rate) }},
		{Name: trend, width: 10},
		{Name: "HITS", width: 5, right: true, text: hits, less: byHits},
		{Name: "MISSED", width: 6, right: true, text: missed, less: byMissed},
		{Name: "LOST", width: 5, right: true, text: lost, less: byLost},
		{Name: "TIMED", width: 5, right: true, text: Share},
		{Name: "MEAN", width: 6, right: true, text: mean, less: byMean},
		{Name: "P99", width: 6, right: true, text: p99, less: byP99},
		{Name: "RUNS", width: 5, text: func(r Row) string { return r.Runs }},
		{Name: "BY", width: 4, text: func(r Row) string { return r.By }},
		{Name: "PLACE", least: 20, text: func(r Row) string { return r.Place }},
	}
}()

// leftOut are the columns that a narrow screen omits, the first to be omitted
// first.
var leftOut = []string{"PLACE", "HITS", "K", "BY", "RUNS", trend, "LOST", "MISSED", "TIMED", "P99", "MEAN"}

// fit returns the columns that fit into width characters, with their widths.
func fit(width int) []Column {
	out := slices.Clone(columns)
	need := func() (n int) {
		for _, c := range out {
			n += max(c.width, c.least) + 1
		}
		return n - 1
	}
	for _, name := range leftOut {
		if need() <= width {
			break
		}
		out = slices.DeleteFunc(out, func(c Column) bool { return c.Name == name })
	}
	spare := max(0, width-need())
	for i := range out {
		switch c := &out[i]; {
		case c.least > 0:
			c.width = c.least
		case c.Name == trend:
			c.width += min(spare/3, history-c.width)
			spare -= c.width - 10
		}
	}
	// Names first, because places repeat much of them.
	for i := range out {
		if c := &out[i]; c.least > 0 {
			more := spare
			if i == 0 && out[len(out)-1].least > 0 {
				more = spare / 2
			}
			c.width += more
			spare -= more
		}
	}
	return out
}

// cell pads or cuts text to width characters.
func cell(s string, width int, right bool) string {
	s = cut(command.Clean(strings.NewReplacer("\n", " ", "\t", " ").Replace(s)), width)
	pad := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
	if right {
		return pad + s
	}
	return s + pad
}

// cut returns as much of a text as fits into width characters, with > where
// something is missing.
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	r := []rune(s)
	if width <= 1 {
		return string(r[:max(0, width)])
	}
	return string(r[:width-1]) + ">"
}
