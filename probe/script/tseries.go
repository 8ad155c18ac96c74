package script

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
)

// A series is a map of intervals, with a separate one per vCPU: the number of the
// interval since 1970, its value, and the number of values in it, or the time of the
// last one. A new interval replaces the oldest one, which is the length of the series
// before it.

// seriesKinds are the ways to combine the values of an interval; the default is the
// last one.
var seriesKinds = []string{"avg", "max", "min", "sum"}

// maxIntervals bounds a series.
const maxIntervals = 4096

// series checks tseries.
func (c callChecker) series(e *expr, t Type) (Type, error) {
	width, ok := c.constant(e.args[1])
	n, ok2 := c.constant(e.args[2])
	switch {
	case !ok:
		return t, c.errorAt(e.Span, "tseries: invalid interval_ns value (must be non-negative literal)")
	case !ok2:
		return t, c.errorAt(e.Span, "tseries: invalid num_intervals value (must be non-negative literal)")
	case width < 1:
		return t, c.errorAt(e.Span, "tseries() interval_ns must be >= 1 (%d provided)", width)
	case n < 1 || n > maxIntervals:
		return t, c.errorAt(e.Span, "tseries() num_intervals must be >= 1 and <= %d (%d provided)", maxIntervals, n)
	}
	if len(e.args) == 4 {
		if t.Format = e.args[3].text; e.args[3].kind != exString || !slices.Contains(seriesKinds, t.Format) {
			return t, c.errorAt(e.Span, "tseries() expects one of the following aggregation functions: %s (%q provided)", strings.Join(seriesKinds, ", "), t.Format)
		}
	}
	t.Step, t.High = width, n
	return t, nil
}

// interval leaves the time since 1970 in now, and its interval in R0.
func (g mapEmitter) interval(t Type, now mem) {
	g.Emit(bpfgen.Call(bpf.HelperKtimeGetNS))
	g.Add(asm.R0, g.epoch)
	g.store(now, asm.R0)
	g.Emit(bpfgen.Const(asm.R1, uint64(t.Step)), asm.Div.Reg(asm.R0, asm.R1))
}

// addToSeries adds a value to the interval at rValue, which gets that number.
func (g mapEmitter) addToSeries(t Type, number, val, now mem) {
	same := g.NewLabel()
	epoch, value, meta := mem{rValue, 0}, mem{rValue, 8}, mem{rValue, 16}
	g.load(asm.R0, number)
	g.load(asm.R1, epoch)
	g.JumpTo(asm.JEq.Reg(asm.R0, asm.R1, ""), same)
	g.clear(value, 16)
	g.store(epoch, asm.R0)
	g.Place(same)
	g.load(asm.R1, val)
	switch t.Format {
	case "sum", "avg":
		g.Emit(asm.AddAtomic.Mem(rValue, asm.R1, asm.DWord, int16(value.off)))
		g.increment(int16(meta.off))
	case "min", "max":
		first, done := g.NewLabel(), g.NewLabel()
		op := map[string]string{"min": ">=", "max": "<="}[t.Format]
		g.load(asm.R0, meta)
		g.If(asm.JEq, asm.R0, 0, first)
		g.load(asm.R0, value)
		g.JumpTo(jumps[op][signIndex(t.Signed)].Reg(asm.R1, asm.R0, ""), done)
		g.Place(first)
		g.store(value, asm.R1)
		g.Place(done)
		g.increment(int16(meta.off))
	default:
		g.store(value, asm.R1)
		g.load(asm.R1, now)
		g.store(meta, asm.R1)
	}
}

// tick is an interval of a series, merged over all vCPUs.
type tick struct{ value, meta uint64 }

// mergeSeries merges the vCPUs' values of one interval.
func (e *entry) mergeSeries(t Type, values [][]byte) {
	if e.series == nil {
		e.series = map[uint64]tick{}
	}
	for _, v := range values {
		epoch, x := word(v), tick{word(v[8:]), word(v[16:])}
		if x.meta == 0 {
			continue
		}
		e.addTick(t, epoch, x)
	}
}

// addTick adds another part of an interval.
func (e *entry) addTick(t Type, epoch uint64, x tick) {
	have, ok := e.series[epoch]
	less := have.value < x.value
	if t.Signed {
		less = int64(have.value) < int64(x.value)
	}
	switch {
	case !ok:
		have = x
	case t.Format == "sum", t.Format == "avg":
		have = tick{have.value + x.value, have.meta + x.meta}
	case t.Format == "min" || t.Format == "max":
		if less == (t.Format == "max") {
			have.value = x.value
		}
	case x.meta > have.meta:
		have = x
	}
	e.series[epoch] = have
}

