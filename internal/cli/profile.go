package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/profile"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Formats of a profile in addition to the common ones.
const (
	formatFolded = "folded"
	formatPprof  = "pprof"
	formatSVG    = "svg"
	formatHTML   = "html"
)

// bySuffix maps suffixes of file names to formats.
var bySuffix = map[string]string{
	".folded": formatFolded, ".txt": formatFolded, ".pb.gz": formatPprof, ".pprof": formatPprof, ".svg": formatSVG, ".html": formatHTML, ".json": "json",
}

// profileFlags are the flags of profile.
type profileFlags struct {
	hz       int
	duration time.Duration
	count    uint64
	names    []string
	probes   probeFlags // options of definitions
	output   string
	out      io.Writer
	read     string
	diff     string
	value    string
	rows     int
	raw      bool
}

func (a *app) profile() command.Spec {
	var flags profileFlags
	return command.Spec{
		Use:   "profile [flags] [DEFINITION...]",
		Short: "Show where the guest spends its time, with the callers",
		Long: `Sample each vCPU 99 times a second from outside, in kernel and user code, and show the
functions that it was in: SELF in the function itself, TOTAL with the functions that it
called. With --probe, or with definitions, which are attached for the duration of the
profile, count the stacks of hits instead, and for a function's return also the time
since its entry (--value duration). A vCPU that waits with HLT counts in the function that
waits; a stopped vCPU does not count.

The profile ends with Ctrl-C, after --duration, with --count, or when the guest ends.
--format, or the name of the --output file, selects the output format:

  folded  a line for each stack, the task first, functions of the kernel with _[k] after
          their names (.folded, .txt)
  pprof   for go tool pprof, speedscope and others; samples have the labels comm, pid,
          vcpu and probe (.pb.gz, .pprof)
  svg     a flame graph as a picture (.svg)
  html    the same as a page with zoom and search that needs nothing else (.html)
  json    the stacks with addresses, sources and tasks, and the lost samples (.json)

--read shows a profile that any program has saved as pprof, instead of a guest's.
--diff compares with such a profile: shares of the whole in the table and by the colors of
graphs, red for more and blue for less; folded text has both values, the older one first.

Samples that fall into the middle of a hit, or for which the host is too late, are lost;
guestprobe reports their number.`,
		Cures: map[string]string{"-F": "--hz N sets the rate", "-g": "stacks are always recorded", "-a": "all vCPUs are profiled"},
		Example: `  guestprobe profile --duration 2s
  guestprobe profile -d 2s -o guest.html
  guestprobe profile -d 1s --format folded 'p vfs_read'`,
		Args:    command.ArgsBetween(0, -1, ""),
		Formats: []string{formatFolded, formatPprof, formatSVG, formatHTML},
		Files:   []string{"file", "output", "read", "diff"},
		Flags: func(f *pflag.FlagSet) {
			f.IntVar(&flags.hz, "hz", 99, "sample `N` times a second, 1 to 1000")
			f.DurationVarP(&flags.duration, "duration", "d", 0, "end after this `duration`, which begins when the probes are attached")
			f.Uint64VarP(&flags.count, "count", "c", 0, "end after `N` samples or hits; checked once a second, so there may be more")
			f.StringArrayVarP(&flags.names, "probe", "p", nil, "stacks of the hits of this attached `PROBE`, a name, group or pattern as for detach; may be repeated")
			command.OnceVar(f, &flags.probes.filter, "filter", "with definitions: only hits for which this `EXPRESSION` is true, as for attach")
			f.StringVar(&flags.probes.space, "space", "any", "with definitions: only hits in this address space: `CR3`, or any")
			fileFlag(f, &flags.probes.files)
			f.StringVarP(&flags.output, "output", "o", "", "write to this `file` instead of standard output")
			f.StringVar(&flags.read, "read", "", "take the profile from this pprof `file`")
			f.StringVar(&flags.diff, "diff", "", "compare with this pprof `file`")
			f.StringVar(&flags.value, "value", "", "`which` of a profile's values: samples, time, hits or duration; default is the first")
			rawNames(f, &flags.raw)
			f.IntVarP(&flags.rows, "rows", "n", 30, "`how many` functions the table has at most; 0: all")
		},
		FlagComplete: map[string]command.Completion{"probe": a.completeProbes()},
		Run: func(ctx context.Context, r *command.Run) (err error) {
			if err := flags.check(r); err != nil {
				return err
			}
			flags.out = r.Stdout
			if flags.output != "" { // before profiling, so that an error loses nothing
				f, err := files.CreateLater(ctx, flags.output)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				flags.out = f
			}
			if flags.read != "" {
				p, err := readProfile(ctx, flags.read)
				if err != nil {
					return err
				}
				return flags.show(ctx, r, p, filepath.Base(flags.read))
			}
			return a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error { return flags.take(ctx, r, c) })(ctx, r)
		},
	}
}

