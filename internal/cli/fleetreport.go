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

// publishedRun is what a daemon's run of a definition has published. Events = Kept + Missing; what the run has lost itself is
// in none of them.
type publishedRun struct {
	Daemon  string    `json:"daemon"`
	Run     string    `json:"run"`
	State   string    `json:"state"`             // running, gone, or why it has ended
	Stale   bool      `json:"stale"`             // it runs, and the servers have kept nothing of it for longer than it is silent
	Events  uint64    `json:"events"`            // that it has printed by the last message of it
	Kept    *uint64   `json:"kept,omitempty"`    // of these: they can be read; nil: not counted, as in the list of all scripts
	Missing *uint64   `json:"missing,omitempty"` // they are not kept any more, have not come yet, or were lost on their way
	Lost    uint64    `json:"lost"`              // lost before they could be printed
	Hits    uint64    `json:"hits"`
	Missed  uint64    `json:"missed"`
	Left    int       `json:"left"` // elements of maps that are not in the sums
	At      time.Time `json:"at"`   // of its counts
	// Malformed is how many records of its maps make no sense, and are not in the sums.
	Malformed int `json:"malformed,omitempty"`

	seq  uint64
	maps []byte // records, of the script that is asked for
	cut  bool   // there was no room for them
}

// publishedScript is what there is of a definition.
type publishedScript struct {
	Name    string         `json:"name"`
	ID      string         `json:"id"`
	Since   time.Time      `json:"since"`
	Defined bool           `json:"defined"` // it was not withdrawn
	Running int            `json:"running"`
	Stale   int            `json:"stale"` // of those that run
	Total   publishedRun   `json:"total"`
	Runs    []publishedRun `json:"runs"`

	Maps   []json.RawMessage `json:"maps,omitempty"` // sums, as bpftrace's JSON has maps; of one script alone
	Unkept []unkeptDaemon    `json:"unkept,omitempty"`

	byRun map[string]*publishedRun
	here  map[string]bool // IDs of daemons that are there
}

// fleetReports is what fleet report prints as JSON.
type fleetReports struct {
	Scripts []*publishedScript `json:"scripts"`
	Unkept  []unkeptDaemon     `json:"unkept,omitempty"`
}

// unkeptDaemon is a daemon whose records no server keeps.
type unkeptDaemon struct {
	Daemon string `json:"daemon"`
	fleet.Unkept
}

// unkept are the daemons that say that no server keeps what they publish.
func unkept(ds []fleet.Daemon) (out []unkeptDaemon) {
	for _, d := range ds {
		if d.State != nil && d.State.Unkept != nil {
			out = append(out, unkeptDaemon{d.Name, *d.State.Unkept})
		}
	}
	return out
}

// String is what is said of it.
func (u *unkeptDaemon) String() string {
	return fmt.Sprintf("%s: no server has kept what it publishes since %s (%s); %s wait, %s dropped",
		u.Daemon, u.Since.Local().Format(time.DateTime), u.Error, command.Plural(u.Waiting, "byte"), command.Plural(u.Dropped, "event"))
}

// maxMapRecords bounds the maps of a run.
const maxMapRecords = 10_000

// maxReportMaps bounds the maps of all runs of a script in a report, in bytes.
const maxReportMaps = 256 << 20

