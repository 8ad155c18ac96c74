package metrics

import (
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	model "github.com/prometheus/client_model/go"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Source has the functions that return the counts. Several scrapes may call them
// at a time. A nil function's metrics are left out.
type Source struct {
	Version   string
	States    []string // that a guest may be in
	Guest     func() api.Guest
	Probes    func() iter.Seq[api.Probe]
	Events    func() api.EventCounts
	Streams   func() int
	Durations func() []Duration
	Scripts   func() []Script
}

// Duration is how long the calls of a return probe's function took.
type Duration struct {
	Probe   string
	Lost    uint64 // returns that are not in the rest
	Count   uint64
	Seconds float64            // in all
	Buckets map[float64]uint64 // how many calls took at most that many seconds
}

// Handler answers a scrape with all metrics of s and the metrics of the process,
// in Prometheus' text format or in OpenMetrics, as the request asks.
func Handler(s Source) http.Handler {
	r := prometheus.NewRegistry()
	// Of the runtime's memory statistics two are one family in OpenMetrics, where no two may have a name.
	r.MustRegister(&collector{s}, collectors.NewGoCollector(collectors.WithGoCollectorMemStatsMetricsDisabled()), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	text, open := promhttp.HandlerFor(r, promhttp.HandlerOpts{}), promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s.Scripts != nil && slices.ContainsFunc(s.Scripts(), Script.distributes) {
			text.ServeHTTP(w, req)
			return
		}
		open.ServeHTTP(w, req)
	})
}

// collector makes metrics at each scrape. The attachments decide which metrics
// there are, so it describes none in advance.
type collector struct{ Source }

// Describe implements prometheus.Collector.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	o := out{to}
	o.gauge(buildInfo, 1, c.Version)
	if c.Guest != nil {
		c.guest(o, c.Guest())
	}
	if c.Events != nil {
		n := c.Events()
		o.counter(eventsStored, float64(n.Stored))
		o.counter(eventsLost, float64(n.Lost))
	}
	if c.Streams != nil {
		o.gauge(streams, float64(c.Streams()))
	}
	if c.Probes != nil {
		c.probes(o, c.Probes())
	}
	if c.Durations != nil {
		for _, d := range c.Durations() {
			o.to <- prometheus.MustNewConstHistogram(probeDuration, d.Count, d.Seconds, d.Buckets, validLabel(d.Probe))
			o.counter(durationsLost, float64(d.Lost), d.Probe)
		}
	}
	if c.Scripts != nil {
		for _, s := range c.Scripts() {
			s.collect(o)
		}
	}
}

// guest makes the metrics of the guest and its vCPUs.
func (c *collector) guest(o out, g api.Guest) {
	for _, state := range c.States {
		o.gauge(guestState, flag(state == g.State), state)
	}
	o.counter(guestBoots, float64(g.Boots))
	o.gauge(guestMemory, float64(g.Memory))
	o.gauge(guestVCPUs, float64(g.VCPUs))
	o.gauge(armed, flag(g.Enabled))
	o.counter(checks, float64(g.Checks))
	o.counter(logLost, float64(g.LogLinesLost))
	for _, v := range g.CPUs {
		cpu := strconv.Itoa(v.CPU)
		reasons := make([]string, 0, len(v.Exits))
		for r := range v.Exits {
			reasons = append(reasons, r)
		}
		slices.Sort(reasons)
		for _, r := range reasons {
			o.counter(exits, float64(v.Exits[r]), cpu, r)
		}
		o.counter(trapExits, float64(v.TrapExits), cpu)
		o.counter(vcpuHits, float64(v.Hits), cpu)
		o.counter(foreign, float64(v.Foreign), cpu)
		o.counter(inPlace, float64(v.InPlace), cpu)
		o.counter(ticks, float64(v.Ticks), cpu)
	}
}

