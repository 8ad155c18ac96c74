package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/script"
)

// publishedRun is the published part of a daemon's run of a definition. Events = Kept + Missing; events that the run itself
// lost are in none of the three.
type publishedRun struct {
	Daemon  string    `json:"daemon"`
	Run     string    `json:"run"`
	State   string    `json:"state"`             // running, gone, or the reason of its end
	Stale   bool      `json:"stale"`             // it runs, but the servers have received nothing from it for too long
	Events  uint64    `json:"events"`            // printed, as of its last message
	Kept    *uint64   `json:"kept,omitempty"`    // still readable; nil: not counted, as in the list of all scripts
	Missing *uint64   `json:"missing,omitempty"` // deleted, not yet received, or lost in transit
	Lost    uint64    `json:"lost"`              // lost before they could be printed
	Hits    uint64    `json:"hits"`
	Missed  uint64    `json:"missed"`
	Left    int       `json:"left"` // elements of maps that the sums leave out
	At      time.Time `json:"at"`   // time of the counts
	// Malformed is how many records of its maps could not be parsed; the sums leave them out.
	Malformed int `json:"malformed,omitempty"`

	seq  uint64
	maps []byte // records; only for the requested script
	cut  bool   // maps left out because of maxReportMaps
}

// publishedScript is the published data of a definition.
type publishedScript struct {
	Name    string         `json:"name"`
	ID      string         `json:"id"`
	Since   time.Time      `json:"since"`
	Defined bool           `json:"defined"` // it was not withdrawn
	Running int            `json:"running"`
	Stale   int            `json:"stale"` // of the running ones
	Total   publishedRun   `json:"total"`
	Runs    []publishedRun `json:"runs"`

	Maps   []json.RawMessage `json:"maps,omitempty"` // sums, as bpftrace prints maps in JSON; for a single script only
	Unkept []unkeptDaemon    `json:"unkept,omitempty"`

	byRun map[string]*publishedRun
	here  map[string]bool // IDs of the daemons that are connected
}

// fleetReports is the JSON output of fleet report.
type fleetReports struct {
	Scripts []*publishedScript `json:"scripts"`
	Unkept  []unkeptDaemon     `json:"unkept,omitempty"`
}

// unkeptDaemon is a daemon whose records no server keeps.
type unkeptDaemon struct {
	Daemon string `json:"daemon"`
	fleet.Unkept
}

// unkeptDaemons returns the daemons that report that no server keeps their records.
func unkeptDaemons(ds []fleet.Daemon) (out []unkeptDaemon) {
	for _, d := range ds {
		if d.State != nil && d.State.Unkept != nil {
			out = append(out, unkeptDaemon{d.Name, *d.State.Unkept})
		}
	}
	return out
}

// String describes the daemon for a note.
func (u *unkeptDaemon) String() string {
	return fmt.Sprintf("%s: no server has kept what it publishes since %s (%s); %s wait, %s dropped",
		u.Daemon, u.Since.Local().Format(time.DateTime), u.Error, command.Plural(u.Waiting, "byte"), command.Plural(u.Dropped, "event"))
}

// maxMapRecords is the maximum number of map records of a run.
const maxMapRecords = 10_000

// maxReportMaps is the maximum size of the maps of all runs in a report, in bytes.
const maxReportMaps = 256 << 20

