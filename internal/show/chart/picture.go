package chart

import (
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"
)

// Measures of pictures, in pixels.
const (
	pictureWidth  = 1000
	pictureMargin = 10
	pictureHead   = 34
	rowHeight     = 16
	gap           = 30 // above a drawing, for its title
	maxLabel      = 40 // characters
)

// MaxDrawings is how many drawings a picture has at most. It says how many
// others there are.
const MaxDrawings = 100

// Drawing is a part of a picture.
type Drawing interface {
	title() string
	rows() int // of rowHeight
	draw(s *SVG, y int)
}

// Picture writes drawings as SVG, one below the other, and remarks below them.
func Picture(w io.Writer, title string, of []Drawing, remarks ...string) error {
	height, more := pictureHead, len(of)-min(len(of), MaxDrawings)
	of = of[:len(of)-more]
	for _, d := range of {
		height += gap + d.rows()*rowHeight
	}
	switch {
	case more > 0:
		remarks = append(remarks, fmt.Sprintf("%d more are left out", more))
	case len(of) == 0:
		remarks = append(remarks, "nothing was counted")
	}
	s := NewSVG(w, pictureWidth, height+gap+max(0, len(remarks)-1)*rowHeight, title)
	y := pictureHead
	for _, d := range of {
		s.Text(pictureMargin, y+gap-10, begins, d.title(), 140)
		d.draw(s, y+gap)
		y += gap + d.rows()*rowHeight
	}
	for i, text := range remarks {
		s.Text(pictureMargin, y+gap-10+i*rowHeight, begins, text, 140)
	}
	return s.Close()
}

// labelRoom is the room for labels, in pixels.
func labelRoom(longest int) float64 { return pictureMargin + float64(min(longest, maxLabel)+1)*letter }

func (h Hist) title() string { return h.Title }
func (h Hist) rows() int     { return len(h.Buckets) }

// draw draws a bar for each bucket.
func (h Hist) draw(s *SVG, y int) {
	longest := 0
	for _, b := range h.Buckets {
		longest = max(longest, utf8.RuneCountInString(b.Label))
	}
	x, most := labelRoom(longest), h.maxCount()
	width := pictureWidth - pictureMargin - x - 12*letter // a count after the longest bar
	for _, b := range h.Buckets {
		long := float64(b.Count) / float64(most) * width
		s.Text(x-letter, y+rowHeight-4, ends, b.Label, maxLabel)
		s.Box(x, y, long, rowHeight-2, "#5b8dd9", fmt.Sprintf("%s: %d", b.Label, b.Count), "")
		s.Text(x+long+letter/2, y+rowHeight-4, begins, fmt.Sprint(b.Count), maxLabel)
		y += rowHeight
	}
}

// heatWidth is how many columns a picture has at most.
const heatWidth = 200

// pictureColors are the colors of warmth, from the smallest count on.
var pictureColors = []string{"#fff2cc", "#ffe29a", "#ffcb69", "#ffae42", "#fb8b24", "#f1661f", "#df3f20", "#c01c28", "#960f2c", "#67072a"}

func (h *Heat) title() string { return h.Title }
func (h *Heat) rows() int     { return len(h.buckets) + 1 }

// draw draws a box for each interval with a count, the largest values at the
// top, and below them the beginning and the end of the time.
func (h *Heat) draw(s *SVG, y int) {
	longest := 0
	for _, r := range h.buckets {
		longest = max(longest, utf8.RuneCountInString(r.Label))
	}
	rows, columns, every, most := h.fit(heatWidth)
	x := labelRoom(longest)
	wide := (pictureWidth - pictureMargin - x) / float64(max(1, columns))
	for _, r := range slices.Backward(rows) {
		s.Text(x-letter, y+rowHeight-4, ends, r.Label, maxLabel)
		for i, n := range r.counts {
			if n == 0 {
				continue
			}
			color := pictureColors[warmth(n, most, len(pictureColors)+1)-1]
			s.Box(x+float64(i)*wide, y, wide, rowHeight-1, color, fmt.Sprintf("%s, from %v: %d", r.Label, time.Duration(i)*every, n), "")
		}
		y += rowHeight
	}
	s.Text(x, y+rowHeight-4, begins, fmt.Sprintf("0s; a column is %v; the most is %d", every, most), 140)
	s.Text(pictureWidth-pictureMargin, y+rowHeight-4, ends, (time.Duration(columns) * every).String(), maxLabel)
}
