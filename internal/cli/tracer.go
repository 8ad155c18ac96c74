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
	"time"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// tracer shows hits. A single daemon's hits are shown as they come, several daemons' as one stream in the order of time.
type tracer struct {
	*command.Run
	flags *traceFlags
	alone bool        // a single daemon, not named in the output
	maps  *mapSampler // for a single daemon; nil: no map is sampled
	out   io.Writer
	order *fleet.Order[*tracedRecord] // for several daemons
	width int                         // width of the longest name

	mu     sync.Mutex
	all    []*traced
	left   uint64 // hits still to show for --count
	enough func()
}

// traced is a daemon whose hits are shown.
type traced struct {
	name    string
	start   api.Start
	begun   bool
	w       timeline.Writer // for a single daemon
	lines   *timeline.Lines // for several daemons
	post    map[uint64]bool // by probe: hits have a second record
	end     api.End
	err     error
	unshown uint64 // hits after the last one of --count
	came    uint64 // hits received
	late    uint64 // hits received after a hit with a later time
	lost    uint64 // hits that the daemon reported as lost
}

// tracedRecord is a record of a daemon.
type tracedRecord struct {
	*timeline.Record
	of   *traced
	text string // for several daemons: the record as lines, without the daemon's name
}

// fleetRecord is a record with the name of its daemon.
type fleetRecord struct {
	Daemon string `json:"daemon"`
	api.Record
}