func (ff *fleetFlags) reportCommand() command.Spec {
	var events bool
	var id string
	return command.Spec{
		Use:   "report [flags] [SCRIPT]",
		Short: "Sum up the published results of a fleet's scripts",
		Long: `Sum up the results that daemons have published for the fleet's scripts ('run --detach' with --fleet).
The results come from the fleet's servers, as far as they keep them: no daemon is needed, and
stopped scripts and daemons that are gone are included.

With SCRIPT, print the sums of its maps, and for each run of a daemon its counts:

  EVENTS   all events that the script has printed: KEPT + MISSING
  KEPT     events that can be read; --events prints them
  MISSING  events that are no longer kept, have not arrived yet, or were lost on the way
  LOST     events that were never printed: the guest was faster
  HITS     hits of its probes
  MISSED   hits on which no program ran

Messages that arrive twice count once. A daemon publishes its maps every 5 seconds and at the end of
a script, and once a minute if they have not changed. If a daemon is killed, its last maps count.

A run is STALE if it is running but the servers have kept nothing of it for three minutes, for example
because their disk is full. Its row then shows the data kept last, and the exit status is 7. The exit
status is also 7 if a daemon reports that no server accepts its data.

If several scripts have had the same name, the last one is shown, or the one of --id.`,
		Example: "  guestprobe fleet report --fleet nats://farm:4222\n  guestprobe fleet report --fleet nats://farm:4222 --format json",
		Args:    command.ArgsBetween(0, 1, ""),
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&events, "events", false, "print the lines that the script has printed, with their daemons' names, in order of time")
			f.StringVar(&id, "id", "", "the script with this `ID`, as --format json has it")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			if ff.URL == "" {
				return command.Usagef("say which fleet: --fleet URL")
			}
			if events && len(r.Args) == 0 {
				return command.Usagef("--events: say of which script")
			}
			n, ds, err := ff.findWith(ctx, true)
			if err != nil {
				return err
			}
			defer n.Close()
			wanted := func(name, of string) bool { return len(r.Args) > 0 && name == r.Args[0] && (id == "" || of == id) }
			ss, err := readPublished(ctx, n, ds, wanted)
			if err != nil {
				return err
			}
			left := unkeptDaemons(ds)
			for _, u := range left {
				r.Note("%s", u.String())
			}
			defer func() {
				if left := n.ForeignMessages(); left > 0 {
					r.Note("Ignored %s from another version of guestprobe or from another program.", command.Plural(left, "message"))
				}
			}()
			if len(r.Args) == 0 {
				return cmp.Or(printPublished(r, ss, left), staleness(ss, left))
			}
			ss = slices.DeleteFunc(ss, func(s *publishedScript) bool { return !wanted(s.Name, s.ID) })
			if len(ss) == 0 {
				return &api.Error{Code: api.CodeNoScript, Errno: "ENOENT", Message: fmt.Sprintf("nothing is kept of a script %q", r.Args[0]), Detail: "'guestprobe fleet report' lists the scripts with kept data"}
			}
			s := ss[len(ss)-1]
			if err := s.readEvents(ctx, r, n, events); err != nil {
				return err
			}
			s.Unkept = left
			if !events {
				if err := s.print(r); err != nil {
					return err
				}
			}
			return staleness([]*publishedScript{s}, left)
		},
	}
}

// staleness returns an error if the report may be incomplete or out of date, or nil.
func staleness(ss []*publishedScript, left []unkeptDaemon) error {
	stale, wrong := 0, 0
	for _, s := range ss {
		stale += s.Stale
		for _, x := range s.Runs {
			if x.Malformed > 0 || x.cut {
				wrong++
			}
		}
	}
	switch {
	case len(left) > 0: // checked first: their runs are stale too
		return fmt.Errorf("%w: the servers do not keep what %s. See the log of the fleet's server: its disk may be full", errPartly, sayDaemons(len(left), "publishes", "publish"))
	case stale > 0:
		return fmt.Errorf("%w: of %s that should have published since the servers have kept nothing. See the logs of the daemon and of the fleet's server", errPartly, command.Plural(stale, "run"))
	case wrong > 0:
		return fmt.Errorf("%w: the maps of %s are not all in the sums", errPartly, command.Plural(wrong, "run"))
	}
	return nil
}

// sayDaemons returns a number of daemons, followed by the verb in singular or plural.
func sayDaemons(n int, one, many string) string {
	if n == 1 {
		return "1 daemon " + one
	}
	return fmt.Sprintf("%d daemons %s", n, many)
}

