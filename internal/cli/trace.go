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

// traceFlags are the flags of trace.
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
since the guest's latest boot; a line that begins with # marks a boot in the middle of a
trace. With --time relative it is the time since the start of the trace; with --time
wall it is the date and the time of day, with the zone. --no-headers leaves out ftrace's header, whose
lines begin with #. A function's return is shown as (CALLER <- FUNCTION), its result is
$retval, and the time since its entry is in brackets. With definitions, their probes are attached for the
duration of the trace and only their hits are shown; without, the hits of all probes, or of the probes
that --probe names.

Lines are in order of time, except lines marked [LATE]: they came from the guest's own memory
more than 30 ms after their time, when later hits had been shown already.
[LOST n EVENTS] marks the place of missing lines.

The trace ends with Ctrl-C, after --count hits, after --timeout, or when the
guest ends; a second Ctrl-C exits at once. Its last lines, which begin with #, are its
totals: all events, divided into events shown, events not shown because --count was reached,
and lost events; and the counts of each probe. --format json prints the records of the
stream, one per line; the last one is an end with the same totals. The reason for the end is in
parentheses: count, timeout, interrupted or asked, if a client ended the trace; guest_exit,
guest_crash, detached, exit, shutdown or slow (the
client did not keep up), if the daemon did; or cut_off if the daemon sent no end, or not within 30
seconds: the totals are then of the events shown, and the exit status is 1.
'guestprobe report' and 'guestprobe convert' read these records later.

With --fleet the hits of all selected daemons come as one stream in order of time, each
with its daemon's name, which templates have as {{.Daemon}}; unless --time is given, times
are wall-clock times. Each daemon has its own totals. --count counts the hits of all.

` + timelineHelp + ` A file's
name also selects the format, unless --format is given: .pftrace, .dat, .trace.json (.chrome.json), .ndjson.
--map puts the numbers of a map beside the hits, looked at every 100 ms (--map-every).

` + templateHelp + ` {{.Arg "NAME"}} is an argument's text.
Boots, stops, lost events and totals then go to standard error; with --quiet the first three do,
and there is no header and there are no totals.`,
		Example: `  guestprobe trace 'p:myread vfs_read fd=%di count=%dx:u64'
  guestprobe trace --probe myread -c 10 --timeout 5s
  guestprobe trace -c 3 --format '{{.CPU}} {{.Symbol}} {{.Arg "fd"}}' 'p vfs_read fd=%di:s32'`,
		Args: command.ArgsBetween(0, -1, ""),
		Cures: map[string]string{
			"-n": "-c N (--count N) ends the trace after N hits",
			"-d": "--timeout 1s ends the trace after a time", "--duration": "--timeout 1s ends the trace after a time",
		},
		Formats: timeline.Formats,
		Row:     hitRow{},
		Files:   []string{"file", "output"},
		Flags: func(f *pflag.FlagSet) {
			a.fleet.addAll(f)
			flags.add(f)
			f.BoolVar(&flags.stay, "stay", false, "keep the probes attached when the trace ends")
			f.StringArrayVarP(&flags.names, "probe", "p", nil, "show the hits of this attached `PROBE`, a name, group or pattern as for detach; may be repeated")
			f.Uint64VarP(&flags.count, "count", "c", 0, "end after this `many` hits")
			f.DurationVar(&flags.timeout, "timeout", 0, "end after this `duration`, which begins when the probes are attached; exit status 124 if --count was not reached")
			f.StringVarP(&flags.output, "output", "o", "", "write to this `file` instead of standard output")
			f.BoolVarP(&flags.quiet, "quiet", "q", false, "only hits: no header and no totals; boots, stops and lost events go to standard error")
			addNoTrunc(f)
			f.StringVar(&flags.clock, "time", timeline.ClockBoot, "the `clock` of times: boot, relative or wall; see above")
			f.StringArrayVar(&flags.maps, "map", nil, "counters from this `MAP` of an attached program, a number or a name of 'guestprobe map list'; may be repeated")
			f.DurationVar(&flags.every, "map-every", 100*time.Millisecond, "read maps once per `duration`")
		},
		Complete:     a.completeDefinitions(),
		FlagComplete: map[string]command.Completion{"probe": a.completeProbes(), "map": a.completeMaps()},
		Run: a.askAll(func(ctx context.Context, r *command.Run, m *members) error {
			if err := flags.check(r); err != nil {
				return err
			}
			return trace(ctx, r, m, &flags)
		}),
	}
}

// Output formats of all commands.
const (
	formatTable = "table"
	formatJSON  = "json"
)

// timelineHelp describes the formats of timelines.
const timelineHelp = `--format perfetto writes what Perfetto opens (ui.perfetto.dev), chrome the JSON that it,
chrome://tracing and speedscope open (as .trace.json: speedscope takes .chrome.json for a CPU
profile), ftrace a trace.dat for trace-cmd and kernelshark. In
the first two each hit is on the track of its task, a return as a slice since the
function's entry, and on the track of its vCPU. The three are whole when the trace has
ended, also by Ctrl-C, or by the daemon's end.`

// check returns an error for flags that exclude each other, and selects the output format.
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
	return rejectTerminal(r, f.output)
}

// clockFits returns an error for a --time that is invalid, or that the output format does not support.
func clockFits(r *command.Run, clock string) error {
	if _, err := timeline.NewLines(clock, false); err != nil {
		return command.Usagef("--time %q: %w", clock, err)
	}
	if r.Given("time") && slices.Contains(timeline.Formats, r.Format) {
		return command.Usagef("--time and --format %s: times of lines of text can be chosen, others are since the guest's boot", r.Format)
	}
	return nil
}

// rejectTerminal returns an error if a binary format would be written to a terminal.
func rejectTerminal(r *command.Run, output string) error {
	if output == "" && timeline.Binary(r.Format) && command.Terminal(r.Stdout) {
		return command.Usagef("--format %s is not for a terminal: say --output FILE", r.Format)
	}
	return nil
}

// hitsAlone reports whether standard output has only hits, and everything else goes to standard error.
func (f *traceFlags) hitsAlone(r *command.Run) bool { return f.quiet || r.Templated() }

// writer returns a writer of the trace to out.
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

// traceWriter returns a writer for a trace format.
func traceWriter(format string, out io.Writer, o timeline.TextOptions, templated bool) (timeline.Writer, error) {
	switch {
	case templated, format == formatTable:
		return timeline.NewText(out, o)
	case format == formatJSON:
		return timeline.NewNDJSON(out), nil
	}
	return timeline.New(format, out)
}

// lateFile is the output file of a trace. It discards all writes before begin, so that a trace that never began leaves no file.
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

// Reasons of a trace's end that come from guestprobe itself, not from a daemon.
const (
	endInterrupted = "interrupted"
	endTimeout     = "timeout"
	endCount       = "count"
	endCutOff      = "cut_off" // the daemon sent none
)

// endTime is how long a daemon may take to end a stream on request. On a busy machine it can
// take seconds; a second Ctrl-C does not wait for it.
const endTime = 30 * time.Second

// follow reads a stream until its end, and requests the end when over ends. It passes the first
// record to start and all others to record; an error of either ends the stream. The end's reason is empty
// if ctx ended before the stream began, and endCutOff if the daemon did not send an end.
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
				// Ignore an error: after endTime the stream is cut off.
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

// data decodes a record's data.
func data[T any](r api.Record) (v T, err error) {
	if err := json.Unmarshal(r.Data, &v); err != nil {
		return v, fmt.Errorf("%w: a record of type %q: %s", remote.ErrProtocol, r.Type, api.DecodeText(err))
	}
	return v, nil
}
