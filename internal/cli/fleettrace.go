package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// fleetTrace shows the hits of all guests of a fleet as one stream.
type fleetTrace struct {
	*command.Run
	flags *traceFlags
	out   io.Writer
	order *fleet.Order[*fleetHit]
	width int // of the longest name

	mu     sync.Mutex
	all    []*traced
	left   uint64 // of the hits of --count
	enough func()
}

// traced is a daemon of which hits are shown.
type traced struct {
	name    string
	start   api.Start
	begun   bool
	lines   *timeline.Lines
	post    map[uint64]bool // by probe: it has a second record
	end     api.End
	err     error
	unshown uint64
	came    uint64 // hits of it
	lost    uint64 // that it has said
}

// fleetHit is something that a daemon has sent.
type fleetHit struct {
	of   *traced
	hit  *api.Hit // nil: it is something else
	text string   // a line or more, without the name
	raw  api.Record
}

// fleetRecord is a record of a stream with its daemon.
type fleetRecord struct {
	Daemon string `json:"daemon"`
	api.Record
}

// traceMany shows hits of all daemons until there is a reason to stop.
func traceMany(ctx context.Context, r *command.Run, m *members, flags *traceFlags) (err error) {
	if slices.Contains(timeline.Formats, r.Format) || len(flags.maps) > 0 {
		return ofOne("timelines and --map")
	}
	t := &fleetTrace{Run: r, flags: flags, out: r.Stdout, left: flags.count}
	begin := func() error { return nil }
	if flags.output != "" {
		f, err := files.Later(ctx, flags.output)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		t.out, begin = f, f.Begin
	}
	t.out = &lockedWriter{w: t.out}
	if flags.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, flags.timeout, errTimeout)
		defer cancel()
	}
	specs, err := flags.specs(r, r.Args, flags.stay)
	if err != nil {
		return err
	}
	over, enough := context.WithCancel(ctx)
	defer enough()
	t.enough, t.order = enough, fleet.NewOrder(settleTime, t.emit).Sized(func(h *fleetHit) int { return len(h.text) + len(h.raw.Data) })
	clock := timeline.ClockWall
	if r.Given("time") {
		clock = flags.clock
	}
	begin = sync.OnceValue(begin)
	colors := r.Colors(r.Stdout) && flags.output == ""
	if _, err := timeline.NewLines(clock, colors); err != nil {
		return err
	}
	for _, c := range m.all {
		t.width = max(t.width, len(c.Name))
	}
	first := true
	err = m.everyone(over, true, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		probes, daemons := 0, 0
		for _, one := range t.all {
			if one.begun {
				probes, daemons = probes+len(one.start.Probes), daemons+1
			}
		}
		if first = false; daemons > 0 {
			r.Note("Tracing %s in %s.", command.Plural(probes, "probe"), command.Plural(daemons, "daemon"))
		}
	}, func(c member) func(func()) {
		one := &traced{name: c.Name, post: map[uint64]bool{}}
		one.lines, _ = timeline.NewLines(clock, colors) // as the first time
		t.mu.Lock()
		defer t.mu.Unlock()
		t.all = append(t.all, one)
		t.order.Begin(one.name)
		late := !first
		return func(started func()) {
			t.follow(ctx, over, one, c.Client, specs, func() error {
				defer started()
				if late {
					r.Note("%s: has come, and is traced", command.Line(one.name))
				}
				return begin()
			})
		}
	})
	slices.SortFunc(t.all, func(a, b *traced) int { return fleet.CompareNames(a.name, b.name) })
	return cmp.Or(t.finish(ctx), err)
}

// follow takes what one daemon sends until its end.
func (t *fleetTrace) follow(ctx, over context.Context, one *traced, c *remote.Client, specs []api.ProbeSpec, began func() error) {
	defer func() { _ = t.order.End(one.name) }() // an error of the writer's is finish's
	if one.err = giveFiles(ctx, t.Run, c, t.flags.files); one.err != nil {
		return
	}
	req := api.StreamEvents{Probes: specs, Names: t.flags.names}
	one.end, one.err = follow(ctx, over, c, func(life context.Context) (*remote.Stream, error) { return c.Events(life, req) },
		func(raw api.Record, s api.Start) error {
			t.mu.Lock()
			one.start, one.begun = s, true
			t.mu.Unlock()
			one.lines.Start(s)
			for _, p := range s.Probes {
				one.post[p.ID] = p.Post
			}
			if n := len(s.Skipped); n > 0 {
				t.Note("%s: skipped %s", command.Line(one.name), command.Plural(n, "function"))
			}
			return cmp.Or(began(), t.put(one, s.TimeNS, &fleetHit{of: one, raw: raw}))
		}, func(raw api.Record) error { return t.record(one, raw) })
	if one.err == nil && one.end.Reason == endCutOff {
		one.err = remote.ErrCutOff
	}
}

