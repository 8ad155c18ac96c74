package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// chartHelp describes the flags for charts.
const chartHelp = `--heat draws each histogram of hist() or lhist() over time: a column for each --interval,
the largest values at the top, and warmer or darker colors for higher counts. --format svg
draws the histograms, or with --heat these charts, as a standalone picture; all other output
then goes to standard error.`

// heatFlags are the flags of commands that sample a map periodically.
type heatFlags struct {
	heat     bool
	every    time.Duration
	duration time.Duration
}

func (h *heatFlags) declare(f *pflag.FlagSet) {
	f.BoolVar(&h.heat, "heat", false, "draw the histograms over time, until Ctrl-C or --duration")
	f.DurationVar(&h.every, "interval", time.Second, "with --heat: the time that a column covers")
	f.DurationVarP(&h.duration, "duration", "d", 0, "with --heat: end after that time")
}

// check returns an error for flags that exclude each other.
func (h *heatFlags) check(r *command.Run) error {
	switch {
	case !h.heat && (r.Given("interval") || r.Given("duration")):
		return command.Usagef("--interval and --duration are for --heat")
	case h.heat && r.WantsJSON():
		return command.Usagef("--heat is a drawing: --format table or svg")
	case h.every < time.Millisecond || r.Given("duration") && h.duration < time.Millisecond:
		return command.Usagef("--interval %v, --duration %v: shorter than 1ms", h.every, h.duration)
	}
	return nil
}

// poll draws the counts of get over time. The counts must only grow. It stops when ctx or the duration ends, or get returns
// false.
func (h *heatFlags) poll(ctx context.Context, r *command.Run, title string, get func(context.Context) (counts map[string][]chart.Bucket, ok bool, err error)) error {
	over := ctx
	if h.duration > 0 {
		var cancel context.CancelFunc
		over, cancel = context.WithTimeout(ctx, h.duration)
		defer cancel()
	}
	heats := chart.Heats{Every: h.every}
	before, ok, err := get(ctx)
	begun := time.Now()
	tick := time.NewTicker(h.every)
	defer tick.Stop()
	for over.Err() == nil && ok && err == nil {
		select {
		case <-tick.C:
		case <-over.Done():
		}
		var now map[string][]chart.Bucket
		if now, ok, err = get(context.WithoutCancel(ctx)); ok && err == nil {
			heats.AddAt(time.Since(begun), growth(before, now))
			before = now
		}
	}
	if err != nil {
		return err
	}
	return printHeats(r, r.Stdout, title, &heats)
}

// growth returns by how much counts have grown since before. A count that has fallen was reset, so its new value is the growth.
func growth(before, now map[string][]chart.Bucket) map[string][]chart.Bucket {
	out := map[string][]chart.Bucket{}
	for title, buckets := range now {
		was := map[string]uint64{}
		for _, b := range before[title] {
			was[b.Label] = b.Count
		}
		for _, b := range buckets {
			if n := was[b.Label]; b.Count >= n {
				b.Count -= n
			}
			out[title] = append(out[title], b)
		}
	}
	return out
}

// printHeats prints heat maps as text or as a picture.
func printHeats(r *command.Run, out io.Writer, title string, heats *chart.Heats) error {
	all, left := heats.List()
	var remarks []string
	if missing := heats.MissingText(); missing != "" && len(all) > 0 {
		remarks = append(remarks, missing)
	}
	if left > 0 {
		r.Note("%s more had no room.", command.Plural(left, "histogram"))
	}
	if r.Format == formatSVG {
		var of []chart.Drawing
		for _, h := range all {
			of = append(of, h)
		}
		return chart.Picture(out, title, of, remarks...)
	}
	for _, h := range all {
		lines := append([]string{command.Clean(h.Title) + ":"}, h.Lines(command.Width(out), chart.GlyphsOf(r.Getenv), r.Colors(out))...)
		for _, l := range append(lines, "") {
			if _, err := fmt.Fprintln(out, l); err != nil {
				return err
			}
		}
	}
	for _, text := range remarks {
		if _, err := fmt.Fprintln(out, text); err != nil {
			return err
		}
	}
	return nil
}

