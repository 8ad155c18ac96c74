package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/chart"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// scriptFlags are those of commands that run a script.
type scriptFlags struct {
	req             api.RunScript
	output          string
	verbose, heat   bool
	every, duration time.Duration
}

// declare declares the flags.
func (s *scriptFlags) declare(f *pflag.FlagSet) {
	f.BoolVarP(&s.verbose, "verbose", "v", false, "say of each probe where it runs and why, how large its program is, and how long a run may be")
	f.BoolVar(&s.req.OnHost, "on-host", false, "run at an exit, although the programs could run in the guest")
	f.BoolVar(&s.req.Metrics, "metrics", false, "of --detach: its maps are metrics, too; see docs/see.md")
	f.StringVar(&s.req.Detach, "detach", "", "leave the script running in the daemon, by this `NAME`")
	f.DurationVarP(&s.duration, "duration", "d", 0, "end the script after that time")
	f.DurationVar(&s.every, "interval", 0, "print all maps and clear them, so often")
	f.BoolVar(&s.heat, "heat", false, "draw histograms over time, a column for each --interval, which is 1s by default")
	f.StringVarP(&s.output, "output", "o", "", "write to this `file` instead of standard output")
}

// check fills in what the request has of the flags.
func (s *scriptFlags) check(r *command.Run) error {
	if s.req.Format = api.ScriptText; r.WantsJSON() {
		s.req.Format = api.ScriptJSON
	}
	for name, d := range map[string]time.Duration{"interval": s.every, "duration": s.duration} {
		if r.Given(name) && d < time.Millisecond {
			return command.Usagef("--%s %v: shorter than 1ms", name, d)
		}
	}
	s.req.IntervalMS = uint64(s.every.Milliseconds())
	return nil
}

// run runs the script of s.req, and prints what it does until there is a reason to stop.
func (s *scriptFlags) run(ctx context.Context, r *command.Run, c *remote.Client) (err error) {
	if err := s.check(r); err != nil {
		return err
	}
	drawn := s.heat || r.Format == formatSVG
	switch {
	case drawn && r.Given("detach"):
		return command.Usagef("--heat and --format svg draw what is here: 'guestprobe script NAME' has them for a detached script")
	case s.heat && r.WantsJSON():
		return command.Usagef("--heat is a drawing: --format table or svg")
	case s.heat && s.every == 0:
		s.every = time.Second
		s.req.IntervalMS = uint64(s.every.Milliseconds())
	}
	if r.Given("detach") {
		if s.output != "" || s.duration != 0 || s.req.Detach == "" {
			return command.Usagef("--detach takes a name, and neither --output nor --duration: 'guestprobe stop NAME' ends it and prints what there is")
		}
		if len(s.req.Detach) > api.MaxScriptName || !api.ScriptName.MatchString(s.req.Detach) {
			return command.Usagef("--detach %q: want a letter or _, then letters, digits and _ . -, at most %d in all", s.req.Detach, api.MaxScriptName)
		}
		return detachScript(ctx, r, c, s)
	}
	if s.req.Metrics {
		return command.Usagef("--metrics: goes with --detach NAME")
	}
	out, begin := r.Stdout, func() error { return nil }
	if s.output != "" {
		f, err := files.Later(ctx, s.output)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		out, begin = f, f.Begin
	}
	if drawn {
		s.req.Format = api.ScriptJSON
		c := &charter{Run: r, title: cmp.Or(s.req.Name, "script"), out: out, heat: s.heat, heats: chart.Heats{Every: s.every}}
		out = c
		defer func() {
			var status command.Status
			if err == nil || errors.As(err, &status) {
				err = cmp.Or(c.close(), err)
			}
		}()
	}
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	return printScript(ctx, over, r, c, out, func(life context.Context) (*remote.Stream, error) { return c.RunScript(life, s.req) }, func(start api.Start) error {
		if err := begin(); err != nil { // before, the script may be one that does not compile
			return err
		}
		if s.duration > 0 {
			time.AfterFunc(s.duration, cancel)
		}
		r.Note("Attached %s", command.Plural(start.Attached, "probe"))
		if s.verbose {
			return notePlaces(r, out, start)
		}
		return nil
	})
}

// missedHits says of each probe of a script how many hits its program did not run on.
func missedHits(end api.End) (texts []string) {
	for _, p := range end.Probes {
		if n := p.Stats.Missed; n > 0 {
			texts = append(texts, fmt.Sprintf("%s missed %s of %d", place(p), command.Plural(n, "hit"), p.Stats.Hits))
		}
	}
	return texts
}

