package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
	"github.com/guestprobe/guestprobe/internal/command"
)

// traceFlags are those of trace.
type traceFlags struct {
	probeFlags
	stay    bool
	names   []string
	count   uint64
	timeout time.Duration
	output  string
}

func (a *app) trace() command.Spec {
	var flags traceFlags
	return command.Spec{
		Use:   "trace [flags] [DEFINITION...]",
		Short: "Show hits as they happen",
		Long: `Show hits as they happen, one per line: task (where the guest's tasks are known),
vCPU, seconds since the daemon started, event, place and arguments, as ftrace
prints them. A function's return is shown as (CALLER <- FUNCTION), its result is
$retval, and the time since its entry stands in brackets. With definitions, their probes are attached for the time of the trace and only their hits are shown;
without, the hits of all probes, or of those that --probe names.

The trace ends with Ctrl-C, after --count hits, after --timeout, or when the
guest ends. --format json prints the records of the stream, one per line; after
Ctrl-C the last one is an end with reason "interrupted".`,
		Example: `  guestprobe trace 'p:myread vfs_read fd=%di count=%dx:u64'
  guestprobe trace --probe myread -c 10 --timeout 5s`,
		Args: command.Between(0, -1, ""),
		Flags: func(f *pflag.FlagSet) {
			flags.add(f)
			f.BoolVar(&flags.stay, "stay", false, "keep the probes attached when the trace ends")
			f.StringArrayVarP(&flags.names, "probe", "p", nil, "show the hits of this attached `PROBE`, a name, group or pattern as for detach; may be repeated")
			f.Uint64VarP(&flags.count, "count", "c", 0, "end after this `many` hits")
			f.DurationVar(&flags.timeout, "timeout", 0, "end after this `duration`; exit status 124 if --count was not reached")
			f.StringVarP(&flags.output, "output", "o", "", "write to this `file` instead of standard output")
		},
		FlagComplete: map[string]command.Completion{"probe": a.completeProbes()},
		Run: a.ask(func(ctx context.Context, r *command.Run, c *client.Client) error {
			if len(r.Args) > 0 && len(flags.names) > 0 {
				return command.Usagef("--probe is for attached probes: it cannot be used with definitions")
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
	defs := run.Args
	out := run.Stdout
	if flags.output != "" {
		f, err := os.Create(flags.output)
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
	if err != nil {
		return err
	}
	t := &tracer{Run: run, out: out, color: run.Colors(out), left: flags.count, limited: flags.count > 0, post: map[uint64]bool{}}
	s, err := c.Events(ctx, api.StreamEvents{Probes: specs, Names: flags.names})
	switch {
	case errors.Is(err, context.Canceled): // before the first hit
		return t.interrupted()
	case errors.Is(err, errTimeout):
		return t.timedOut(flags)
	case err != nil:
		return inDefinition(err, defs)
	}
	defer s.Close()
	for {
		r, err := s.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, context.Canceled):
			return t.interrupted()
		case errors.Is(err, errTimeout):
			return t.timedOut(flags)
		case err != nil:
			return err
		}
		if done, err := t.record(r); done || err != nil {
			return err
		}
	}
}

// tracer prints the records of one stream.
type tracer struct {
	*command.Run
	out     io.Writer
	color   bool
	limited bool
	left    uint64 // hits until the end, where limited
	post    map[uint64]bool

	delivered, lost uint64 // hit records that were printed, and missing ones
}

// endInterrupted is the reason in the end record that the trace itself writes
// when it is interrupted: no daemon sends it.
const endInterrupted = "interrupted"

// interrupted ends the trace as Ctrl-C asks for: the readers of JSON can tell it
// from a stream that was cut off.
func (t *tracer) interrupted() error {
	if !t.WantsJSON() {
		return nil
	}
	data, err := json.Marshal(api.End{Reason: endInterrupted, Delivered: t.delivered, Lost: t.lost})
	if err != nil {
		return err
	}
	return t.write(api.Record{Type: api.RecordEnd, Data: data})
}

// timedOut ends the trace because its time is over, which is an error when it
// was to see a number of hits.
func (t *tracer) timedOut(flags *traceFlags) error {
	if !t.limited {
		return nil
	}
	return fmt.Errorf("%w after %v: %s seen of %d", errTimeout, flags.timeout, command.Plural(int(flags.count-t.left), "hit"), flags.count)
}

// write prints r as one line of JSON.
func (t *tracer) write(r api.Record) error {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return err
	}
	_, err := t.out.Write(line.Bytes())
	return err
}

// record prints r, and reports whether it was the last one to print.
func (t *tracer) record(r api.Record) (done bool, err error) {
	if t.WantsJSON() {
		if err := t.write(r); err != nil {
			return false, err
		}
	}
	switch r.Type {
	case api.RecordStart:
		var s api.Start
		if err := json.Unmarshal(r.Data, &s); err != nil {
			return false, fmt.Errorf("%w: %w", client.ErrProtocol, err)
		}
		for _, p := range s.Probes {
			t.post[p.ID] = p.Post
		}
		noteSkipped(t.Run, s.Skipped)
		t.Note("Tracing %s.", command.Plural(len(s.Probes), "probe"))
	case api.RecordHit:
		var h api.Hit
		if err := json.Unmarshal(r.Data, &h); err != nil {
			return false, fmt.Errorf("%w: %w", client.ErrProtocol, err)
		}
		if !t.WantsJSON() {
			if _, err := io.WriteString(t.out, hitLine(h, t.color)); err != nil {
				return false, err
			}
		}
		t.delivered++
		// The two records of one arrival count once, with the second.
		if t.limited && (h.Stage == "post") == t.post[h.ID] {
			t.left--
			return t.left == 0, nil
		}
	case api.RecordLost:
		var l api.Lost
		if json.Unmarshal(r.Data, &l) == nil {
			t.lost += l.Lost
		}
		noteLost(t.Run, r, "event")
	case api.RecordEnd:
		noteEnd(t.Run, r, "")
	}
	return false, nil
}

// hitLine is one line of a trace, in ftrace's order: task, vCPU, time, event,
// place and arguments. Where tasks are not known their column is left out.
func hitLine(h api.Hit, color bool) string {
	us := h.TimeNS / 1000
	event := h.Probe[strings.IndexByte(h.Probe, '/')+1:]
	if h.Stage == "post" {
		event += ".post"
	}
	task := ""
	if h.Task != nil {
		task = fmt.Sprintf("%16s-%-5d ", command.Clean(h.Task.Comm), h.Task.PID)
	}
	head := fmt.Sprintf("%s[%03d] %5d.%06d: ", task, h.CPU, us/1e6, us%1e6)
	line := command.Paint(color, command.Dim, head) + command.Paint(color, command.Name, command.Clean(event)) + ": " + command.Clean(h.Text)
	if h.Stage == "return" {
		line += fmt.Sprintf(" [%d.%03dus]", h.DurationNS/1000, h.DurationNS%1000)
	}
	if h.Stage == "post" || len(h.Args) == 0 {
		line += regsText(h.Regs)
	}
	return line + "\n"
}

// regOrder is the order in which registers are printed.
var regOrder = []string{"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip", "rflags"}

func regsText(regs map[string]api.Hex) string {
	var b strings.Builder
	for _, n := range regOrder {
		if v, ok := regs[n]; ok {
			fmt.Fprintf(&b, " %s=0x%x", n, uint64(v))
		}
	}
	return b.String()
}