// charter reads a script's JSON output and draws its histograms at the end. It passes all other output through.
type charter struct {
	*command.Run
	title string
	out   io.Writer // for the drawing
	heat  bool

	part   []byte // an incomplete line
	last   map[string][]chart.Bucket
	moment map[string][]chart.Bucket // since the last interval
	heats  chart.Heats
	begun  int64 // start of the first interval, in the clock of api.Interval; 0: no interval yet
}

// maxChartLine is the maximum length of a line, in bytes.
const maxChartLine = 64 << 20

// Write splits the output into lines, which may arrive in parts.
func (c *charter) Write(p []byte) (int, error) {
	for rest := p; ; {
		line, more, whole := bytes.Cut(rest, []byte("\n"))
		if len(c.part)+len(line) > maxChartLine {
			return 0, fmt.Errorf("the script prints a line of more than %d bytes", maxChartLine)
		}
		c.part = append(c.part, line...)
		if !whole {
			return len(p), nil
		}
		if err := c.line(c.part); err != nil {
			return 0, err
		}
		c.part, rest = c.part[:0], more
	}
}

// line processes one line.
func (c *charter) line(line []byte) error {
	var x struct {
		Type string
		Data json.RawMessage
	}
	if len(line) == 0 {
		return nil
	}
	if err := json.Unmarshal(line, &x); err != nil {
		return c.say(string(line) + "\n") // scripts can print anything
	}
	var text string
	switch {
	case x.Type == "hist":
		return c.hists(x.Data)
	case x.Type == "attached_probes", x.Type == "lost_events":
		return nil // reported elsewhere
	case json.Unmarshal(x.Data, &text) == nil:
		return c.say(text)
	case x.Type == "map" || x.Type == "stats":
		var of map[string]json.RawMessage
		if err := json.Unmarshal(x.Data, &of); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(of)) {
			if err := c.say(name + ": " + string(of[name]) + "\n"); err != nil {
				return err
			}
		}
		return nil
	}
	return c.say(string(x.Data) + "\n")
}

// say prints output that is not a histogram.
func (c *charter) say(text string) error {
	to := c.out
	if c.Format == formatSVG {
		to = c.Stderr
	}
	_, err := io.WriteString(to, text)
	return err
}

// hists stores histograms.
func (c *charter) hists(data json.RawMessage) error {
	all, err := chart.ParsePrinted(data)
	if err != nil {
		return err
	}
	if c.last == nil {
		c.last, c.moment = map[string][]chart.Bucket{}, map[string][]chart.Bucket{}
	}
	for title, buckets := range all {
		if len(c.last) < chart.MaxDrawings || c.last[title] != nil {
			c.last[title] = buckets
		}
		c.moment[title] = buckets
	}
	return nil
}

// interval ends an interval. It is called after all output of that interval.
func (c *charter) interval(x api.Interval) {
	if c.heat {
		if c.begun == 0 {
			c.begun = x.TimeNS - int64(c.heats.Every)
		}
		c.heats.AddAt(time.Duration(x.TimeNS-c.begun), c.moment)
		c.moment = map[string][]chart.Bucket{}
	}
}

// close draws the charts.
func (c *charter) close() error {
	if c.heat {
		if len(c.moment) > 0 {
			c.heats.Add(c.moment)
		}
		return printHeats(c.Run, c.out, c.title, &c.heats)
	}
	return chart.Picture(c.out, c.title, pictures(c.last))
}

// pictures returns the histograms as drawings, sorted by title.
func pictures(all map[string][]chart.Bucket) (of []chart.Drawing) {
	for _, title := range slices.Sorted(maps.Keys(all)) {
		if len(all[title]) > 0 {
			of = append(of, chart.Hist{Title: title, Buckets: all[title]})
		}
	}
	return of
}

// dumpBuckets converts the buckets of a map dump.
func dumpBuckets(bs []api.MapBucket) (out []chart.Bucket) {
	for _, b := range bs {
		out = append(out, chart.NewBucket(uint64(b.Low), uint64(b.High), b.Count))
	}
	return out
}

// parseHists returns the histograms in a script's JSON output.
func parseHists(r *command.Run, text string) (map[string][]chart.Bucket, error) {
	c := &charter{Run: r, out: io.Discard}
	_, err := io.WriteString(c, text)
	if c.moment == nil {
		c.moment = map[string][]chart.Bucket{}
	}
	return c.moment, err
}
