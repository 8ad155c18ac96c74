package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/files"
)

// traceFlags are those of trace.
type traceFlags struct {
	probeFlags
	stay    bool
	names   []string
	count   uint64
	timeout time.Duration
	output  string
	clock   string
	quiet   bool
}

func (a *app) trace() command.Spec {
	var flags traceFlags
	return command.Spec{
		Use:   "trace [flags] [DEFINITION...]",
		Short: "Show hits as they happen",
		Long: `Show hits as they happen, one per line, in ftrace's columns: task (<...>-0 where the
guest's tasks are not known), vCPU, flags, time, event, place and arguments. Of the flags
only the first is known, d: interrupts off; the others are dots. The time is in seconds
since the guest's boot; with --time relative since the trace was asked for; with --time
wall it is the date and the time of day, with the zone. --no-headers leaves out ftrace's header, whose
lines begin with #. A function's return is shown as (CALLER <- FUNCTION), its result is
$retval, and the time since its entry stands in brackets. With definitions, their probes are attached for the time of the trace and only their hits are shown;
without, the hits of all probes, or of those that --probe names.

Lines are in the order of time, except those marked [LATE]: they came more than 30 ms
behind their time, out of the guest's own memory, and others were shown meanwhile.
[LOST n EVENTS] stands where lines are missing.

The trace ends with Ctrl-C, after --count hits, after --timeout, or when the
guest ends; a second Ctrl-C does not wait for anything. Its last lines, which begin
with #, are its totals: the events, which are those shown, those unshown because
--count were there, and those lost; and of each probe that came out with it,
its counts. --format json prints the records of the stream, one per line; the last
one is an end with the same totals, and reason interrupted, count or timeout where
it is the trace that has ended the stream, or cut_off where the daemon sent no end, or
not within 30 seconds: the totals are then of what was shown, and the exit status is 1.

` + templateHelp + ` {{.Arg "NAME"}} is an argument's text.
Lost events and totals then go to standard error, and with --quiet header and totals nowhere.`,
		Example: `  guestprobe trace 'p:myread vfs_read fd=%di count=%dx:u64'
  guestprobe trace --probe myread -c 10 --timeout 5s
  guestprobe trace -c 3 --format '{{.CPU}} {{.Symbol}} {{.Arg "fd"}}' 'p vfs_read fd=%di:s32'`,
		Args:  command.Between(0, -1, ""),
		Row:   hitRow{},
		Files: []string{"file", "output"},
		Flags: func(f *pflag.FlagSet) {
			flags.add(f)
			f.BoolVar(&flags.stay, "stay", false, "keep the probes attached when the trace ends")
			f.StringArrayVarP(&flags.names, "probe", "p", nil, "show the hits of this attached `PROBE`, a name, group or pattern as for detach; may be repeated")
			f.Uint64VarP(&flags.count, "count", "c", 0, "end after this `many` hits")
			f.DurationVar(&flags.timeout, "timeout", 0, "end after this `duration`; exit status 124 if --count was not reached")
			f.StringVarP(&flags.output, "output", "o", "", "write to this `file` instead of standard output")
			f.BoolVarP(&flags.quiet, "quiet", "q", false, "without ftrace's header, and without the totals")
			f.StringVar(&flags.clock, "time", clockBoot, "`what` times are: boot, relative or wall; see above")
		},
		FlagComplete: map[string]command.Completion{"probe": a.completeProbes()},
		Run: a.ask(func(ctx context.Context, r *command.Run, c *client.Client) error {
			if len(r.Args) > 0 && len(flags.names) > 0 {
				return command.Usagef("--probe is for attached probes: it cannot be used with definitions")
			}
			if flags.quiet && r.WantsJSON() {
				return command.Usagef("--quiet and --format json: say one of them")
			}
			if r.Tabled() {
				return command.Usagef("--format 'table ...': hits are printed as they come, not in columns; leave out the word")
			}
			return trace(ctx, r, c, &flags)
		}),
	}
}

// trace shows hits until there is a reason to stop.
func trace(ctx context.Context, run *command.Run, c *client.Client, flags *traceFlags) (err error) {
	if run.Given("timeout") && flags.timeout <= 0 {
		return command.Usagef("--timeout %v: not above 0", flags.timeout)
	}
	lines, err := newLiner(flags.clock)
	if err != nil {
		return err
	}
	defs := run.Args
	out := run.Stdout
	if flags.output != "" {
		f, err := files.Create(ctx, flags.output)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		out = f
	}
	if flags.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, flags.timeout, errTimeout)
		defer cancel()
	}
	specs, err := flags.specs(defs, flags.stay)
	if err == nil {
		err = giveFiles(ctx, run, c, flags.files)
	}
	if err != nil {
		return err
	}
	lines.color = run.Colors(out)
	t := &tracer{Run: run, out: out, lines: lines, quiet: flags.quiet, count: flags.count, left: flags.count, post: map[uint64]bool{}}
	end, err := t.follow(ctx, c, api.StreamEvents{Probes: specs, Names: flags.names})
	if err != nil {
		return inDefinition(err, defs)
	}
	return errors.Join(t.close(end), t.verdict(end, flags.timeout))
}

