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
	if missing, of := s.Missing(); missing != 2 || of != 6 {
		t.Errorf("%d of %d are missing, want 2 of 6", missing, of)
	}
}
