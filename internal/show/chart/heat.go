package chart

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// maxColumns bounds how many columns a heat map keeps. When there are more, each
// two are merged.
const maxColumns = 1024

// Heat is a histogram over time: a column for each interval, a row for each
// bucket. Each call of add is one interval.
type Heat struct {
	Title string
	Every time.Duration // of a column

	columns int
	part    int // intervals in the last column
	each    int // intervals in a column; 0: 1
	buckets []heatRow
}

// heatRow is a bucket, with its counts by column.
type heatRow struct {
	Bucket
	counts []uint64
}

// add adds an interval.
func (h *Heat) add(buckets []Bucket) {
	h.each = max(1, h.each)
	if h.part++; h.columns == 0 || h.part > h.each {
		h.columns, h.part = h.columns+1, 1
	}
	if h.columns > maxColumns {
		h.halve()
	}
	for _, b := range buckets {
		if b.Count == 0 {
			continue
		}
		i, ok := slices.BinarySearchFunc(h.buckets, b, func(r heatRow, b Bucket) int { return cmp.Or(cmp.Compare(r.At, b.At), cmp.Compare(r.Label, b.Label)) })
		if !ok {
			h.buckets = slices.Insert(h.buckets, i, heatRow{Bucket: b})
		}
		r := &h.buckets[i]
		for len(r.counts) < h.columns {
			r.counts = append(r.counts, 0)
		}
		r.counts[h.columns-1] += b.Count
	}
}

// halve merges each two columns into one. The last one may have room for more.
func (h *Heat) halve() {
	last := h.columns - 1
	h.part += last % 2 * h.each
	h.columns, h.each = last/2+1, 2*h.each
	for i := range h.buckets {
		h.buckets[i].counts = mergeCounts(h.buckets[i].counts, 2)
	}
}

// mergeCounts returns the sums of each n counts.
func mergeCounts(counts []uint64, n int) (out []uint64) {
	for part := range slices.Chunk(counts, max(1, n)) {
		sum := uint64(0)
		for _, c := range part {
			sum += c
		}
		out = append(out, sum)
	}
	return out
}

// fit returns the rows with columns merged so that there are at most width of
// them. It also returns the number of columns, how long each is, and the largest
// count.
func (h *Heat) fit(width int) (rows []heatRow, columns int, every time.Duration, most uint64) {
	n := max(1, (h.columns+width-1)/max(1, width))
	for _, r := range h.buckets {
		r.counts = mergeCounts(r.counts, n)
		most = max(most, slices.Max(append(r.counts, 0)))
		rows = append(rows, r)
	}
	return rows, (h.columns + n - 1) / n, h.Every * time.Duration(max(1, h.each)*n), most
}

// warmth returns the level of a count on a logarithmic scale, from 0 to n-1,
// with 0 for no count.
func warmth(count, most uint64, n int) int {
	return level(math.Log1p(float64(count)), math.Log1p(float64(most)), n)
}

// heatColors are the colors of warmth on a terminal with 256 colors, from the
// smallest count on.
var heatColors = []int{17, 19, 55, 91, 127, 163, 203, 209, 215, 221, 227}

// Lines draws the map into at most width characters, the largest values at the
// top, with the legend of columns and shades below. With color the shades are
// backgrounds.
func (h *Heat) Lines(width int, g Glyphs, color bool) (out []string) {
	labels := 0
	for _, r := range h.buckets {
		labels = max(labels, utf8.RuneCountInString(r.Label))
	}
	rows, columns, every, most := h.fit(max(1, width-labels-3))
	shade := func(count uint64, times int) string {
		if !color {
			return strings.Repeat(string(g.Shade[warmth(count, most, len(g.Shade))]), times)
		}
		w := warmth(count, most, len(heatColors)+1)
		if w == 0 {
			return strings.Repeat(" ", times)
		}
		return fmt.Sprintf("\x1b[48;5;%dm%s\x1b[0m", heatColors[w-1], strings.Repeat(" ", times))
	}
	for _, r := range slices.Backward(rows) {
		var b strings.Builder
		fmt.Fprintf(&b, "%-*s |", labels, r.Label)
		for i := 0; i < columns; {
			// Equal neighbors are drawn together.
			at := func(i int) uint64 {
				if i < len(r.counts) {
					return r.counts[i]
				}
				return 0
			}
			n := 1
			for i+n < columns && at(i+n) == at(i) {
				n++
			}
			b.WriteString(shade(at(i), n))
			i += n
		}
		b.WriteByte('|')
		out = append(out, b.String())
	}
	return append(out, fmt.Sprintf("%-*s  a column is %v%s", labels, "", every, legend(most, shade)))
}

// legend shows some counts up to the largest with their glyphs. Of counts with
// the same glyph it shows the largest.
func legend(most uint64, shade func(count uint64, times int) string) (s string) {
	before, drawn, last := uint64(0), "", ""
	for i := 1; i <= 4; i++ {
		n := most
		if i < 4 {
			n = uint64(math.Round(math.Expm1(math.Log1p(float64(most)) * float64(i) / 4)))
		}
		if n > before {
			if d := shade(n, 1); d != drawn {
				s, drawn = s+last, d
			}
			last = fmt.Sprintf(", %d is [%s]", n, drawn)
		}
		before = n
	}
	return s + last
}
