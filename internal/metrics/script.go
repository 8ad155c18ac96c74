package metrics

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Script is a script whose maps are metrics.
type Script struct {
	Name    string
	Running bool
	Lost    uint64 // records of it
	Maps    string // as bpftrace -f json prints them, a line each
}

// MaxKeys bounds how many keys of a map are metrics: each is a time series.
const MaxKeys = 1000

// collect makes the metrics of a script. What is no number, histogram or statistic is none.
func (s *Script) collect(o out) {
	o.gauge(scriptRunning, flag(s.Running), s.Name)
	o.counter(scriptLost, float64(s.Lost), s.Name)
	for line := range strings.Lines(s.Maps) {
		var m struct {
			Type string
			Data map[string]json.RawMessage
		}
		if json.Unmarshal([]byte(line), &m) != nil {
			continue
		}
		for name, data := range m.Data {
			var byKey map[string]json.RawMessage
			// A statistic without a key is an object as well.
			if json.Unmarshal(data, &byKey) != nil || len(byKey) == 0 || m.Type == "stats" && statistic(byKey) {
				s.value(o, m.Type, data, name, "")
				continue
			}
			keys := make([]string, 0, len(byKey))
			for key := range byKey {
				keys = append(keys, key)
			}
			slices.Sort(keys)
			left := max(0, len(keys)-MaxKeys)
			o.gauge(scriptLeftOut, float64(left), s.Name, name)
			for _, key := range keys[:len(keys)-left] {
				s.value(o, m.Type, byKey[key], name, key)
			}
		}
	}
}

// statistic reports whether an object has the fields of stats().
func statistic(o map[string]json.RawMessage) bool {
	return len(o) == 3 && o["count"] != nil && o["average"] != nil && o["total"] != nil
}

// bucket is one of a histogram; without an end it goes on for ever.
type bucket struct {
	Max   *float64
	Count uint64
}

// value makes the metric of an element.
func (s *Script) value(o out, kind string, data json.RawMessage, name, key string) {
	labels := []string{valid(s.Name), valid(name), valid(key)}
	var number float64
	var stats struct {
		Count *uint64
		Total float64
	}
	var buckets []bucket
	switch {
	case json.Unmarshal(data, &number) == nil && string(data) != "null":
		o.gauge(scriptValue, number, labels...)
	case kind == "stats" && json.Unmarshal(data, &stats) == nil && stats.Count != nil:
		o.to <- prometheus.MustNewConstSummary(scriptStats, *stats.Count, stats.Total, nil, labels...)
	case kind == "hist" && json.Unmarshal(data, &buckets) == nil:
		total, at := uint64(0), map[float64]uint64{}
		for _, b := range buckets {
			if total += b.Count; b.Max != nil {
				at[*b.Max] = total
			}
		}
		// A script's histogram knows no sum.
		o.to <- prometheus.MustNewConstHistogram(scriptHistogram, total, math.NaN(), at, labels...)
	}
}