func (a *app) fleetReport() command.Spec {
	var events bool
	var id string
	return command.Spec{
		Use:   "report [flags] [SCRIPT]",
		Short: "Sum up what scripts of a fleet have published",
		Long: `Sum up what daemons have published of the fleet's scripts, those of 'run --detach' with --fleet,
as far as the fleet's servers keep it: without a daemon, also when a script is stopped, and of daemons
that are gone. With SCRIPT its maps are printed as sums, and for each run of a daemon what has become of its events:
EVENTS are all that it has printed, KEPT can be read (--events prints them), MISSING are
not kept any more, have not come yet, or were lost on their way, and LOST were never printed: the guest
was faster. EVENTS = KEPT + MISSING. HITS are those of its probes, and MISSED had no program run on them.
A run counts once, whatever comes twice. A daemon publishes its maps every 5 seconds and at the end
of a script, and once a minute although they have not changed: of one that is killed the last ones count.
A run that is STALE runs, and the servers have kept nothing of it for three minutes, as when their disk is full: its row is what was kept last, and the exit status is 7. So it is when a daemon says that no server takes what it publishes.

Of several scripts that have had a name the last one is meant, or the one of --id.`,
		Example: "  guestprobe fleet report --fleet nats://farm:4222\n  guestprobe fleet report --fleet nats://farm:4222 --format json",
		Args:    command.Between(0, 1, ""),
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&events, "events", false, "print the lines that the script has printed, with their daemons' names, in the order of time")
			f.StringVar(&id, "id", "", "the script with this `ID`, as --format json has it")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			if a.fleet.URL == "" {
				return command.Usagef("say which fleet: --fleet URL")
			}
			if events && len(r.Args) == 0 {
				return command.Usagef("--events: say of which script")
			}
			n, ds, err := a.fleet.findWith(ctx, true)
			if err != nil {
				return err
			}
			defer n.Close()
			wanted := func(name, of string) bool { return len(r.Args) > 0 && name == r.Args[0] && (id == "" || of == id) }
			ss, err := readPublished(ctx, n, ds, wanted)
			if err != nil {
				return err
			}
			left := unkept(ds)
			for _, u := range left {
				r.Note("%s", u.String())
			}
			defer func() {
				if left := n.Others(); left > 0 {
					r.Note("%s %s left out, of another version of guestprobe or of somebody else.", command.Plural(left, "message"), command.Are(left))
				}
			}()
			if len(r.Args) == 0 {
				return cmp.Or(printPublished(r, ss, left), staleness(ss, left))
			}
			ss = slices.DeleteFunc(ss, func(s *publishedScript) bool { return !wanted(s.Name, s.ID) })
			if len(ss) == 0 {
				return &api.Error{Code: api.CodeNoScript, Errno: "ENOENT", Message: fmt.Sprintf("nothing is kept of a script %q", r.Args[0]), Detail: "'guestprobe fleet report' lists what is"}
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

// staleness is the error of a report that is not of what the daemons are doing now, or nil.
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
	case len(left) > 0: // its runs are stale, too
		return fmt.Errorf("%w: the servers do not keep what %s. See the log of the fleet's server: its disk may be full", errPartly, said(len(left), "publishes", "publish"))
	case stale > 0:
		return fmt.Errorf("%w: of %s that should have published since the servers have kept nothing. See the logs of the daemon and of the fleet's server", errPartly, command.Plural(stale, "run"))
	case wrong > 0:
		return fmt.Errorf("%w: the maps of %s are not all in the sums", errPartly, command.Plural(wrong, "run"))
	}
	return nil
}

// said is a number of daemons and what they do.
func said(n int, one, many string) string {
	if n == 1 {
		return "1 daemon " + one
	}
	return fmt.Sprintf("%d daemons %s", n, many)
}

// readPublished reads the last maps of all runs, and sums up their counts; the scripts are in the order of their beginnings. The maps
// of those are kept that are wanted.
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

// run returns the run of a message.
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

// sum fills in what is of all runs. Runs of one name have a part of their IDs behind it.
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

// addTo adds to a count that may not be counted yet.
func addTo(sum *uint64, n uint64) *uint64 {
	if sum != nil {
		n = command.Sum(*sum, n)
	}
	return &n
}

// readEvents counts what is kept of the events, and prints them if they are to be.
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
		if one == nil { // it has published no maps yet
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

// row is a run as the table has it.
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
			problems = append(problems, fmt.Sprintf("%s of its maps %s not in the sums, or not whole", command.Plural(x.Malformed, "record"), command.Are(x.Malformed)))
		}
		if x.cut {
			problems = append(problems, fmt.Sprintf("its maps are left out: those of all daemons are more than %d MiB", maxReportMaps>>20))
		}
		for _, p := range problems {
			r.Note("%s: %s", x.Daemon, command.Line(p))
		}
		if x.Left > 0 {
			r.Note("%s: %s of maps %s left out: there are too many", x.Daemon, command.Plural(x.Left, "element"), command.Are(x.Left))
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

// printPublished lists scripts.
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

func (a *app) fleetInit() command.Spec {
	b := fleet.DefaultBounds()
	return command.Spec{
		Use:   "init",
		Short: "Make the places for what the servers of a fleet keep",
		Long: `Make, on NATS servers with JetStream that are not those of 'guestprobe fleet serve', the places for
the fleet's definitions (a KV bucket) and for what its scripts publish (two streams); or give those
there are other bounds. --replicas is on how many servers of a cluster each is: with 3 of them one may end.`,
		Example: "  guestprobe fleet init --fleet nats://farm:4222 --events-age 72h",
		Args:    command.Between(0, 0, ""),
		Plain:   true,
		Flags: func(f *pflag.FlagSet) {
			b.Flags(f)
			f.IntVar(&b.Replicas, "replicas", b.Replicas, "keep it on so `many` servers of a cluster")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			if a.fleet.URL == "" {
				return command.Usagef("say which fleet: --fleet URL")
			}
			if err := b.Check(); err != nil {
				return command.Usagef("%w", err)
			}
			if _, err := a.fleet.check(); err != nil {
				return err
			}
			n, err := fleet.Connect(ctx, a.fleet.Address, "guestprobe", false, nil)
			if err != nil {
				return err
			}
			defer n.Close()
			return n.Prepare(ctx, b)
		},
	}
}
