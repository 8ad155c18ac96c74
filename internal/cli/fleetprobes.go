package cli

import (
	"slices"
	"strconv"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// probesOf are the daemons' lists of probes.
type probesOf struct{ answersOf[api.ProbeList] }

// probesAlone wraps the list of a single daemon.
func probesAlone(l api.ProbeList) probesOf {
	return probesOf{answersOf[api.ProbeList]{Daemons: []answer[api.ProbeList]{{Answer: &l}}, alone: true}}
}

// probes returns the probes of all daemons, and the daemon of each probe.
func (o probesOf) probes() (ps []api.Probe, daemons []string) {
	for _, a := range o.Daemons {
		if a.Answer != nil {
			ps = append(ps, a.Answer.Probes...)
			daemons = append(daemons, slices.Repeat([]string{a.Daemon}, len(a.Answer.Probes))...)
		}
	}
	return ps, daemons
}

// print prints the table of probes, with a column for the daemon if there are several.
func (o probesOf) print(r *command.Run, columns columnList) error {
	ps, daemons := o.probes()
	if r.Templated() {
		rows := probeRows(ps)
		for i := range rows {
			rows[i].Daemon = daemons[i]
		}
		return command.PrintRows(r, rows)
	}
	return r.Show(o.json(), func() error {
		l, beside := columns, 0
		if !o.alone {
			beside = columnWidth("DAEMON", daemons) + 2
		}
		if len(l) == 0 {
			l = narrowColumns(ps, beside)
		}
		var rows [][]string
		for i, p := range ps {
			row := l.cells(p)
			if !o.alone {
				row = append([]string{daemons[i]}, row...)
			}
			rows = append(rows, row)
		}
		if !o.alone {
			return r.Table(append([]string{"DAEMON"}, l.headings()...), rows)
		}
		if err := r.Table(l.headings(), rows); err != nil {
			return err
		}
		return underWayTable(ps).printBelow(r)
	})
}

// fleetStat is the JSON output of stat for a fleet.
type fleetStat struct {
	Daemons []answer[statAnswer] `json:"daemons"`
	Total   []totalCounts        `json:"total"` // by name
	Kinds   []kindCounts         `json:"kinds"`
}

// totalCounts are the sums over all probes of one name in all daemons.
type totalCounts struct {
	Name     string `json:"name"`
	Daemons  int    `json:"daemons"`
	Probes   int    `json:"probes"`
	Hits     uint64 `json:"hits"`
	Handled  uint64 `json:"handled"`
	Filtered uint64 `json:"filtered"`
	Missed   uint64 `json:"missed"`
	Lost     uint64 `json:"lost"`
}

// totals returns the sums by name, in the order of the names' first probes.
func totals(ps []api.Probe, daemons []string) []totalCounts {
	out, at, last := []totalCounts{}, map[string]int{}, map[string]string{}
	for i, p := range ps {
		n, ok := at[p.Name]
		if !ok {
			n, at[p.Name] = len(out), len(out)
			out = append(out, totalCounts{Name: p.Name})
		}
		t := &out[n]
		if last[p.Name] != daemons[i] { // the probes of one daemon are adjacent
			t.Daemons++
			last[p.Name] = daemons[i]
		}
		t.Probes++
		t.Hits = command.Sum(t.Hits, p.Stats.Hits)
		t.Handled = command.Sum(t.Handled, p.Stats.Handled)
		t.Filtered = command.Sum(t.Filtered, p.Stats.Filtered)
		t.Missed = command.Sum(t.Missed, p.Stats.Missed)
		t.Lost = command.Sum(t.Lost, p.Stats.Lost)
	}
	return out
}

func (s *fleetStat) print(r *command.Run, ps []api.Probe, daemons []string, quiet bool) error {
	var rows [][]string
	for i, p := range ps {
		n := p.Stats
		rows = append(rows, []string{daemons[i], p.Name, u64(n.Hits), u64(n.Handled), u64(n.Filtered), u64(n.Missed), u64(n.Lost)})
	}
	for _, t := range s.Total {
		rows = append(rows, []string{"all " + strconv.Itoa(t.Daemons), t.Name, u64(t.Hits), u64(t.Handled), u64(t.Filtered), u64(t.Missed), u64(t.Lost)})
	}
	if err := r.Table([]string{"DAEMON", "NAME", "HITS", "HANDLED", "FILTERED", "MISSED", "LOST"}, rows); err != nil || quiet {
		return err
	}
	return kindsTable(s.Kinds).printBelow(r)
}
