package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
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
	maps    []string
	every   time.Duration
}

func (a *app) trace() command.Spec {
	var flags traceFlags
	return command.Spec{
		Use:   "trace [flags] [DEFINITION...]",
		Short: "Show hits as they happen",
		Long: `Show hits as they happen, one per line, in ftrace's columns: task (<...>-0 where the
guest's tasks are not known), vCPU, flags, time, event, place and arguments. Of the flags
only the first is known, d: interrupts off; the others are dots. The time is in seconds
since the guest's latest boot, which a line that begins with # tells where it comes in the
middle of a trace; with --time relative since the trace was asked for; with --time
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
'guestprobe report' and 'guestprobe convert' read these records later.

With --fleet the hits of all daemons that are meant come as one stream in the order of
time, each with its daemon's name, which templates have as {{.Daemon}}; the times are those of
the wall where --time says nothing else. The totals are of each daemon. --count is of all.

` + timelineHelp + ` A file's
name says the format, too, where --format does not: .pftrace, .dat, .chrome.json, .ndjson.
--map puts the numbers of a map beside the hits, looked at every 100 ms (--map-every).

` + templateHelp + ` {{.Arg "NAME"}} is an argument's text.
Boots, stops, lost events and totals then go to standard error, as do the first three with --quiet,
which has header and totals nowhere.`,
		Example: `  guestprobe trace 'p:myread vfs_read fd=%di count=%dx:u64'
  guestprobe trace --probe myread -c 10 --timeout 5s
  guestprobe trace -c 3 --format '{{.CPU}} {{.Symbol}} {{.Arg "fd"}}' 'p vfs_read fd=%di:s32'`,
		Args:    command.Between(0, -1, ""),
		Formats: timeline.Formats,
		Row:     hitRow{},
		Files:   []string{"file", "output"},
		Flags: func(f *pflag.FlagSet) {
			a.fleet.addAll(f)
			flags.add(f)
			f.BoolVar(&flags.stay, "stay", false, "keep the probes attached when the trace ends")
			f.StringArrayVarP(&flags.names, "probe", "p", nil, "show the hits of this attached `PROBE`, a name, group or pattern as for detach; may be repeated")
			f.Uint64VarP(&flags.count, "count", "c", 0, "end after this `many` hits")
			f.DurationVar(&flags.timeout, "timeout", 0, "end after this `duration`; exit status 124 if --count was not reached")
			f.StringVarP(&flags.output, "output", "o", "", "write to this `file` instead of standard output")
			f.BoolVarP(&flags.quiet, "quiet", "q", false, "hits alone: no header and no totals, and boots, stops and lost events on standard error")
			noTrunc(f)
			f.StringVar(&flags.clock, "time", timeline.ClockBoot, "`what` times are: boot, relative or wall; see above")
			f.StringArrayVar(&flags.maps, "map", nil, "counters from this `MAP` of an attached program, a number or a name of 'guestprobe map list'; may be repeated")
			f.DurationVar(&flags.every, "map-every", 100*time.Millisecond, "look at maps each `duration`")
		},
		FlagComplete: map[string]command.Completion{"probe": a.completeProbes(), "map": a.completeMaps()},
		Run: a.askAll(func(ctx context.Context, r *command.Run, m *members) error {
			if err := flags.check(r); err != nil {
				return err
			}
			return trace(ctx, r, m, &flags)
		}),
	}
}

// Forms of output that all commands have.
const (
	formatTable = "table"
	formatJSON  = "json"
)

// timelineHelp says what the forms of timelines are.
const timelineHelp = `--format perfetto writes what Perfetto opens (ui.perfetto.dev), chrome the JSON that it,
chrome://tracing and speedscope open, ftrace a trace.dat for trace-cmd and kernelshark. In
the first two each hit is on the track of its task, a return as a slice since the
function's entry, and on the track of its vCPU. The three are whole when the trace has
ended, also by Ctrl-C, or by the daemon's end.`

