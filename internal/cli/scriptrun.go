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
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// scriptFlags are the flags of commands that run a script.
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
	f.DurationVarP(&s.duration, "duration", "d", 0, "end the script after that time, which begins when its probes are attached")
	f.DurationVar(&s.every, "interval", 0, "print all maps and clear them at this interval")
	f.BoolVar(&s.heat, "heat", false, "draw histograms over time, a column for each --interval, which is 1s by default")
	f.StringVarP(&s.output, "output", "o", "", "write to this `file` instead of standard output")
}

// check validates the flags and sets the request's format and interval.
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

// run runs the script of s.req in daemons, and prints its output until it ends or the user stops it.
func (s *scriptFlags) run(ctx context.Context, r *command.Run, m *members) (err error) {
	if err := s.check(r); err != nil {
		return err
	}
	drawn := s.heat || r.Format == formatSVG
	switch {
	case drawn && r.Given("detach"):
		return command.Usagef("--heat and --format svg cannot be used with --detach: 'guestprobe script NAME' has them for a detached script")
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
		return detachScript(ctx, r, m.all[0].Client, s)
	}
	if s.req.Metrics {
		return command.Usagef("--metrics: goes with --detach NAME")
	}
	out, begin := r.Stdout, func() error { return nil }
	if s.output != "" {
		f, err := files.CreateLater(ctx, s.output)
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
	if m.alone && !r.WantsJSON() {
		noteStill(ctx, r, m.all[0].Client)
	}
	s.req.Data = !m.alone
	fs := newScriptStream(r, s, m.alone, out, func(ctx context.Context, c *remote.Client) (*remote.Stream, error) { return c.RunScript(ctx, s.req) })
	fs.attached = true
	return fs.runEverywhere(ctx, m, begin)
}

// missTexts names the script's probes with missed hits, on which their programs did not run.
func missTexts(end api.End) (texts []string) {
	for _, p := range end.Probes {
		if n := p.Stats.Missed; n > 0 {
			texts = append(texts, fmt.Sprintf("%s missed %s of %d", place(p), command.Plural(n, "hit"), p.Stats.Hits))
		}
	}
	return texts
}

// placed is the JSON output of --verbose for one program of a script.
type placed struct {
	Probe        string `json:"probe"`
	At           string `json:"at,omitempty"`
	Runs         string `json:"runs"`
	Why          string `json:"why,omitempty"` // why it runs on the host
	Instructions int    `json:"instructions"`
	CodeBytes    int    `json:"code_bytes,omitempty"`
	Budget       int64  `json:"budget"`
}

// notePlaces prints for each program where it runs and why, its size, and its maximum number of
// steps.
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
	for _, text := range start.Notes {
		r.Note("%s", command.Clean(text))
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