// check returns an error for flags that exclude each other, and selects the output format.
func (f *profileFlags) check(r *command.Run) error {
	probes := len(f.names) + len(r.Args)
	switch {
	case r.Given("hz") && (f.hz < 1 || f.hz > api.MaxProfileHz):
		return command.Usagef("--hz %d: not 1 to %d", f.hz, api.MaxProfileHz)
	case r.Given("hz") && probes > 0:
		return command.Usagef("--hz is for samples: it cannot be used with probes, whose hits are counted")
	case r.Given("duration") && f.duration <= 0:
		return command.Usagef("--duration %v: not above 0", f.duration)
	case r.Given("count") && f.count == 0:
		return command.Usagef("--count 0: not above 0")
	case len(r.Args) == 0 && (r.Given("filter") || r.Given("space")):
		return command.Usagef("--filter and --space apply only to definitions; none was given")
	case f.rows < 0:
		return command.Usagef("--rows %d: not a number from 0 on", f.rows)
	case f.read != "" && (probes > 0 || r.Given("hz") || r.Given("duration") || r.Given("count")):
		return command.Usagef("--read takes a profile that there is: it cannot be used with --hz, --duration, --count or probes")
	}
	if f.output != "" && !r.Given("format") {
		for suffix, format := range bySuffix {
			if strings.HasSuffix(f.output, suffix) {
				r.Format = format
			}
		}
		if r.Format == formatTable {
			r.Note("%s: unknown suffix, writing the table (--rows %d). Suffixes of other formats: %s; or use --format.", command.Clean(f.output), f.rows,
				strings.Join(slices.Sorted(maps.Keys(bySuffix)), ", "))
		}
	}
	if r.WantsJSON() && (f.diff != "" || f.read != "") {
		return command.Usagef("--format json has the stacks of a guest: it cannot be used with --read or --diff")
	}
	if f.output == "" && r.Format == formatPprof && command.Terminal(r.Stdout) {
		return command.Usagef("--format pprof is not for a terminal: say --output FILE")
	}
	return nil
}

// profileAnswer is the JSON output of profile.
type profileAnswer struct {
	Start      time.Time   `json:"start"`
	DurationNS int64       `json:"durationNs"`
	Hz         int         `json:"hz,omitempty"`
	Reason     string      `json:"reason"` // why the profile ended, as in a stream's end record
	Counted    uint64      `json:"counted"`
	Lost       uint64      `json:"lost"`
	Probes     []api.Probe `json:"probes,omitempty"` // the profiled probes, with their final counts
	Stacks     []api.Stack `json:"stacks"`
}

// errNoSamples reports an empty profile.
var errNoSamples = errors.New("nothing was seen")

