package chart

import (
	"testing"
	"time"
)

// TestMissing: intervals that passed unseen are counted.
func TestMissing(t *testing.T) {
	s := Heats{Every: time.Second}
	for _, at := range []time.Duration{1, 2, 5, 6} {
		s.AddAt(at*time.Second, map[string][]Bucket{"@": {{Label: "[1]", Count: 1}}})
	}
	if got, want := s.MissingText(), "2 of 6 intervals are missing: their counts are in the next."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s = Heats{Every: time.Second}
	s.AddAt(time.Second, nil)
	if got := s.MissingText(); got != "" {
		t.Errorf("%q where none is missing", got)
	}
	s.AddAt(3*time.Second, nil)
	if got, want := s.MissingText(), "1 of 3 intervals is missing: its counts are in the next."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
