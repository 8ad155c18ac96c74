package chart

import (
	"fmt"
	"math/bits"
	"strings"
	"unicode/utf8"
)

// Bucket is how often values of a range were counted.
type Bucket struct {
	At    float64 // its beginning, by which buckets are sorted
	Label string
	Count uint64
}

// Hist is a histogram: its title, and its buckets, ascending.
type Hist struct {
	Title   string
	Buckets []Bucket
}

// maxCount is the largest count, at least 1.
func (h Hist) maxCount() uint64 {
	most := uint64(1)
	for _, b := range h.Buckets {
		most = max(most, b.Count)
	}
	return most
}

// share is v*of/most, rounded down. Precondition: v is at most most.
func share(v, most uint64, of int) int {
	hi, lo := bits.Mul64(v, uint64(of))
	n, _ := bits.Div64(hi, lo, most)
	return int(n)
}

// Bar returns the bar of a bucket, between | and |, padded with spaces.
func Bar(v, most uint64, width int) string {
	n := share(v, max(most, v, 1), width)
	return "|" + strings.Repeat("@", n) + strings.Repeat(" ", width-n) + "|"
}

// Lines draws the histogram into width characters, a bucket a line.
func (h Hist) Lines(width int) (out []string) {
	labels := 0
	for _, b := range h.Buckets {
		labels = max(labels, utf8.RuneCountInString(b.Label))
	}
	bar := max(0, width-labels-12)
	for _, b := range h.Buckets {
		out = append(out, fmt.Sprintf("%-*s %8d %s", labels, b.Label, b.Count, Bar(b.Count, h.maxCount(), bar)))
	}
	return out
}
