package metrics

import (
	"cmp"
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/guestprobe/guestprobe/probe/script"
)

// Script is a script whose maps are metrics.
type Script struct {
	Name    string
	Running bool
	Lost    uint64 // its lost records
	Maps    []script.MapValues
}

// maxKeys bounds how many keys of a map are metrics: each is a time series.
const maxKeys = 1000

// collect makes the metrics of a script. Elements that are not a number, a
// histogram or statistics are left out, and counted.
func (s *Script) collect(o out) {
	o.gauge(scriptRunning, flag(s.Running), s.Name)
	o.counter(scriptLost, float64(s.Lost), s.Name)
	for _, m := range s.Maps {
		slices.SortStableFunc(m.Elements, func(a, b script.MapValue) int { return cmp.Compare(a.Key, b.Key) })
		left, seen := m.Other, map[string]bool{}
		for _, x := range m.Elements {
			// Keys of several parts, or of bytes that are not text, may become the same
			// label.
			key := validLabel(x.Key)
			if seen[key] || len(seen) == maxKeys {
				left++
				continue
			}
			seen[key] = true
			s.value(o, x, validLabel(m.Name), key)
		}
		if m.Keyed || left > 0 {
			o.gauge(scriptLeftOut, float64(left), s.Name, m.Name)
		}
	}
}

// distributes reports whether a map has a histogram. A script's histogram has no
// sum. OpenMetrics requires a sum of each histogram, but none of one with
// buckets below 0 (OpenMetrics 1.0.0, "Histogram").
func (s Script) distributes() bool {
	return slices.ContainsFunc(s.Maps, func(m script.MapValues) bool {
		return slices.ContainsFunc(m.Elements, func(x script.MapValue) bool { return x.Histogram != nil })
	})
}

// value makes the metric of an element.
func (s *Script) value(o out, x script.MapValue, name, key string) {
	labels := []string{validLabel(s.Name), name, key}
	switch {
	case x.Stats:
		o.to <- prometheus.MustNewConstSummary(scriptStats, x.Count, x.Sum, nil, labels...)
	case x.Histogram != nil:
		total, at := uint64(0), map[float64]uint64{}
		for _, b := range x.Histogram {
			if total += b.Count; !b.Open {
				at[b.Max] = total
			}
		}
		o.to <- prometheus.MustNewConstHistogram(scriptHistogram, total, math.NaN(), at, labels...)
	default:
		o.gauge(scriptValue, x.Number, labels...)
	}
}