// placed is what --verbose says of one program of a script, as JSON.
type placed struct {
	Probe        string `json:"probe"`
	At           string `json:"at,omitempty"`
	Runs         string `json:"runs"`
	Why          string `json:"why,omitempty"` // on the host
	Instructions int    `json:"instructions"`
	CodeBytes    int    `json:"code_bytes,omitempty"`
	Budget       int64  `json:"budget"`
}

// notePlaces says of each program where it runs and why, how large it is, and how long it may
// run.
func notePlaces(r *command.Run, out io.Writer, start api.Start) error {
	var all []placed
	add := func(p *api.ProgramInfo, at, runs, why string) {
		all = append(all, placed{p.Section, at, runs, why, p.Instructions, p.CodeBytes, p.Budget})
	}
	for _, p := range start.Probes {
		if p.Program != nil {
			add(p.Program, place(p), cmp.Or(p.Runs, api.RunsOnHost), p.OnHost)
		}
	}
	for i := range start.Idle {
		add(&start.Idle[i], "", api.RunsOnHost, "it is at no place of the guest")
	}
	if r.WantsJSON() {
		return json.NewEncoder(out).Encode(map[string]any{"type": "programs", "data": all})
	}
	for _, p := range all {
		where, code := "in the guest", ""
		if p.Runs != api.RunsInGuest {
			where = "on the host: " + p.Why
		}
		if p.CodeBytes > 0 {
			code = fmt.Sprintf(", %d bytes of code", p.CodeBytes)
		}
		r.Note("%s runs %s (%s%s, at most %d steps a hit)", command.Clean(cmp.Or(p.At, p.Probe)), command.Clean(where), command.Plural(p.Instructions, "instruction"), code, p.Budget)
	}
	return nil
}

// printScript prints what the stream of a script brings until its end, which over asks
// for.
func printScript(ctx, over context.Context, r *command.Run, c *remote.Client, out io.Writer, open func(context.Context) (*remote.Stream, error), began func(api.Start) error) error {
	start := func(_ api.Record, s api.Start) error {
		if began == nil {
			return nil
		}
		return began(s)
	}
	text, total := guestText(r, out), script.Total{}
	end, err := follow(ctx, over, c, open, start, func(rec api.Record) error {
		switch rec.Type {
		case api.RecordOutput:
			o, err := data[api.Output](rec)
			if err != nil {
				return err
			}
			if o.Bytes == nil {
				o.Bytes = []byte(o.Text)
			}
			_, err = text.Write(o.Bytes)
			return err
		case api.RecordMaps: // of a script of the fleet, at its end
			m, err := data[api.ScriptMaps](rec)
			if err != nil {
				return err
			}
			var states []script.MapState
			if err := json.Unmarshal(m.Maps, &states); err != nil {
				return fmt.Errorf("%w: %w", remote.ErrProtocol, err)
			}
			if total.Add("", states); m.More {
				return nil
			}
			if !r.WantsJSON() {
				_, err = io.WriteString(text, "\n\n")
			}
			total.Print(r.WantsJSON(), func(part string) {
				if err == nil {
					_, err = io.WriteString(text, part)
				}
			})
			return err
		case api.RecordInterval:
			if c, ok := out.(*charter); ok {
				x, err := data[api.Interval](rec)
				if err == nil {
					c.interval(x)
				}
				return err
			}
		case api.RecordWarning:
			w, err := data[api.Warning](rec)
			r.Note("%s", command.Clean(w.Text))
			return err
		case api.RecordStop:
			x, err := data[api.Stop](rec)
			if err != nil {
				return err
			}
			if r.WantsJSON() {
				return json.NewEncoder(out).Encode(rec)
			}
			r.Note("%s", command.Clean(timeline.StopText(x)))
		case api.RecordLost:
			l, err := data[api.Lost](rec)
			r.Note("Lost %d events", l.Lost)
			return err
		}
		return nil
	})
	err = cmp.Or(err, text.flush())
	for _, text := range missedHits(end) {
		r.Note("%s", command.Clean(text))
	}
	if end.Strict != "" {
		r.Note("strict: %s", command.Clean(end.Strict))
	}
	switch {
	case err != nil:
		return err
	case end.Reason == endCutOff:
		return remote.ErrCutOff
	case end.Reason == api.EndExit && end.Code != nil && *end.Code != 0:
		return command.Status(*end.Code & 0xff)
	case end.Strict != "":
		return command.Status(command.ExitFailed)
	}
	if end.Reason != api.EndExit && end.Reason != api.EndAsked {
		noteEnd(r, end, "")
	}
	return nil
}
