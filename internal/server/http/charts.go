package http

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// getCharts answers with charts of the maps of scripts and programs as they are
// now.
func (sh *scriptHost) getCharts(w http.ResponseWriter, r *http.Request, q values) error {
	of := q.text("of")
	out := api.ChartList{Sources: []api.ChartSource{}, Charts: []api.Chart{}}
	ctx, cancel := context.WithTimeout(r.Context(), scriptTime)
	defer cancel()
	found := of == ""
	add := func(src api.ChartSource, charts func() []api.Chart) {
		out.Sources = append(out.Sources, src)
		if src.ID == of && !found {
			found, out.Charts = true, charts()
		}
	}
	for _, k := range sh.scripts.list() {
		i := k.info()
		add(api.ChartSource{ID: i.Name, Kind: "script", Label: i.Name, Ended: i.Ended}, func() []api.Chart { return k.charts(ctx) })
	}
	for _, rs := range sh.scripts.listFollowed() {
		label := fmt.Sprintf("%s (stream %d)", cmp.Or(rs.name, "script"), rs.id)
		add(api.ChartSource{ID: fmt.Sprintf("stream %d", rs.id), Kind: "stream", Label: label}, func() []api.Chart { return rs.charts(ctx) })
	}
	for _, obj := range sh.probes.ObjectFiles() {
		label := fmt.Sprintf("programs at %s", strings.Join(obj.Probes[:min(len(obj.Probes), 3)], ", "))
		if more := len(obj.Probes) - 3; more > 0 {
			label += fmt.Sprintf(" and %d more", more)
		}
		add(api.ChartSource{ID: fmt.Sprintf("program %d", obj.Maps[0]), Kind: "program", Label: label}, func() []api.Chart { return sh.mapCharts(obj.Maps) })
	}
	if !found {
		return &api.Error{Code: api.CodeMapNotFound, Errno: "ENOENT", Message: fmt.Sprintf("%q: no script that runs, and no program, of this name has maps", of), Detail: "the answer without the parameter of lists the names that have maps"}
	}
	if n := len(out.Charts); n > api.MaxCharts {
		out.Charts, out.Left = out.Charts[:api.MaxCharts], n-api.MaxCharts
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// charts returns the charts of a script's maps, sorted by name. It returns none
// once the script has ended.
func (rs *runningScript) charts(ctx context.Context) []api.Chart {
	var b bytes.Buffer
	rs.lookAt(ctx, func(p *script.Printer) { p.Derive(true, func(text string) { b.WriteString(text) }).Maps() })
	out := []api.Chart{}
	for line := range bytes.Lines(b.Bytes()) {
		var x struct {
			Type string
			Data json.RawMessage
		}
		if json.Unmarshal(line, &x) != nil {
			continue // its names come from the script, not from the guest
		}
		// A map that cannot be read gets no chart.
		if x.Type == "hist" || x.Type == "lhist" {
			hists, _ := chart.ParsePrinted(x.Data)
			for name, buckets := range hists {
				out = append(out, histChart(name, buckets))
			}
			continue
		}
		numbers, _ := chart.ParsePrintedNumbers(x.Data, x.Type == "stats")
		out = append(out, numberCharts(numbers)...)
	}
	slices.SortFunc(out, func(a, b api.Chart) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// histChart is a histogram.
func histChart(name string, buckets []chart.Bucket) api.Chart {
	n := min(len(buckets), api.MaxBars)
	c := api.Chart{Name: name, Hist: true, Bars: []api.ChartBar{}, Left: len(buckets) - n}
	for _, b := range buckets[:n] {
		c.Bars = append(c.Bars, api.ChartBar{Label: b.Label, Count: float64(b.Count)})
	}
	return c
}

// numberCharts returns charts of maps of numbers, each map with all of its keys.
func numberCharts(numbers map[string]float64) (out []api.Chart) {
	bars := map[string][]api.ChartBar{}
	for title, n := range numbers {
		name, key, keyed := strings.Cut(title, "[")
		if keyed {
			key = strings.TrimSuffix(key, "]")
		} else {
			key = name
		}
		bars[name] = append(bars[name], api.ChartBar{Label: key, Count: n})
	}
	for name, all := range bars {
		slices.SortFunc(all, func(a, b api.ChartBar) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Label, b.Label))
		})
		n := min(len(all), api.MaxBars)
		out = append(out, api.Chart{Name: name, Bars: all[:n], Left: len(all) - n})
	}
	return out
}

// mapCharts returns charts of the maps of programs: histograms, and numbers for
// maps with one number for each key.
func (sh *scriptHost) mapCharts(ids []uint64) []api.Chart {
	out := []api.Chart{}
	for _, id := range ids {
		d, err := sh.dumpMap(strconv.FormatUint(id, 10))
		if err != nil {
			continue // it went just now
		}
		if d.Hist {
			var buckets []chart.Bucket
			for _, b := range d.Buckets {
				buckets = append(buckets, chart.NewBucket(uint64(b.Low), uint64(b.High), b.Count))
			}
			out = append(out, histChart(d.Name, buckets))
			continue
		}
		numbers := map[string]float64{}
		for _, e := range d.Values {
			if n, ok := numberOf(e); ok && n != 0 {
				numbers[d.Name+"["+keyText(e)+"]"] = n
			}
		}
		out = append(out, numberCharts(numbers)...)
	}
	slices.SortFunc(out, func(a, b api.Chart) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// numberOf returns the count of an entry, summed over all vCPUs, if it is a
// single number.
func numberOf(e api.MapEntry) (sum float64, ok bool) {
	for i, v := range e.Values {
		var n float64
		switch {
		case i < len(e.Data):
			if json.Unmarshal(e.Data[i], &n) != nil {
				return 0, false
			}
		case len(v) == 8 || len(v) == 16: // 4 or 8 bytes, little endian
			n = littleEndian(v)
		default:
			return 0, false
		}
		sum += n
	}
	return sum, len(e.Values) > 0
}

// littleEndian formats the number in these bytes in hexadecimal.
func littleEndian(digits string) (n float64) {
	for i := len(digits) - 2; i >= 0; i -= 2 {
		b, err := strconv.ParseUint(digits[i:i+2], 16, 8)
		if err != nil {
			panic("BUG: a map's value is no hexadecimal")
		}
		n = n*256 + float64(b)
	}
	return n
}

// keyText returns a key as text according to its type, or as a number or bytes
// without one.
func keyText(e api.MapEntry) string {
	switch {
	case e.KeyData != nil:
		return string(e.KeyData)
	case len(e.Key) <= 16:
		return strconv.FormatFloat(littleEndian(e.Key), 'f', -1, 64)
	}
	return e.Key
}

// follow lets other clients look at a client's script, until end is called.
func (s *scripts) follow(rs *runningScript) (end func()) {
	rs.look, rs.over = make(chan func()), make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*runningScript]struct{}{}
	}
	s.open[rs] = struct{}{}
	return func() {
		s.mu.Lock()
		delete(s.open, rs)
		s.mu.Unlock()
		close(rs.over)
	}
}

// listFollowed returns the scripts with clients, by their streams.
func (s *scripts) listFollowed() []*runningScript {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.open), func(a, b *runningScript) int { return cmp.Compare(a.id, b.id) })
}