// shownRange returns the number of the last interval of any of a map's series, and of
// the first one shown.
func shownRange(t Type, es []*entry) (first, last uint64) {
	for _, e := range es {
		for epoch := range e.series {
			last = max(last, epoch)
		}
	}
	return last - min(uint64(t.High)-1, last), last
}

// forEachStep calls f for each interval of a series up to the last one, from its own
// first one on.
func (e *entry) forEachStep(t Type, first, last uint64, f func(at time.Time, v int64, ok bool)) {
	begun := false
	for epoch := first; epoch <= last; epoch++ {
		x, ok := e.series[epoch]
		if begun = begun || ok; !begun {
			continue
		}
		v := int64(x.value)
		if t.Format == "avg" {
			v = average(t, x.value, x.meta)
		}
		f(time.Unix(0, int64(epoch*uint64(t.Step))), v, ok)
	}
}

// graphWidth is the width of the graph of a series.
const graphWidth = 53

// unit is a unit of interval lengths: its lower bound, and the digits of a second
// that it shows.
type unit struct {
	least  int64
	name   string
	digits int
}

var clockUnits = []unit{{1e9, "", 0}, {1e6, ".ms", 3}, {1e3, ".us", 6}, {0, ".ns", 9}}

// seriesText draws a series.
func seriesText(t Type, e *entry, first, last uint64) string {
	number := func(v int64) string {
		if t.Signed {
			return fmt.Sprint(v)
		}
		return fmt.Sprint(uint64(v))
	}
	less := func(a, b int64) bool { return t.Signed && a < b || !t.Signed && uint64(a) < uint64(b) }
	var lo, hi int64
	n, begun := 0, false
	e.forEachStep(t, first, last, func(_ time.Time, v int64, ok bool) {
		if n++; ok && (!begun || less(v, lo)) {
			lo = v
		}
		if ok && (!begun || less(hi, v)) {
			hi = v
		}
		begun = begun || ok
	})
	if lo == hi { // room on both sides, but within the range of numbers
		if lo--; !less(lo, hi) {
			lo++
		}
		if hi++; !less(lo, hi) {
			hi--
		}
	}
	u := clockUnits[slices.IndexFunc(clockUnits, func(x unit) bool { return t.Step >= x.least })]
	if n == 1 {
		u = clockUnits[len(clockUnits)-1] // as if the interval had no length
	}
	clock := 8
	if u.digits > 0 {
		clock += 1 + u.digits
	}
	// Distances are signed differences, computed as 32-bit floats.
	place := func(width int, v int64) int {
		return int(float32(width) * float32(lo-v) / float32(lo-hi))
	}
	const padding = 21
	var b strings.Builder
	scale := fmt.Sprintf("%-*s%*s\n", padding, number(lo), graphWidth-padding, number(hi))
	fmt.Fprintf(&b, "%*s%s", clock+1, "", scale)
	fmt.Fprintf(&b, "%-*s|%s|\n", clock+1, "hh:mm:ss"+u.name, strings.Repeat("_", graphWidth-2))
	e.forEachStep(t, first, last, func(at time.Time, v int64, ok bool) {
		line := []byte("|" + strings.Repeat(" ", graphWidth-2) + "|")
		if t.Signed && lo < 0 && hi > 0 {
			line[place(graphWidth, 0)] = '.'
		}
		text := "-"
		if ok {
			text = number(v)
			line[max(0, min(graphWidth-1, place(graphWidth-1, v)))] = '*'
		}
		when := at.Format("15:04:05")
		if u.digits > 0 {
			when += fmt.Sprintf(".%09d", at.Nanosecond())[:1+u.digits]
		}
		fmt.Fprintf(&b, "%s %s %s\n", when, line, text)
	})
	fmt.Fprintf(&b, "%*sv%sv\n", clock+1, "", strings.Repeat("_", graphWidth-2))
	fmt.Fprintf(&b, "%*s%s\n", clock+1, "", scale)
	return b.String()
}

// seriesJSON is the array of the nonempty intervals of a series.
func seriesJSON(t Type, e *entry, first, last uint64) string {
	var rows []string
	e.forEachStep(t, first, last, func(at time.Time, v int64, ok bool) {
		if !ok {
			return
		}
		text := jsonInt(v)
		if !t.Signed {
			text = jsonUint(uint64(v))
		}
		rows = append(rows, fmt.Sprintf(`{"interval_start":"%s","value":%s}`, at.UTC().Format("2006-01-02 15:04:05.000000000"), text))
	})
	return "[" + strings.Join(rows, ",") + "]"
}