// tracer prints the records of one stream.
type tracer struct {
	*command.Run
	out   io.Writer
	lines *liner
	quiet bool            // hits only, and what is lost of them
	count uint64          // hits to show; 0: all
	left  uint64          // of these
	post  map[uint64]bool // by probe: it has a second record

	shown, unshown, lost uint64 // records of hits: printed, too many, missing
	late, lateShown      uint64 // of those that came, and of those printed: behind a later one
}

// Reasons in the end record of a trace that no daemon sends.
const (
	endInterrupted = "interrupted"
	endTimeout     = "timeout"
	endCount       = "count"
	endCutOff      = "cut_off" // there was none from the daemon
)

// endTime bounds how long a daemon may take for the end of a stream that it was asked
// for. A busy machine's takes seconds; who does not want to wait presses Ctrl-C again.
const endTime = 30 * time.Second

// follow prints a stream until ctx ends it, or there are as many hits as are to be
// shown, or it ends by itself. In each case it goes on to the stream's own end, which
// says what has become of everything. An error is that there was no stream, or no
// printing.
func (t *tracer) follow(ctx context.Context, c *client.Client, req api.StreamEvents) (api.End, error) {
	over, enough := context.WithCancel(ctx)
	defer enough()
	end, err := follow(ctx, over, c, func(life context.Context) (*client.Stream, error) { return c.Events(life, req) }, t.start, func(r api.Record) error {
		err := t.record(r)
		if t.count > 0 && t.left == 0 {
			enough()
		}
		return err
	})
	switch end.Reason {
	case "", api.EndAsked:
		end.Reason = t.reason(ctx)
	case endCutOff:
		end.Delivered, end.Lost, end.Late = t.shown+t.unshown, t.lost, t.late
	}
	return end, err
}

// follow reads a stream to its own end, which it asks for when over is. Its first record
// goes to start, all others to record, of which either may fail. The end has no reason
// where ctx has ended before the stream began, and is endCutOff where the daemon sends none.
func follow(ctx, over context.Context, c *client.Client, open func(context.Context) (*client.Stream, error), start func(api.Record, api.Start) error, record func(api.Record) error) (api.End, error) {
	life, cut := context.WithCancel(context.WithoutCancel(ctx))
	asked, stop := context.WithCancel(over)
	var asking sync.WaitGroup
	defer func() { stop(); cut(); asking.Wait() }()
	opened := context.AfterFunc(ctx, cut)
	s, err := open(life)
	if err != nil && life.Err() != nil {
		return api.End{}, nil
	} else if err != nil {
		return api.End{}, err
	}
	defer s.Close()
	begun := false
	for {
		r, err := s.Next()
		switch {
		case !begun && life.Err() != nil:
			return api.End{}, nil
		case err != nil && life.Err() != nil, errors.Is(err, client.ErrCutOff):
			return api.End{Reason: endCutOff}, nil
		case err != nil:
			return api.End{}, err
		}
		switch r.Type {
		case api.RecordStart:
			first, err := data[api.Start](r)
			if err != nil {
				return api.End{}, err
			}
			if begun = opened(); !begun {
				return api.End{}, nil
			}
			asking.Go(func() {
				select {
				case <-asked.Done():
				case <-life.Done():
					return
				}
				time.AfterFunc(endTime, cut)
				// Without an answer no end comes either.
				_ = c.EndStream(life, first.Stream)
			})
			if err := start(r, first); err != nil {
				return api.End{}, err
			}
		case api.RecordEnd:
			return data[api.End](r)
		default:
			if err := record(r); err != nil {
				return api.End{}, err
			}
		}
	}
}

// reason is why a stream was to end.
func (t *tracer) reason(ctx context.Context) string {
	switch {
	case t.count > 0 && t.left == 0:
		return endCount
	case errors.Is(context.Cause(ctx), errTimeout):
		return endTimeout
	}
	return endInterrupted
}

// data reads the data of a record.
func data[T any](r api.Record) (v T, err error) {
	if err := json.Unmarshal(r.Data, &v); err != nil {
		return v, fmt.Errorf("%w: %w", client.ErrProtocol, err)
	}
	return v, nil
}

// write prints r as one line of JSON, if that is what is to be printed.
func (t *tracer) write(r api.Record) error {
	if !t.WantsJSON() {
		return nil
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return err
	}
	_, err := t.out.Write(line.Bytes())
	return err
}