// trace shows hits of daemons until the trace ends.
func trace(ctx context.Context, r *command.Run, m *members, flags *traceFlags) (err error) {
	command.PaceGarbage(100)
	if slices.Contains(timeline.Formats, r.Format) || len(flags.maps) > 0 {
		if m, err = m.requireOne("timelines and --map"); err != nil {
			return err
		}
	}
	t := &tracer{Run: r, flags: flags, alone: m.alone, out: r.Stdout, left: flags.count}
	begin := func() error { return nil }
	if flags.output != "" {
		f, err := files.CreateLater(ctx, flags.output)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		late := &lateFile{f: f}
		t.out, begin = late, sync.OnceValue(late.begin)
	}
	if flags.timeout > 0 {
		// The time of one daemon's trace begins when its probes are attached: otherwise a
		// slow host could use all of it for that, and trace nothing.
		limited, expire := context.WithCancelCause(ctx)
		ctx = limited
		defer expire(nil)
		limit := sync.OnceFunc(func() { time.AfterFunc(flags.timeout, func() { expire(errTimeout) }) })
		if create := begin; m.alone {
			begin = func() error { limit(); return create() }
		} else {
			limit()
		}
	}
	specs, err := flags.specs(r, r.Args, flags.stay)
	if err == nil && t.alone {
		err = giveFiles(ctx, r, m.all[0].Client, flags.files)
	}
	if err != nil {
		return err
	}
	over, enough := context.WithCancel(ctx)
	defer enough()
	t.enough = enough
	var w timeline.Writer
	if t.alone {
		if w, err = flags.writer(r, t.out); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.Close()) }()
		if len(flags.maps) > 0 {
			if t.maps, err = sampleMaps(ctx, m.all[0].Client, flags.maps, flags.every); err != nil {
				return err
			}
			defer t.maps.stop()
		}
	} else {
		t.out = &lockedWriter{w: t.out}
		t.order = fleet.NewOrder(settleTime, t.emit).LimitBytes(func(h *tracedRecord) int { return len(h.text) + len(h.Data) })
	}
	clock := timeline.ClockWall
	if r.Given("time") {
		clock = flags.clock
	}
	colors := r.Colors(r.Stdout) && flags.output == ""
	for _, c := range m.all {
		t.width = max(t.width, len(c.Name))
	}
	first := true
	err = m.forEachDaemon(over, true, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		probes, daemons := 0, 0
		for _, one := range t.all {
			if one.begun {
				probes, daemons = probes+len(one.start.Probes), daemons+1
			}
		}
		first = false
		switch {
		case daemons == 0:
		case t.alone && probes == 0 && len(specs) == 0 && len(flags.names) == 0 && !flags.quiet:
			r.Note("No probe is attached, so there is nothing to show yet: attach one with 'guestprobe attach DEFINITION'.")
		case t.alone && !flags.quiet && !r.WantsJSON():
			noteStill(ctx, r, m.all[0].Client)
		case !t.alone && !flags.quiet:
			r.Note("Tracing %s in %s.", command.Plural(probes, "probe"), command.Plural(daemons, "daemon"))
		}
	}, func(c member) func(func()) {
		one := &traced{name: c.Name, w: w, post: map[uint64]bool{}}
		one.lines, _ = timeline.NewLines(clock, colors) // flags.check has validated the clock
		t.mu.Lock()
		defer t.mu.Unlock()
		t.all = append(t.all, one)
		if !t.alone {
			t.order.Begin(one.name)
		}
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

// follow reads the records of one daemon until its stream ends.
func (t *tracer) follow(ctx, over context.Context, one *traced, c *remote.Client, specs []api.ProbeSpec, began func() error) {
	if !t.alone {
		defer func() { _ = t.order.End(one.name) }() // finish returns write errors
		if one.err = giveFiles(ctx, t.Run, c, t.flags.files); one.err != nil {
			return
		}
	}
	req := api.StreamEvents{Probes: specs, Names: t.flags.names}
	one.end, one.err = follow(ctx, over, c, func(life context.Context) (*remote.Stream, error) { return c.Events(life, req) },
		func(raw api.Record, s api.Start) error { return t.start(one, raw, s, began) },
		func(raw api.Record) error { return t.record(one, raw) })
}

// start handles the first record of a daemon.
func (t *tracer) start(one *traced, raw api.Record, s api.Start, began func() error) error {
	t.mu.Lock()
	one.start, one.begun = s, true
	t.mu.Unlock()
	one.lines.Start(s)
	for _, p := range s.Probes {
		one.post[p.ID] = p.Post
	}
	first := &tracedRecord{Record: &timeline.Record{Record: raw, Start: &s}, of: one}
	if !t.alone {
		if n := len(s.Skipped); n > 0 {
			t.Note("%s: skipped %s", command.Line(one.name), command.Plural(n, "function"))
		}
		return cmp.Or(began(), t.put(one, s.TimeNS, first))
	}
	if err := began(); err != nil {
		return err
	}
	noteSkipped(t.Run, s.Skipped)
	if !t.flags.quiet {
		t.Note("Tracing %s.", command.Plural(len(s.Probes), "probe"))
	}
	if t.maps != nil {
		t.maps.start(s.TimeNS)
	}
	return t.emit(first, false)
}

// put queues a record of one of several daemons in the order of time.
func (t *tracer) put(one *traced, at int64, h *tracedRecord) error {
	return t.order.Put(one.name, one.start.Epoch.UnixNano()+at, h)
}

// record handles a record of a daemon.
func (t *tracer) record(one *traced, raw api.Record) error {
	r, err := timeline.Parse(raw)
	if err != nil {
		return fmt.Errorf("%w: %w", remote.ErrProtocol, err)
	}
	if r.Hit != nil {
		if one.came++; r.Hit.Late {
			one.late++
		}
	}
	if r.Lost != nil {
		one.lost = command.Sum(one.lost, r.Lost.Lost)
	}
	h := &tracedRecord{Record: r, of: one}
	if t.alone {
		if err := t.writeSamples(one); err != nil {
			return err
		}
		return t.emit(h, false)
	}
	when := int64(0)
	switch {
	case r.Hit != nil:
		h.text, when = one.lines.Line(*r.Hit), r.Hit.TimeNS
	case r.Stop != nil:
		h.text, when = "# "+command.Clean(timeline.StopText(*r.Stop))+"\n", r.Stop.TimeNS
	case r.Boot != nil:
		h.text = one.lines.Boot(*r.Boot)
	case r.Lost != nil:
		h.text = fmt.Sprintf("[LOST %d EVENTS]\n", r.Lost.Lost)
	case raw.Type == api.RecordHeartbeat:
		return nil
	}
	if when == 0 { // no time of its own: place it after the records before it
		return t.order.Put(one.name, t.order.LastTime(one.name), h)
	}
	return t.put(one, when, h)
}

// writeSamples writes the samples of maps since the last call.
func (t *tracer) writeSamples(one *traced) error {
	if t.maps == nil {
		return nil
	}
	for _, s := range t.maps.take() {
		if err := one.w.Write(timeline.NewRecord(s)); err != nil {
			return err
		}
	}
	return nil
}

// emit counts a record and writes it. It drops hits after the last one of --count.
func (t *tracer) emit(h *tracedRecord, late bool) error {
	if h.Hit != nil && t.flags.count > 0 {
		if t.left == 0 {
			h.of.unshown++
			return nil
		}
		// A hit with two records counts once, at the second one.
		if (h.Hit.Stage == "post") == h.of.post[h.Hit.ID] {
			if t.left--; t.left == 0 {
				defer t.enough()
			}
		}
	}
	if t.alone {
		return h.of.w.Write(h.Record)
	}
	return t.write(h, late)
}

// write writes a record of one of several daemons.
func (t *tracer) write(h *tracedRecord, late bool) error {
	switch {
	case t.WantsJSON():
		b, err := json.Marshal(fleetRecord{h.of.name, h.Record.Record})
		if err != nil {
			return err
		}
		_, err = t.out.Write(append(b, '\n'))
		return err
	case t.Templated() && h.Hit != nil:
		return t.Row(t.out, hitRow{Hit: *h.Hit, Daemon: h.of.name})
	case t.flags.hitsAlone(t.Run) && h.Hit == nil:
		_, err := io.WriteString(t.Stderr, t.nameLines(h.of, h.text))
		return err
	}
	if late && h.Hit != nil && !h.Hit.Late {
		line, rest, _ := strings.Cut(h.text, "\n")
		h.text = line + " [LATE]\n" + rest
	}
	_, err := io.WriteString(t.out, t.nameLines(h.of, h.text))
	return err
}

// nameLines puts the daemon's name before each line.
func (t *tracer) nameLines(one *traced, text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		fmt.Fprintf(&b, "%-*s %s", t.width, command.Clean(one.name), line)
	}
	return b.String()
}