// take records a profile of the guest and shows it.
func (f *profileFlags) take(ctx context.Context, r *command.Run, c *remote.Client) error {
	var base *pprof.Profile
	if f.diff != "" {
		var err error
		if base, err = readProfile(ctx, f.diff); err != nil {
			return err
		}
	}
	g, err := c.Guest(ctx)
	if err != nil {
		return err
	}
	req := api.StreamProfile{Hz: f.hz, Names: f.names}
	if len(r.Args)+len(f.names) > 0 {
		req.Hz = 0
	}
	if req.Probes, err = f.probes.specs(r, r.Args, false); err == nil {
		err = giveFiles(ctx, r, c, f.probes.files)
	}
	if err != nil {
		return err
	}
	a := profileAnswer{Start: time.Now(), Hz: req.Hz, Stacks: []api.Stack{}}
	var shown progress
	m := profile.Meta{Hz: req.Hz}
	over, expire := context.WithCancelCause(ctx)
	enough := func() { expire(nil) }
	defer enough()
	var said api.Heartbeat // the daemon's last counts
	ended := endInterrupted
	end, err := follow(ctx, over, c, func(life context.Context) (*remote.Stream, error) { return c.Profile(life, req) }, func(_ api.Record, s api.Start) error {
		a.Start, shown = time.Now(), progress{Run: r, begun: time.Now()}
		if f.duration > 0 {
			time.AfterFunc(f.duration, func() { expire(errTimeout) })
		}
		noteSkipped(r, s.Skipped)
		for _, p := range s.Probes {
			m.Durations = m.Durations || p.Kind == "r"
		}
		// Check --value and --diff before profiling.
		if _, err := f.index(profile.Build(m, nil)); err != nil {
			return err
		}
		if base != nil {
			if _, err := profile.Diff(base, profile.Build(m, nil)); err != nil {
				return fmt.Errorf("--diff %s: %w", f.diff, err)
			}
		}
		shown.start(len(s.Probes))
		return nil
	}, func(rec api.Record) error {
		switch rec.Type {
		case api.RecordStack:
			s, err := data[api.Stack](rec)
			for i := range s.Frames {
				if f.raw {
					s.Frames[i].Name = ""
				}
			}
			a.Stacks = append(a.Stacks, s)
			return err
		case api.RecordHeartbeat:
			h, err := data[api.Heartbeat](rec)
			said = h
			shown.line(h)
			if f.count > 0 && h.Delivered >= f.count {
				ended = endCount
				enough()
			}
			return err
		}
		return nil
	})
	shown.end()
	if err != nil {
		return nameDefinition(err, r.Args)
	}
	if end.Reason == "" || end.Reason == api.EndAsked {
		if end.Reason = ended; errors.Is(context.Cause(over), errTimeout) {
			end.Reason = endTimeout
		}
	}
	what := "sample"
	if req.Hz == 0 {
		what = "hit"
	}
	a.DurationNS = time.Since(a.Start).Nanoseconds()
	took := time.Duration(a.DurationNS).Round(10 * time.Millisecond)
	if end.Reason == endCutOff {
		return fmt.Errorf("%w: %s in %v, as the daemon said last, are gone: until a profile ends its stacks are in the daemon",
			remote.ErrCutOff, command.Plural(said.Delivered, what), took)
	}
	noteEnd(r, end, "")
	a.Reason, a.Counted, a.Lost, a.Probes = end.Reason, end.Delivered, end.Lost, end.Probes
	r.Note("%s in %v, %s, %d lost.", command.Plural(a.Counted, what), took, command.Plural(len(a.Stacks), "stack"), a.Lost)
	switch {
	case r.WantsJSON():
		enc := json.NewEncoder(f.out)
		enc.SetEscapeHTML(false)
		return enc.Encode(a)
	case len(a.Stacks) == 0 && req.Hz > 0 && f.duration > 0 && f.duration < 3*time.Second/time.Duration(req.Hz):
		return fmt.Errorf("%w: %v has hardly a sample at %d a second; take a longer --duration or more --hz", errNoSamples, f.duration, req.Hz)
	case len(a.Stacks) == 0 && req.Hz > 0:
		return fmt.Errorf("%w: at each sample all vCPUs were idle, stopped or had ended ('guestprobe guest status' says which)", errNoSamples)
	case len(a.Stacks) == 0:
		return fmt.Errorf("%w: no probe was hit", errNoSamples)
	}
	m.Start, m.Duration, m.BuildID = a.Start, time.Duration(a.DurationNS), g.BuildID
	m.Comments = []string{fmt.Sprintf("guestprobe: %s of %s, %d lost", what+"s", g.Image, a.Lost)}
	return f.showDiff(r, base, profile.Build(m, a.Stacks), fmt.Sprintf("%s, %s in %v", filepath.Base(g.Image), command.Plural(a.Counted, what), took))
}

// show shows a profile that was read from a file.
func (f *profileFlags) show(ctx context.Context, r *command.Run, p *pprof.Profile, title string) error {
	var base *pprof.Profile
	if f.diff != "" {
		var err error
		if base, err = readProfile(ctx, f.diff); err != nil {
			return err
		}
	}
	return f.showDiff(r, base, p, title)
}