// readPublished reads the last maps of all runs and sums up their counts. It returns the scripts ordered by their start, and
// keeps the maps of the wanted ones only.
func readPublished(ctx context.Context, n *fleet.Network, ds []fleet.Daemon, wanted func(name, id string) bool) ([]*publishedScript, error) {
	x, err := n.Definitions(ctx)
	if err != nil {
		return nil, err
	}
	here := map[string]bool{}
	for _, d := range ds {
		here[d.ID] = true
	}
	all, now, held := map[string]*publishedScript{}, time.Now(), 0
	for _, d := range x.Definitions {
		all[d.ID] = &publishedScript{Name: d.Name, ID: d.ID, Since: d.Since, Defined: true, byRun: map[string]*publishedRun{}, here: here}
	}
	if err := n.Snapshots(ctx, fleet.AllDefinitions, func(h fleet.Head, records []byte) error {
		s := all[h.ID]
		if s == nil {
			s = &publishedScript{Name: h.Name, ID: h.ID, Since: h.Since, byRun: map[string]*publishedRun{}, here: here}
			all[h.ID] = s
		}
		run := s.run(h)
		if h.Seq <= run.seq {
			return nil
		}
		run.seq, run.Events, run.Lost, run.Hits, run.Missed, run.Left, run.At = h.Seq, max(run.Events, h.To), h.Lost, h.Hits, h.Missed, h.Left, h.Time
		run.Stale = s.here[h.Run] && s.Defined && h.Stale(now)
		if h.Final {
			run.State = strings.ReplaceAll(h.End, "_", " ")
		}
		if wanted(s.Name, s.ID) {
			held -= len(run.maps)
			run.maps, run.cut = nil, held+len(records) > maxReportMaps
			if !run.cut {
				run.maps = bytes.Clone(records)
				held += len(records)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, d := range ds {
		for _, s := range all {
			if run := s.byRun[d.ID]; run != nil && run.State == "running" && d.State != nil && d.State.Unkept != nil {
				run.Stale = true
			}
		}
	}
	var out []*publishedScript
	for _, s := range all {
		s.sum()
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *publishedScript) int { return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.ID, b.ID)) })
	return out, nil
}

// run returns the run that a message is about.
func (s *publishedScript) run(h fleet.Head) *publishedRun {
	run := s.byRun[h.Run]
	if run == nil {
		run = &publishedRun{Daemon: h.Daemon, Run: h.Run, State: "gone"}
		if s.here[h.Run] {
			run.State = "running"
		}
		s.byRun[h.Run] = run
	}
	return run
}

// sum computes the totals over all runs. If several runs have the same daemon name, a part of their IDs is appended to it.
func (s *publishedScript) sum() {
	names := map[string]int{}
	for _, run := range s.byRun {
		names[run.Daemon]++
	}
	s.Runs, s.Running, s.Stale, s.Total = []publishedRun{}, 0, 0, publishedRun{Daemon: fmt.Sprintf("all %d", len(s.byRun)), State: "-"}
	for _, run := range s.byRun {
		x, t := *run, &s.Total
		if names[x.Daemon] > 1 {
			x.Daemon += "#" + x.Run[len(x.Run)-4:]
		}
		if x.Kept != nil {
			missing := x.Events - min(x.Events, *x.Kept)
			x.Missing = &missing
			t.Kept, t.Missing = addTo(t.Kept, *x.Kept), addTo(t.Missing, missing)
		}
		if s.Runs = append(s.Runs, x); x.State == "running" {
			s.Running++
		}
		if x.Stale {
			s.Stale++
			t.Stale = true
		}
		t.Events, t.Lost, t.Hits, t.Missed = command.Sum(t.Events, x.Events), command.Sum(t.Lost, x.Lost), command.Sum(t.Hits, x.Hits), command.Sum(t.Missed, x.Missed)
		if t.Left += x.Left; t.Left < 0 {
			t.Left = math.MaxInt
		}
		if x.At.After(t.At) {
			t.At = x.At
		}
	}
	slices.SortFunc(s.Runs, func(a, b publishedRun) int { return fleet.CompareNames(a.Daemon, b.Daemon) })
}

// addTo adds n to a count; nil is a count of 0.
func addTo(sum *uint64, n uint64) *uint64 {
	if sum != nil {
		n = command.Sum(*sum, n)
	}
	return &n
}

// readEvents counts the events that are still readable, and with print prints them.
func (s *publishedScript) readEvents(ctx context.Context, r *command.Run, n *fleet.Network, print bool) error {
	fs := newScriptStream(r, &scriptFlags{}, false, r.Stdout, nil)
	senders := map[string]*sender{}
	for _, run := range s.byRun {
		run.Kept = addTo(nil, 0)
	}
	for _, x := range s.Runs {
		senders[x.Run] = &sender{name: x.Daemon}
		fs.lines.Begin(x.Daemon)
	}
	if err := n.Events(ctx, s.ID, func(h fleet.Head, records []byte) error {
		run := s.run(h)
		run.Kept = addTo(run.Kept, h.To-h.From)
		if run.Events = max(run.Events, h.To); h.Time.After(run.At) {
			run.At = h.Time
		}
		one := senders[h.Run]
		if !print {
			return nil
		}
		if one == nil { // no maps published yet
			one = &sender{name: h.Daemon + "#" + h.Run[len(h.Run)-4:]}
			senders[h.Run] = one
		}
		one.epoch = h.Epoch
		for line := range strings.Lines(string(records)) {
			if rec, err := api.ReadRecord([]byte(line)); err == nil && rec.Type != api.RecordMaps {
				if err := fs.record(one, rec); err != nil {
					return err
				}
			}
		}
		return nil
	}); err != nil && !errors.Is(err, fleet.ErrKeepsNothing) {
		return err
	}
	s.sum()
	_, err := fs.lines.Close()
	return err
}

// row returns a run as a row of the table.
func (x *publishedRun) row() []string {
	at := "-"
	if !x.At.IsZero() {
		at = x.At.Local().Format(time.DateTime)
	}
	state := x.State
	if x.Stale {
		state = "stale"
	}
	count := func(n *uint64) string {
		if n == nil {
			return "-"
		}
		return u64(*n)
	}
	return []string{x.Daemon, state, u64(x.Events), count(x.Kept), count(x.Missing), u64(x.Lost), u64(x.Hits), u64(x.Missed), at}
}

// print prints one script: its runs, and the sums of its maps.
func (s *publishedScript) print(r *command.Run) error {
	var total script.Total
	for i := range s.Runs {
		x := &s.Runs[i]
		var maps []script.MapState
		for line := range bytes.Lines(x.maps) {
			var m script.MapState
			if json.Unmarshal(line, &m) != nil {
				x.Malformed++
				continue
			}
			if maps = append(maps, m); len(maps) > maxMapRecords {
				break
			}
		}
		var problems []string
		if x.maps = nil; len(maps) > maxMapRecords {
			problems = []string{fmt.Sprintf("more than %d records of maps", maxMapRecords)}
		} else {
			problems = total.Add(x.Daemon, maps)
		}
		if x.Malformed += len(problems); x.Malformed > 0 {
			problems = append(problems, fmt.Sprintf("%s of its maps %s not in the sums, or not whole", command.Plural(x.Malformed, "record"), command.IsOrAre(x.Malformed)))
		}
		if x.cut {
			problems = append(problems, fmt.Sprintf("its maps are left out: the maps of all daemons exceed %d MiB", maxReportMaps>>20))
		}
		for _, p := range problems {
			r.Note("%s: %s", x.Daemon, command.Line(p))
		}
		if x.Left > 0 {
			r.Note("%s: %s of maps %s left out: there are too many", x.Daemon, command.Plural(x.Left, "element"), command.IsOrAre(x.Left))
		}
	}
	if r.WantsJSON() {
		total.Print(true, func(text string) {
			for line := range strings.Lines(text) {
				s.Maps = append(s.Maps, json.RawMessage(strings.TrimSpace(line)))
			}
		})
	}
	return r.Show(s, func() error {
		var rows [][]string
		for _, x := range s.Runs {
			rows = append(rows, x.row())
		}
		if len(s.Runs) > 1 {
			rows = append(rows, s.Total.row())
		}
		if err := r.Table([]string{"DAEMON", "STATE", "EVENTS", "KEPT", "MISSING", "LOST", "HITS", "MISSED", "LAST"}, rows); err != nil {
			return err
		}
		var text strings.Builder
		total.Print(false, func(part string) { text.WriteString(part) })
		if text.Len() == 0 {
			return nil
		}
		return printGuestText(r, "\n"+text.String())
	})
}

// printPublished prints the list of scripts.
func printPublished(r *command.Run, ss []*publishedScript, left []unkeptDaemon) error {
	out := fleetReports{ss, left}
	if ss == nil {
		out.Scripts = []*publishedScript{}
	}
	return r.Show(out, func() error {
		var rows [][]string
		for _, s := range ss {
			state := "stopped"
			if s.Defined {
				state = "defined"
			}
			if s.Stale > 0 {
				state = "stale"
			}
			t := s.Total
			rows = append(rows, []string{s.Name, state, s.Since.Local().Format(time.DateTime), fmt.Sprint(len(s.Runs)), fmt.Sprint(s.Running), u64(t.Events), u64(t.Lost), u64(t.Hits), u64(t.Missed)})
		}
		return r.Table([]string{"NAME", "STATE", "SINCE", "RUNS", "RUNNING", "EVENTS", "LOST", "HITS", "MISSED"}, rows)
	})
}

func (ff *fleetFlags) initCommand() command.Spec {
	b := fleet.DefaultBounds()
	return command.Spec{
		Use:   "init",
		Short: "Create the storage of a fleet on its servers",
		Long: `Create the storage of a fleet on NATS servers with JetStream that were not started by 'guestprobe fleet serve':
a KV bucket for the fleet's definitions and two streams for its scripts' results. If they exist,
change their bounds. --replicas is the number of a cluster's servers that store each of
them: with 3, one server may fail.`,
		Example: "  guestprobe fleet init --fleet nats://farm:4222 --events-age 72h",
		Args:    command.ArgsBetween(0, 0, ""),
		Plain:   true,
		Flags: func(f *pflag.FlagSet) {
			b.Flags(f)
			f.IntVar(&b.Replicas, "replicas", b.Replicas, "the `number` of servers of a cluster that store it")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			if ff.URL == "" {
				return command.Usagef("say which fleet: --fleet URL")
			}
			if err := b.Check(); err != nil {
				return command.Usagef("%w", err)
			}
			if _, err := ff.check(); err != nil {
				return err
			}
			n, err := fleet.Connect(ctx, ff.Address, "guestprobe", false, nil)
			if err != nil {
				return err
			}
			defer n.Close()
			return n.Prepare(ctx, b)
		},
	}
}
