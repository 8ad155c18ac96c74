package script

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// buckets is the number of buckets of a histogram.
func buckets(t Type) int {
	if t.Kind == TSeries {
		return int(t.High)
	}
	if t.Kind == LHist {
		return int(uint64(t.High-t.Low)/uint64(t.Step)) + 2
	}
	return (63-t.Size)<<t.Size + 1<<t.Size + 1
}

// barWidth is the width of the longest bar.
const barWidth = 52

// edge is the beginning of bucket i of a log2 histogram, not counting the bucket of
// negative numbers.
func edge(k, i int) uint64 {
	n := 1 << k
	if i <= 2*n {
		return uint64(i)
	}
	return uint64(n+i&(n-1)) << (i>>k - 1)
}

// logLabel is the label of a bucket.
func logLabel(k, b int) string {
	if b == 0 {
		return "(..., 0)"
	}
	if edge(k, b)-edge(k, b-1) == 1 {
		return "[" + shortEdge(k, b-1) + "]"
	}
	return "[" + shortEdge(k, b-1) + ", " + shortEdge(k, b) + ")"
}

// shortEdge prints an edge, with the suffix of the step to the next one.
func shortEdge(k, i int) string {
	d := 0
	if i > 2<<k {
		d = min((i>>k-1)/10, 6)
	}
	return strconv.FormatUint(edge(k, i)>>(10*d), 10) + []string{"", "K", "M", "G", "T", "P", "E"}[d]
}

// linearLabel is the label of a bucket.
func linearLabel(t Type, b int) string {
	n := buckets(t)
	num := func(v int64) string {
		if t.Step%1024 == 0 && v != 0 {
			for d, s := range []string{"E", "P", "T", "G", "M", "K"} {
				if f := int64(1) << (60 - 10*d); v%f == 0 {
					return strconv.FormatInt(v/f, 10) + s
				}
			}
		}
		return strconv.FormatInt(v, 10)
	}
	switch b {
	case 0:
		return "(..., " + num(t.Low) + ")"
	case n - 1:
		return "[" + num(t.High) + ", ...)"
	}
	lo := t.Low + int64(b-1)*t.Step
	if t.Step == 1 {
		return "[" + num(lo) + "]"
	}
	return "[" + num(lo) + ", " + num(lo+t.Step) + ")"
}

// span returns the first and the last bucket in use; ok is false if all are empty.
func span(counts []uint64) (lo, hi int, ok bool) {
	lo = -1
	for i, n := range counts {
		if n > 0 {
			if lo < 0 {
				lo = i
			}
			hi = i
		}
	}
	return lo, hi, lo >= 0
}

// histText prints the rows of a histogram, from the first to the last in use before
// the division, and an empty line.
func histText(t Type, counts []uint64, div uint64) string {
	var b strings.Builder
	lo, hi, ok := span(counts)
	if !ok {
		return "\n"
	}
	most, counts := uint64(1), divideCounts(t, counts, div)
	for _, n := range counts {
		most = max(most, n)
	}
	for i := lo; i <= hi; i++ {
		label := ""
		if t.Kind == LHist {
			label = linearLabel(t, i)
		} else {
			label = logLabel(t.Size, i)
		}
		bar := int(float64(counts[i]) / float64(most) * barWidth)
		if counts[i] < 1<<50 {
			bar = int(counts[i] * barWidth / most)
		}
		fmt.Fprintf(&b, "%-16s%8d |%-*s|\n", label, counts[i], barWidth, strings.Repeat("@", bar))
	}
	b.WriteByte('\n')
	return b.String()
}

// divideCounts returns the counts of a log2 histogram divided by a number; other
// counts are not divided.
func divideCounts(t Type, counts []uint64, div uint64) []uint64 {
	if t.Kind == LHist {
		return counts
	}
	counts = slices.Clone(counts)
	for i := range counts {
		counts[i] /= div
	}
	return counts
}

// histJSON is the array of the buckets of a histogram.
func histJSON(t Type, counts []uint64, div uint64) string {
	lo, hi, ok := span(counts)
	if !ok {
		return "[]"
	}
	counts = divideCounts(t, counts, div)
	var rows []string
	for i := lo; i <= hi; i++ {
		row := "{"
		switch {
		case t.Kind == Hist && i == 0:
			row += `"max": -1, `
		case t.Kind == Hist:
			row += fmt.Sprintf(`"min": %s, "max": %s, `, jsonUint(edge(t.Size, i-1)), jsonUint(edge(t.Size, i)-1))
		case i == 0:
			row += fmt.Sprintf(`"max": %s, `, jsonInt(t.Low-1))
		case i == buckets(t)-1:
			row += fmt.Sprintf(`"min": %s, `, jsonInt(t.High))
		default:
			at := t.Low + int64(i-1)*t.Step
			row += fmt.Sprintf(`"min": %s, "max": %s, `, jsonInt(at), jsonInt(at+t.Step-1))
		}
		rows = append(rows, row+fmt.Sprintf(`"count": %s}`, jsonUint(counts[i])))
	}
	return "[" + strings.Join(rows, ",") + "]"
}
