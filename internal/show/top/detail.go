package top

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// in has the words that precede the place where handlers run.
var in = map[string]string{api.RunsInGuest: "in", api.RunsOnHost: "on"}

// maxHits is how many of a probe's last hits are kept.
const maxHits = 20

// detail is the open probe.
type detail struct {
	id     uint64
	name   string
	hits   []string // the last ones, a line each, the newest at the end
	stacks []string // lines; nil: not requested
	busy   bool     // they are being gathered
	top    int      // first line that is shown
}

// Hit adds a hit of the open probe, as a line.
func (m *Model) Hit(id uint64, line string) {
	if m.into != nil && m.into.id == id && !m.paused {
		m.into.hits = lastN(append(m.into.hits, line), maxHits)
	}
}

// Stacks takes the lines of the requested stacks.
func (m *Model) Stacks(id uint64, lines []string) {
	if m.into != nil && m.into.id == id {
		m.into.stacks, m.into.busy = lines, false
	}
}

// detailKey handles a key there.
func (m *Model) detailKey(key string) Do {
	switch key {
	case "esc", "left", "enter":
		m.into = nil
		return Shut
	case "up", "k":
		m.into.top--
	case "down", "j":
		m.into.top++
	case "pgup":
		m.into.top -= max(1, m.page)
	case "pgdown":
		m.into.top += max(1, m.page)
	case "home", "g":
		m.into.top = 0
	case "S":
		if _, ok := m.AskedRow(); ok && !m.into.busy {
			m.into.busy, m.into.stacks = true, nil
			return Stacks
		}
	}
	return Nothing
}

// detailLines returns lines about the open probe, no more than that.
func (m *Model) detailLines(width, lines int) []string {
	d := m.into
	if lines < 1 {
		return nil
	}
	var all []string
	add := func(text string) { all = append(all, cell(text, width, false)) }
	head := func(text string) { all = append(all, "", m.paint(command.Name, cell(text, width, false))) }
	r, ok := m.AskedRow()
	if !ok {
		add(d.name + " is not attached any more.")
	} else {
		add(fmt.Sprintf("%s at %s: %s a second by %s, handled %s the %s", r.Name, r.Place, Number(r.Rate), r.By, in[r.Runs], r.Runs))
		add(fmt.Sprintf("hits %d, missed %d, lost %d", r.Hits, r.Missed, r.Lost))
		if rates := m.rates.history(d.id); len(rates) > 0 {
			all = append(all, m.Glyphs.Sparkline(rates, min(width, len(rates))))
			add(fmt.Sprintf("hits a second: %s to %s", Number(slices.Min(rates)), Number(slices.Max(rates))))
		}
		if x := m.rates.probes[d.id]; x != nil && r.Timed > 0 {
			head(fmt.Sprintf("durations of %d of %d calls: mean %s, p99 %s", r.Timed, r.Calls, Duration(r.MeanNS), Duration(r.P99NS)))
			for _, l := range octaves(x.durations()).Lines(min(width, 80)) {
				add(l)
			}
		}
	}
	head("last hits")
	if len(d.hits) == 0 {
		add("none yet")
	}
	for _, h := range slices.Backward(d.hits) {
		add(strings.TrimLeft(h, " "))
	}
	head("stacks")
	switch {
	case d.busy:
		add("they are being gathered")
	case d.stacks == nil:
		add("S gathers some, for which a second probe is attached for a moment")
	}
	for _, l := range d.stacks {
		add(l)
	}
	m.page = lines
	d.top = max(0, min(d.top, len(all)-lines))
	return all[d.top:min(len(all), d.top+lines)]
}

// octaves returns a histogram of durations by powers of two, each by its first
// nanosecond, without gaps.
func octaves(d *api.Durations) (h chart.Hist) {
	var counts [65]uint64
	lo, hi := len(counts), -1
	for _, b := range d.Buckets {
		i := bits.Len64(uint64(b.Low))
		counts[i] += b.Count
		lo, hi = min(lo, i), max(hi, i)
	}
	for i := lo; i <= hi; i++ {
		label := "0ns"
		if i > 0 {
			label = Duration(1 << (i - 1))
		}
		h.Buckets = append(h.Buckets, chart.Bucket{Label: label, Count: counts[i]})
	}
	return h
}