// text prints lines of text, unless JSON is to be printed.
func (t *tracer) text(format string, args ...any) error {
	if t.WantsJSON() {
		return nil
	}
	_, err := fmt.Fprintf(t.out, format, args...)
	return err
}

// remark prints lines of text that are no hits: beside the hits, or where these are printed by a
// template on standard error.
func (t *tracer) remark(format string, args ...any) error {
	if !t.Templated() {
		return t.text(format, args...)
	}
	_, err := fmt.Fprintf(t.Stderr, format, args...)
	return err
}

func (t *tracer) start(r api.Record, s api.Start) error {
	for _, p := range s.Probes {
		t.post[p.ID] = p.Post
	}
	noteSkipped(t.Run, s.Skipped)
	t.Note("Tracing %s.", command.Plural(len(s.Probes), "probe"))
	t.lines.start(s)
	if t.Headings() && !t.quiet && !t.Templated() {
		if err := t.text("%s", traceHeader); err != nil {
			return err
		}
	}
	return t.write(r)
}

// record prints r.
func (t *tracer) record(r api.Record) error {
	switch r.Type {
	case api.RecordHit:
		h, err := data[api.Hit](r)
		if err != nil {
			return err
		}
		late := uint64(0)
		if h.Late {
			late = 1
		}
		t.late += late
		if t.count > 0 && t.left == 0 {
			t.unshown++
			return nil
		}
		t.shown++
		t.lateShown += late
		// The two records of one arrival count once, with the second.
		if t.count > 0 && (h.Stage == "post") == t.post[h.ID] {
			t.left--
		}
		if t.Templated() {
			return t.Row(t.out, hitRow{h})
		}
		if err := t.text("%s", t.lines.line(h)); err != nil {
			return err
		}
	case api.RecordStop:
		x, err := data[api.Stop](r)
		if err == nil {
			err = t.remark("# %s\n", command.Clean(stopText(x)))
		}
		if err != nil {
			return err
		}
	case api.RecordBoot:
		b, err := data[api.Boot](r)
		if err != nil {
			return err
		}
		t.lines.boot = b.BootNS
	case api.RecordLost:
		l, err := data[api.Lost](r)
		if err != nil {
			return err
		}
		t.lost += l.Lost
		if err := t.remark("[LOST %d EVENTS]\n", l.Lost); err != nil { // as ftrace
			return err
		}
	}
	return t.write(r)
}

// close prints the totals.
func (t *tracer) close(end api.End) error {
	end.Unshown = t.unshown
	noteEnd(t.Run, end, "")
	b, err := json.Marshal(end)
	if err != nil {
		return err
	}
	end.Late = t.lateShown // as many lines are marked
	err = t.write(api.Record{Type: api.RecordEnd, Data: b})
	if !t.quiet {
		err = errors.Join(err, t.remark("%s", totals(end)))
	}
	return err
}

// totals are the last lines of a trace.
func totals(end api.End) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s: %d shown", command.Plural(int(end.Delivered+end.Lost), "event"), end.Delivered-min(end.Unshown, end.Delivered))
	for _, n := range []struct {
		n    uint64
		what string
	}{{end.Unshown, "more unshown"}, {end.Lost, "lost"}} {
		if n.n > 0 || n.what == "lost" {
			fmt.Fprintf(&b, ", %d %s", n.n, n.what)
		}
	}
	if end.Late > 0 {
		fmt.Fprintf(&b, "; %d late", end.Late)
	}
	fmt.Fprintf(&b, " (%s)\n", command.Clean(end.Reason))
	for _, p := range end.Probes {
		s := p.Stats
		fmt.Fprintf(&b, "# %s: %s, %d handled, %d filtered, %d missed", command.Clean(p.Name), command.Plural(int(s.Hits), "hit"), s.Handled, s.Filtered, s.Missed)
		if p.Kind == "r" {
			fmt.Fprintf(&b, "; of those handled %d returned, %d abandoned, %d under way", s.Returns, s.Abandoned, s.UnderWay)
		}
		if s.Rejected > 0 {
			fmt.Fprintf(&b, "; %d filtered behind", s.Rejected)
		}
		fmt.Fprintf(&b, "; %s\n", command.Plural(int(s.Events), "event"))
	}
	return b.String()
}

// verdict says whether a trace has shown what it was to show.
func (t *tracer) verdict(end api.End, timeout time.Duration) error {
	seen := func() string {
		return fmt.Sprintf("%s seen of %d", command.Plural(int(t.count-t.left), "hit"), t.count)
	}
	switch {
	case end.Reason == endCutOff:
		return client.ErrCutOff
	case t.left == 0, end.Reason == endInterrupted:
		return nil
	case end.Reason == endTimeout:
		return fmt.Errorf("%w after %v: %s", errTimeout, timeout, seen())
	}
	return fmt.Errorf("%w: %s", errTooFew, seen())
}
