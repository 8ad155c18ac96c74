package chart

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxHeats bounds how many heat maps there are at a time.
const maxHeats = 64

// Heats are heat maps of the same intervals, by their titles.
type Heats struct {
	Every time.Duration // of an interval

	blank Heat // as long as all other maps
	added int  // intervals
	gaps  int  // of these: missed
	by    map[string]*Heat
	left  int
}

// maxMissing bounds how many intervals are added at a time.
const maxMissing = 1 << 20

// AddAt is Add for counts up to a time since the first interval began. Intervals
// that are over by then and were not added, for example because the machine was
// busy, are added as empty ones.
func (s *Heats) AddAt(at time.Duration, of map[string][]Bucket) {
	for range min(int64(at/max(1, s.Every))-1-int64(s.added), maxMissing) {
		s.gaps++
		s.Add(nil)
	}
	s.Add(of)
}

// Add adds an interval: its counts, by title.
func (s *Heats) Add(of map[string][]Bucket) {
	if s.by == nil {
		s.by = map[string]*Heat{}
	}
	left := 0
	for title := range of {
		switch {
		case s.by[title] != nil:
		case len(s.by) == maxHeats:
			left++
		default:
			h := s.blank
			h.Title, h.Every = title, s.Every
			s.by[title] = &h
		}
	}
	s.left = max(s.left, left)
	s.added++
	s.blank.add(nil)
	for title, h := range s.by {
		h.add(of[title])
	}
}

// MissingText returns how many intervals were missed, in a sentence, or "".
func (s *Heats) MissingText() string {
	switch s.gaps {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("1 of %d intervals is missing: its counts are in the next.", s.added)
	}
	return fmt.Sprintf("%d of %d intervals are missing: their counts are in the next.", s.gaps, s.added)
}

// List returns the maps by their titles, and how many did not fit.
func (s *Heats) List() (all []*Heat, left int) {
	for _, h := range s.by {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b *Heat) int { return strings.Compare(a.Title, b.Title) })
	return all, s.left
}