// showDiff shows a profile, compared with base if that is not nil.
func (f *profileFlags) showDiff(r *command.Run, base, p *pprof.Profile, title string) error {
	if base != nil {
		both, err := profile.Diff(base, p)
		if err != nil {
			return fmt.Errorf("--diff %s: %w", f.diff, err)
		}
		p, title = both, title+", compared with "+filepath.Base(f.diff)
	}
	i, err := f.index(p)
	if err != nil {
		return err
	}
	g := profile.Graph{Title: title, Unit: profile.Unit(p, i), Compared: profile.Compared(p)}
	switch r.Format {
	case formatFolded:
		return profile.WriteFolded(f.out, p, i)
	case formatPprof:
		return p.Write(f.out)
	case formatSVG:
		g.Root = profile.Tree(p, i)
		return g.SVG(f.out)
	case formatHTML:
		g.Root = profile.Tree(p, i)
		return g.HTML(f.out)
	}
	return f.table(r, p, i)
}

// index returns the index of the profile's value that --value selects.
func (f *profileFlags) index(p *pprof.Profile) (int, error) {
	var there []string
	for i, t := range p.SampleType {
		if t.Type == f.value || f.value == "" {
			return i, nil
		}
		there = append(there, t.Type)
	}
	if len(there) == 0 {
		return 0, errors.New("the profile has no values")
	}
	return 0, command.Usagef("--value %q: the profile has %s", f.value, strings.Join(there, " and "))
}

// table prints the functions with the largest self values.
func (f *profileFlags) table(r *command.Run, p *pprof.Profile, i int) error {
	rows, total, base := profile.Top(p, i)
	left := 0
	if f.rows > 0 && len(rows) > f.rows {
		left, rows = len(rows)-f.rows, rows[:f.rows]
	}
	heading := []string{"SELF", "SELF%", "TOTAL", "TOTAL%", "FUNCTION"}
	compared := profile.Compared(p)
	if compared {
		heading = []string{"SELF", "SELF%", "CHANGE", "TOTAL", "TOTAL%", "CHANGE", "FUNCTION"}
	}
	unit := profile.Unit(p, i)
	if unit != p.SampleType[i].Type { // a quantity with a unit, not a count
		for j, h := range heading {
			if h == "SELF" || h == "TOTAL" {
				heading[j] = h + " (" + unit + ")"
			}
		}
	}
	share := func(v, of int64) float64 { return 100 * float64(v) / float64(max(of, 1)) }
	var cells [][]string
	for _, x := range rows {
		name := x.Function
		if x.Kernel {
			name += " [k]"
		}
		row := []string{profile.Quantity(x.Self, unit), fmt.Sprintf("%.2f", share(x.Self, total))}
		if compared {
			row = append(row, fmt.Sprintf("%+.2f", share(x.Self, total)-share(x.BaseSelf, base)))
		}
		row = append(row, profile.Quantity(x.Total, unit), fmt.Sprintf("%.2f", share(x.Total, total)))
		if compared {
			row = append(row, fmt.Sprintf("%+.2f", share(x.Total, total)-share(x.BaseTotal, base)))
		}
		cells = append(cells, append(row, name))
	}
	to := *r
	to.Stdout = f.out
	if err := to.Table(heading, cells); err != nil {
		return err
	}
	if left > 0 {
		r.Note("%s more; --rows shows them.", command.Plural(left, "function"))
	}
	return nil
}

// readProfile reads a profile in pprof's format.
func readProfile(ctx context.Context, path string) (*pprof.Profile, error) {
	b, err := files.Input(ctx, nil, path, profile.MaxProfile)
	if err != nil {
		return nil, err
	}
	p, err := profile.Read(b)
	if err != nil {
		return nil, fmt.Errorf("%s is no profile in pprof's form: %w", path, err)
	}
	return p, nil
}

// progress shows the progress of a profile in one line of a terminal.
type progress struct {
	*command.Run
	begun time.Time
	wrote bool
}

func (p *progress) start(probes int) {
	what := "all vCPUs"
	if probes > 0 {
		what = command.Plural(probes, "probe")
	}
	p.Note("Profiling %s.", what)
}

func (p *progress) line(h api.Heartbeat) {
	if !command.Terminal(p.Stderr) {
		return
	}
	p.wrote = true
	fmt.Fprintf(p.Stderr, "\r%v: %d seen, %d lost", time.Since(p.begun).Round(time.Second), h.Delivered, h.Lost)
}

func (p *progress) end() {
	if p.wrote {
		p.Note("")
	}
}