// reason returns why the trace ends its streams.
func (t *tracer) reason(ctx context.Context) string {
	switch {
	case t.flags.count > 0 && t.left == 0:
		return endCount
	case errors.Is(context.Cause(ctx), errTimeout):
		return endTimeout
	}
	return endInterrupted
}

// finish writes the totals of each daemon, and returns an error if the trace did not show all hits of --count.
func (t *tracer) finish(ctx context.Context) error {
	if t.alone && t.all[0].err != nil {
		err := nameDefinition(t.all[0].err, t.Args)
		var wire *api.Error
		if errors.As(err, &wire) && wire.Code == api.CodeBadDefinition && len(t.Args) == 1 && !strings.ContainsAny(t.Args[0], " :") {
			return fmt.Errorf("%w\nThe hits of an attached probe: guestprobe trace --probe %s", err, t.Args[0])
		}
		return err
	}
	if !t.alone {
		if _, err := t.order.Close(); err != nil {
			return err
		}
	}
	var failed []failure
	var wrote error
	for _, one := range t.all {
		if one.end.Reason == endCutOff {
			one.err = cmp.Or(one.err, remote.ErrCutOff)
		}
		failed = append(failed, failure{one.name, one.err})
		if one.begun || t.alone {
			t.completeEnd(ctx, one)
			if wrote = t.printTotals(one); wrote != nil {
				break
			}
		}
	}
	if wrote != nil && !t.alone {
		return wrote
	}
	return errors.Join(wrote, t.verdict(ctx, failed))
}

// completeEnd fills in the end record of a daemon's stream.
func (t *tracer) completeEnd(ctx context.Context, one *traced) {
	end := &one.end
	switch end.Reason {
	case "", api.EndAsked:
		end.Reason = t.reason(ctx)
	case endCutOff: // the daemon sent no totals, so use the counts of its records
		end.Delivered, end.Lost, end.Late = one.came, one.lost, one.late
	}
	end.Unshown = one.unshown
}

// printTotals writes the totals of a daemon.
func (t *tracer) printTotals(one *traced) error {
	if t.alone {
		noteEnd(t.Run, one.end, "")
		return errors.Join(t.writeSamples(one), one.w.Write(timeline.NewRecord(one.end)))
	}
	if t.flags.quiet {
		return nil
	}
	text := t.nameLines(one, timeline.Totals(one.end))
	if t.WantsJSON() {
		b, err := json.Marshal(fleetRecord{one.name, timeline.NewRecord(one.end).Record})
		if err != nil {
			return err
		}
		text = string(b) + "\n"
	}
	out := t.out
	if t.flags.hitsAlone(t.Run) {
		out = t.Stderr
	}
	_, err := io.WriteString(out, text)
	return err
}

// verdict returns an error if a daemon failed or the trace did not show all hits of --count.
func (t *tracer) verdict(ctx context.Context, failed []failure) error {
	reason := t.reason(ctx)
	over := reason == endInterrupted && ctx.Err() != nil
	if t.alone {
		reason = t.all[0].end.Reason
		over = reason == endInterrupted
		if failed[0].err != nil {
			return failed[0].err
		}
	} else if err := failures(t.Run, failed); err != nil {
		return err
	}
	seen := fmt.Sprintf("%s seen of %d", command.Plural(t.flags.count-t.left, "hit"), t.flags.count)
	switch {
	case t.left == 0 || over:
		return nil
	case reason == endTimeout:
		return fmt.Errorf("%w after %v: %s", errTimeout, t.flags.timeout, seen)
	}
	return fmt.Errorf("%w: %s", errTooFew, seen)
}
