package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// asHist is the value of --as that prints arrays of counters as histograms.
const asHist = "hist"

// mapHists are the contents of a map as log2 histograms, as many programs of libbpf keep them: bucket 0 counts the values 0 and 1, bucket i those from
// 1<<i to 1<<(i+1) - 1.
type mapHists struct {
	Name      string    `json:"name"`
	Hists     []mapHist `json:"hists"`
	Truncated bool      `json:"truncated,omitempty"` // the map has more
}

// mapHist is the histogram of a key.
type mapHist struct {
	Key     json.RawMessage            `json:"key,omitempty"`    // absent: the map is the histogram
	Others  map[string]json.RawMessage `json:"others,omitempty"` // the value's other members
	Buckets []api.MapBucket            `json:"buckets"`
}

// newMapHists reads a map of histograms: an array whose elements are counters, or any map whose values are arrays of counters or structures
// with one such array.
func newMapHists(d api.MapDump) (mapHists, error) {
	out := mapHists{Name: d.Name, Truncated: d.Truncated, Hists: []mapHist{}}
	switch {
	case strings.HasPrefix(d.Name, "@"):
		return out, command.Usagef("map %s belongs to a script: 'guestprobe script NAME' prints its histograms", d.Name)
	case d.Ring != nil:
		return out, command.Usagef("map %s has no histograms: it is a ring", d.Name)
	}
	if h, ok := arrayHist(d); ok {
		out.Hists = append(out.Hists, h)
		return out, nil
	}
	for _, e := range d.Values {
		h := mapHist{Key: e.KeyData}
		if h.Key == nil {
			h.Key, _ = json.Marshal(cell(e.Key, nil))
		}
		var all []uint64
		for i := range e.Values {
			counts, others := valueCounts(typedValue(e, i))
			if counts == nil {
				return out, command.Usagef("map %s has no histograms: not an array of 2 to %d counters, and its values are not arrays of counters, or structures with one", d.Name, bpf.HistBuckets)
			}
			for len(all) < len(counts) {
				all = append(all, 0)
			}
			for k, n := range counts {
				all[k] += n
			}
			if i == 0 && !d.PerCPU {
				h.Others = others
			}
		}
		h.Buckets = buckets(all)
		out.Hists = append(out.Hists, h)
	}
	return out, nil
}

// arrayHist reads an array whose elements are the counters of one histogram.
func arrayHist(d api.MapDump) (mapHist, bool) {
	if d.Kind != "array" && d.Kind != "percpu_array" || len(d.Values) < 2 || len(d.Values) > bpf.HistBuckets || d.Truncated {
		return mapHist{}, false
	}
	all := make([]uint64, len(d.Values))
	for _, e := range d.Values {
		at, ok := number(e.Key, nil)
		if !ok || at >= uint64(len(all)) {
			return mapHist{}, false
		}
		for i, v := range e.Values {
			data := typedValue(e, i)
			n, ok := number(v, data)
			if !ok || strings.HasPrefix(string(data), "-") {
				return mapHist{}, false
			}
			all[at] += n
		}
	}
	return mapHist{Buckets: buckets(all)}, true
}

// valueCounts returns the counters in a value, and its other members; nil if there is not exactly one array of at most bpf.HistBuckets
// numbers.
func valueCounts(data json.RawMessage) (counts []uint64, others map[string]json.RawMessage) {
	if err := json.Unmarshal(data, &counts); err == nil && len(counts) > 1 && len(counts) <= bpf.HistBuckets {
		return counts, nil
	}
	if json.Unmarshal(data, &others) != nil {
		return nil, nil
	}
	name := ""
	for member, text := range others {
		var all []uint64
		if err := json.Unmarshal(text, &all); err != nil || len(all) < 2 || len(all) > bpf.HistBuckets {
			continue
		}
		if name != "" {
			return nil, nil
		}
		name, counts = member, all
	}
	if name == "" {
		return nil, nil
	}
	delete(others, name)
	return counts, others
}

// buckets returns the buckets from the first to the last one that has counted something.
func buckets(counts []uint64) []api.MapBucket {
	out := []api.MapBucket{}
	used := func(n uint64) bool { return n > 0 }
	first := slices.IndexFunc(counts, used)
	if first < 0 {
		return out
	}
	for i, n := range counts {
		if i < first || !slices.ContainsFunc(counts[i:], used) {
			continue
		}
		lo, hi := bpf.HistBounds(i)
		out = append(out, api.MapBucket{Low: api.Hex(lo), High: api.Hex(hi), Count: n})
	}
	return out
}

// title is the line above a histogram.
func (h mapHist) title() string {
	var b strings.Builder
	b.Write(h.Key)
	for _, name := range slices.Sorted(maps.Keys(h.Others)) {
		fmt.Fprintf(&b, " %s=%s", name, h.Others[name])
	}
	return command.Line(b.String())
}

// print prints the histograms one below the other, or as a picture.
func (m mapHists) print(r *command.Run) error {
	if r.Format == formatSVG {
		var all []chart.Drawing
		for _, h := range m.Hists {
			if len(h.Buckets) > 0 {
				all = append(all, chart.Hist{Title: strings.TrimSpace(m.Name + " " + h.title()), Buckets: dumpBuckets(h.Buckets)})
			}
		}
		return chart.Picture(r.Stdout, m.Name, all)
	}
	if len(m.Hists) == 0 {
		return r.Print("The map is empty.\n")
	}
	for i, h := range m.Hists {
		if h.Key != nil {
			text := h.title() + "\n"
			if i > 0 {
				text = "\n" + text
			}
			if err := r.Print("%s", text); err != nil {
				return err
			}
		}
		if len(h.Buckets) == 0 {
			if err := r.Print("Nothing was counted.\n"); err != nil {
				return err
			}
			continue
		}
		if err := printHist(r, h.Buckets); err != nil {
			return err
		}
	}
	if m.Truncated {
		r.Note("The map has more entries than these %s.", strconv.Itoa(len(m.Hists)))
	}
	return nil
}
