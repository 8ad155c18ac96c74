package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/fleet"
	"github.com/guestprobe/guestprobe/probe/script"
)

// publishedRun is what a daemon's run of a definition has published. Events = Kept + Missing; what the run has lost itself is
// in none of them.
type publishedRun struct {
	Daemon  string    `json:"daemon"`
	Run     string    `json:"run"`
	State   string    `json:"state"`   // running, gone, or why it has ended
	Events  uint64    `json:"events"`  // that it has printed by the last message of it
	Kept    uint64    `json:"kept"`    // of these: they can be read
	Missing uint64    `json:"missing"` // they are not kept any more, have not come yet, or were lost on their way
	Lost    uint64    `json:"lost"`    // lost before they could be printed
	Hits    uint64    `json:"hits"`
	Missed  uint64    `json:"missed"`
	Left    int       `json:"left"` // elements of maps that are not in the sums
	At      time.Time `json:"at"`   // of its counts

	seq  uint64
	maps []script.MapState
}

// publishedScript is what there is of a definition.
type publishedScript struct {
	Name    string         `json:"name"`
	ID      string         `json:"id"`
	Since   time.Time      `json:"since"`
	Defined bool           `json:"defined"` // it was not withdrawn
	Running int            `json:"running"`
	Total   publishedRun   `json:"total"`
	Runs    []publishedRun `json:"runs"`

	Maps []json.RawMessage `json:"maps,omitempty"` // sums, as bpftrace's JSON has maps; of one script alone

	byRun map[string]*publishedRun
	here  map[string]bool // IDs of daemons that are there
}

// fleetReports is what fleet report prints as JSON.
type fleetReports struct {
	Scripts []*publishedScript `json:"scripts"`
}

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
of a script: of one that is killed the last ones count.

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
			n, ds, err := a.fleet.find(ctx)
			if err != nil {
				return err
			}
			defer n.Close()
			ss, err := readPublished(ctx, n, ds)
			if err != nil {
				return err
			}
			defer func() {
				if left := n.Others(); left > 0 {
					r.Note("%s %s left out, of another version of guestprobe or of somebody else.", command.Plural(int(left), "message"), command.Are(int(left)))
				}
			}()
			if len(r.Args) == 0 {
				return printPublished(r, ss)
			}
			ss = slices.DeleteFunc(ss, func(s *publishedScript) bool { return s.Name != r.Args[0] || id != "" && s.ID != id })
			if len(ss) == 0 {
				return &api.Error{Code: api.CodeNoScript, Errno: "ENOENT", Message: fmt.Sprintf("nothing is kept of a script %q", r.Args[0]), Detail: "'guestprobe fleet report' lists what is"}
			}
			s := ss[len(ss)-1]
			if err := s.readEvents(ctx, r, n, events); err != nil {
				return err
			}
			if events {
				return nil
			}
			return s.print(r)
		},
	}
}

// readPublished reads the last maps of all runs, and sums up their counts; the scripts are in the order of their beginnings.
func readPublished(ctx context.Context, n *fleet.Network, ds []fleet.Daemon) ([]*publishedScript, error) {
	x, err := n.Definitions(ctx)
	if err != nil {
		return nil, err
	}
	here := map[string]bool{}
	for _, d := range ds {
		here[d.ID] = true
	}
	all := map[string]*publishedScript{}
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
		if h.Final {
			run.State = strings.ReplaceAll(h.End, "_", " ")
		}
		run.maps = nil
		for line := range strings.Lines(string(records)) {
			var m script.MapState
			if json.Unmarshal([]byte(line), &m) == nil {
				run.maps = append(run.maps, m)
			}
		}
		return nil
	}); err != nil {
		return nil, err
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
	s.Runs, s.Running, s.Total = []publishedRun{}, 0, publishedRun{Daemon: fmt.Sprintf("all %d", len(s.byRun)), State: "-"}
	for _, run := range s.byRun {
		x, t := *run, &s.Total
		if names[x.Daemon] > 1 {
			x.Daemon += "#" + x.Run[len(x.Run)-4:]
		}
		x.Missing = x.Events - min(x.Events, x.Kept)
		if s.Runs = append(s.Runs, x); x.State == "running" {
			s.Running++
		}
		t.Events, t.Kept, t.Missing, t.Lost = t.Events+x.Events, t.Kept+x.Kept, t.Missing+x.Missing, t.Lost+x.Lost
		t.Hits, t.Missed, t.Left = t.Hits+x.Hits, t.Missed+x.Missed, t.Left+x.Left
		if x.At.After(t.At) {
			t.At = x.At
		}
	}
	slices.SortFunc(s.Runs, func(a, b publishedRun) int { return fleet.CompareNames(a.Daemon, b.Daemon) })
}

// readEvents counts what is kept of the events, and prints them if they are to be.
func (s *publishedScript) readEvents(ctx context.Context, r *command.Run, n *fleet.Network, print bool) error {
	fs := newFleetScript(r, &scriptFlags{}, r.Stdout, nil)
	senders := map[string]*sender{}
	for _, x := range s.Runs {
		senders[x.Run] = &sender{name: x.Daemon}
		fs.lines.Begin(x.Daemon)
	}
	if err := n.Events(ctx, s.ID, func(h fleet.Head, records []byte) error {
		run := s.run(h)
		run.Kept += h.To - h.From
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
	return []string{x.Daemon, x.State, u64(x.Events), u64(x.Kept), u64(x.Missing), u64(x.Lost), u64(x.Hits), u64(x.Missed), at}
}

// print prints one script: its runs, and the sums of its maps.
func (s *publishedScript) print(r *command.Run) error {
	var total script.Total
	for _, x := range s.Runs {
		for _, p := range total.Add(x.Daemon, x.maps) {
			r.Note("%s: %s", command.Clean(x.Daemon), command.Clean(p))
		}
		if x.Left > 0 {
			r.Note("%s: %s of maps %s left out: there are too many", command.Clean(x.Daemon), command.Plural(int(x.Left), "element"), command.Are(int(x.Left)))
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
func printPublished(r *command.Run, ss []*publishedScript) error {
	out := fleetReports{ss}
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