// probe is the counts of all probes with one name: an event may have several
// places.
type probe struct {
	stats             api.Stats
	enabled, inUse, n int
	returns           bool
}

// probes makes the metrics of probes.
func (c *collector) probes(o out, all iter.Seq[api.Probe]) {
	byName, kinds := map[string]*probe{}, map[string]int{}
	for p := range all {
		kinds[p.Kind]++
		x := byName[p.Name]
		if x == nil {
			x = &probe{}
			byName[p.Name] = x
		}
		x.n++
		if p.Enabled && !p.Gone {
			x.enabled++
		}
		x.inUse += p.InUse
		x.returns = x.returns || p.Kind == "r"
		s := &x.stats
		s.Hits += p.Stats.Hits
		s.Handled += p.Stats.Handled
		s.Filtered += p.Stats.Filtered
		s.Missed += p.Stats.Missed
		s.Faults += p.Stats.Faults
		s.BadAccesses += p.Stats.BadAccesses
		s.Returns += p.Stats.Returns
		s.Abandoned += p.Stats.Abandoned
		s.Events += p.Stats.Events
		s.Lost += p.Stats.Lost
	}
	for _, kind := range strings.Split(api.Kinds, "") {
		o.gauge(attached, float64(kinds[kind]), kind)
	}
	// The answer is sorted by name, and sorting sorted input is fast.
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		x := byName[name]
		s, of := &x.stats, prometheus.MakeLabelPairs(hits, []string{validLabel(name)}) // shared: there are ten thousand probes
		o.emit(probeEnabled, prometheus.GaugeValue, flag(x.enabled == x.n), of)
		for _, c := range []struct {
			desc *prometheus.Desc
			n    uint64
		}{
			{hits, s.Hits}, {handled, s.Handled}, {filtered, s.Filtered}, {missed, s.Missed}, {faults, s.Faults}, {badAccesses, s.BadAccesses}, {probeEvents, s.Events}, {probeLost, s.Lost},
		} {
			o.emit(c.desc, prometheus.CounterValue, float64(c.n), of)
		}
		if x.returns {
			o.emit(returns, prometheus.CounterValue, float64(s.Returns), of)
			o.emit(abandoned, prometheus.CounterValue, float64(s.Abandoned), of)
			o.emit(inUse, prometheus.GaugeValue, float64(x.inUse), of)
		}
	}
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// out takes metrics.
type out struct{ to chan<- prometheus.Metric }

func (o out) counter(d *prometheus.Desc, v float64, labels ...string) {
	o.put(d, prometheus.CounterValue, v, labels)
}

func (o out) gauge(d *prometheus.Desc, v float64, labels ...string) {
	o.put(d, prometheus.GaugeValue, v, labels)
}

func (o out) put(d *prometheus.Desc, t prometheus.ValueType, v float64, labels []string) {
	for i := range labels {
		labels[i] = validLabel(labels[i])
	}
	o.emit(d, t, v, prometheus.MakeLabelPairs(d, labels))
}

func (o out) emit(d *prometheus.Desc, t prometheus.ValueType, v float64, labels []*model.LabelPair) {
	o.to <- &sample{d, t, v, labels}
}

// sample is a metric of one value, whose labels other metrics may have, too.
type sample struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	value  float64
	labels []*model.LabelPair
}

// Desc implements prometheus.Metric.
func (s *sample) Desc() *prometheus.Desc { return s.desc }

// Write implements prometheus.Metric.
func (s *sample) Write(m *model.Metric) error {
	m.Label = s.labels
	if s.kind == prometheus.CounterValue {
		m.Counter = &model.Counter{Value: &s.value}
	} else {
		m.Gauge = &model.Gauge{Value: &s.value}
	}
	return nil
}

// validLabel returns a valid label value. It has to be UTF-8, which names from a
// guest's image and keys of maps need not be. Invalid bytes are written as \xNN,
// so that different names stay different.
func validLabel(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, `\x%02x`, s[0])
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}