// put has something of a daemon wait for its place.
func (t *fleetTrace) put(one *traced, at int64, h *fleetHit) error {
	return t.order.Put(one.name, one.start.Epoch.UnixNano()+at, h)
}

// record takes a record of a daemon.
func (t *fleetTrace) record(one *traced, raw api.Record) error {
	r, err := timeline.Parse(raw)
	if err != nil {
		return fmt.Errorf("%w: %w", remote.ErrProtocol, err)
	}
	h := &fleetHit{of: one, raw: raw}
	when := int64(0)
	switch {
	case r.Hit != nil:
		one.came++
		h.hit, h.text, when = r.Hit, one.lines.Line(*r.Hit), r.Hit.TimeNS
	case r.Stop != nil:
		h.text, when = "# "+command.Clean(timeline.StopText(*r.Stop))+"\n", r.Stop.TimeNS
	case r.Boot != nil:
		h.text = one.lines.Boot(*r.Boot)
	case r.Lost != nil:
		one.lost = command.Sum(one.lost, r.Lost.Lost)
		h.text = fmt.Sprintf("[LOST %d EVENTS]\n", r.Lost.Lost)
	default:
		if raw.Type == api.RecordHeartbeat {
			return nil
		}
	}
	if when == 0 { // it stands behind what came before it
		return t.order.Put(one.name, t.order.Last(one.name), h)
	}
	return t.put(one, when, h)
}

// emit writes what has found its place.
func (t *fleetTrace) emit(h *fleetHit, late bool) error {
	if h.hit != nil && t.flags.count > 0 {
		if t.left == 0 {
			h.of.unshown++
			return nil
		}
		// The two records of one arrival count once, with the second.
		if (h.hit.Stage == "post") == h.of.post[h.hit.ID] {
			if t.left--; t.left == 0 {
				t.enough()
			}
		}
	}
	switch {
	case t.WantsJSON():
		b, err := json.Marshal(fleetRecord{h.of.name, h.raw})
		if err != nil {
			return err
		}
		_, err = t.out.Write(append(b, '\n'))
		return err
	case t.Templated() && h.hit != nil:
		return t.Row(t.out, hitRow{Hit: *h.hit, Daemon: h.of.name})
	case t.flags.hitsAlone(t.Run) && h.hit == nil:
		_, err := io.WriteString(t.Stderr, t.named(h.of, h.text))
		return err
	}
	if late && h.hit != nil && !h.hit.Late {
		line, rest, _ := strings.Cut(h.text, "\n")
		h.text = line + " [LATE]\n" + rest
	}
	_, err := io.WriteString(t.out, t.named(h.of, h.text))
	return err
}

// named is text with its daemon before each line.
func (t *fleetTrace) named(one *traced, text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		fmt.Fprintf(&b, "%-*s %s", t.width, command.Clean(one.name), line)
	}
	return b.String()
}

// finish writes the totals of each daemon, and says whether the trace has shown what it was to show.
func (t *fleetTrace) finish(ctx context.Context) error {
	if _, err := t.order.Close(); err != nil {
		return err
	}
	reason := endInterrupted
	switch {
	case t.flags.count > 0 && t.left == 0:
		reason = endCount
	case errors.Is(context.Cause(ctx), errTimeout):
		reason = endTimeout
	}
	var failed []failure
	for _, one := range t.all {
		failed = append(failed, failure{one.name, one.err})
		if !one.begun {
			continue
		}
		end := one.end
		if end.Reason == endCutOff { // what has come, since it says nothing more
			end.Delivered, end.Lost = one.came, one.lost
		}
		if end.Unshown = one.unshown; end.Reason == "" || end.Reason == api.EndAsked {
			end.Reason = reason
		}
		text := timeline.Totals(end)
		if t.WantsJSON() {
			b, err := json.Marshal(struct {
				Daemon string         `json:"daemon"`
				Type   api.RecordType `json:"type"`
				Data   api.End        `json:"data"`
			}{one.name, api.RecordEnd, end})
			if err != nil {
				return err
			}
			text = string(b) + "\n"
		} else {
			text = t.named(one, text)
		}
		out := t.out
		if t.flags.hitsAlone(t.Run) {
			out = t.Stderr
		}
		if !t.flags.quiet {
			if _, err := io.WriteString(out, text); err != nil {
				return err
			}
		}
	}
	if err := failures(t.Run, failed); err != nil {
		return err
	}
	seen := fmt.Sprintf("%s seen of %d", command.Plural(t.flags.count-t.left, "hit"), t.flags.count)
	switch {
	case t.left == 0 || reason == endInterrupted && ctx.Err() != nil:
		return nil
	case reason == endTimeout:
		return fmt.Errorf("%w after %v: %s", errTimeout, t.flags.timeout, seen)
	}
	return fmt.Errorf("%w: %s", errTooFew, seen)
}