// check refuses what does not go together, and finds the form of the output.
func (f *traceFlags) check(r *command.Run) error {
	if form := timeline.FormatOf(f.output); form != "" && !r.Given("format") {
		r.Format = form
	}
	text := r.Format == formatTable || r.Templated()
	switch {
	case len(r.Args) > 0 && len(f.names) > 0:
		return command.Usagef("--probe is for attached probes: it cannot be used with definitions")
	case f.quiet && !text:
		return command.Usagef("--quiet and --format %s: say one of them", r.Format)
	case r.Tabled():
		return command.Usagef("--format 'table ...': hits are printed as they come, not in columns; leave out the word")
	case r.Given("timeout") && f.timeout <= 0:
		return command.Usagef("--timeout %v: not above 0", f.timeout)
	case len(f.maps) > 0 && text:
		return command.Usagef("--map: text has no counters; --format json, %s have", strings.Join(timeline.Formats, ", "))
	case r.Format == timeline.Ftrace && r.Only != nil:
		return command.Usagef("--format ftrace: there are no files here, in which it is gathered")
	case f.every < minMapEvery:
		return command.Usagef("--map-every %v: not %v or more", f.every, minMapEvery)
	}
	if err := clockFits(r, f.clock); err != nil {
		return err
	}
	return notForTerminal(r, f.output)
}

// clockFits refuses a --time that is none, or that the form of the output has not.
func clockFits(r *command.Run, clock string) error {
	if _, err := timeline.NewLines(clock, false); err != nil {
		return command.Usagef("--time %q: %w", clock, err)
	}
	if r.Given("time") && slices.Contains(timeline.Formats, r.Format) {
		return command.Usagef("--time and --format %s: times of lines of text can be chosen, others are since the guest's boot", r.Format)
	}
	return nil
}

// notForTerminal refuses to write bytes that are no text to a terminal.
func notForTerminal(r *command.Run, output string) error {
	if output == "" && timeline.Binary(r.Format) && command.Terminal(r.Stdout) {
		return command.Usagef("--format %s is not for a terminal: say --output FILE", r.Format)
	}
	return nil
}

// hitsAlone reports whether the output is of hits alone, and what else is said of them goes to standard error.
func (f *traceFlags) hitsAlone(r *command.Run) bool { return f.quiet || r.Templated() }

// writer returns what writes the trace to out.
func (f *traceFlags) writer(r *command.Run, out io.Writer) (timeline.Writer, error) {
	o := timeline.TextOptions{Clock: f.clock, Color: r.Colors(out), Totals: !f.quiet}
	if f.hitsAlone(r) {
		o.Remarks = r.Stderr
	}
	switch {
	case r.Templated():
		o.Hit = func(h *api.Hit) error { return r.Row(out, hitRow{Hit: *h}) }
	case r.Format == formatTable:
		o.Header = r.Headings() && !f.quiet
	}
	return traceWriter(r.Format, out, o, r.Templated())
}

// traceWriter returns a writer of a form of traces.
func traceWriter(format string, out io.Writer, o timeline.TextOptions, templated bool) (timeline.Writer, error) {
	switch {
	case templated, format == formatTable:
		return timeline.NewText(out, o)
	case format == formatJSON:
		return timeline.NewNDJSON(out), nil
	}
	return timeline.New(format, out)
}

// lateFile is the file of a trace. What its writer ends a trace with that has never begun is not for it.
type lateFile struct {
	f     *files.Output
	begun bool
}

func (l *lateFile) begin() error {
	l.begun = true
	return l.f.Begin()
}

// Write implements io.Writer.
func (l *lateFile) Write(b []byte) (int, error) {
	if !l.begun {
		return len(b), nil
	}
	return l.f.Write(b)
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

// follow reads a stream to its own end, which it asks for when over is. Its first record
// goes to start, all others to record, of which either may fail. The end has no reason
// where ctx has ended before the stream began, and is endCutOff where the daemon sends none.
func follow(ctx, over context.Context, c *remote.Client, open func(context.Context) (*remote.Stream, error), start func(api.Record, api.Start) error, record func(api.Record) error) (api.End, error) {
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
		case err != nil && life.Err() != nil, errors.Is(err, remote.ErrCutOff):
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

// data reads the data of a record.
func data[T any](r api.Record) (v T, err error) {
	if err := json.Unmarshal(r.Data, &v); err != nil {
		return v, fmt.Errorf("%w: a record of type %q: %s", remote.ErrProtocol, r.Type, api.DecodeText(err))
	}
	return v, nil
}
