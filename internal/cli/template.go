package cli

import (
	"encoding/json"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// templateHelp says what --format takes besides words.
const templateHelp = `--format also takes a Go template, as docker does: a line is printed by it for each row.
Its fields are those of --format json, as .maxActive or .MaxActive; json, join, split,
lower, upper, title, pad and truncate are its functions beside those of Go.`

// tableTemplateHelp is about lists, which are printed when all of them are there.
const tableTemplateHelp = templateHelp + ` 'table '
before it makes columns under a heading of it, where \t stands between the columns.`

// probeRow is the row of a probe in a template: its fields, and those of its counts.
type probeRow struct {
	api.Probe
	api.Stats
	Daemon string // of a fleet
}

// MarshalJSON returns what --format json has of the probe.
func (p probeRow) MarshalJSON() ([]byte, error) { return json.Marshal(p.Probe) }

// probeRows returns the rows of probes.
func probeRows(ps []api.Probe) []probeRow {
	out := make([]probeRow, len(ps))
	for i, p := range ps {
		out[i] = probeRow{Probe: p, Stats: p.Stats}
	}
	return out
}

// hitRow is the row of a hit in a template.
type hitRow struct {
	api.Hit
	Daemon string `json:"-"` // of a fleet
}

// Arg returns an argument of the hit by its name, as ftrace prints it; "" where the probe has
// none of this name.
func (h hitRow) Arg(name string) string {
	for _, a := range h.Args {
		if a.Name == name {
			return a.Text
		}
	}
	return ""
}

// printNames prints the names of probes, a line each; with once a name that several have is printed once.
func printNames(r *command.Run, ps []api.Probe, once bool) error {
	seen := map[string]bool{}
	for _, p := range ps {
		if once && seen[p.Name] {
			continue
		}
		seen[p.Name] = true
		if err := r.Print("%s\n", command.Clean(p.Name)); err != nil {
			return err
		}
	}
	return nil
}

// noTrunc declares docker's flag for a command whose output is whole without it.
func noTrunc(f *pflag.FlagSet) {
	f.Bool("no-trunc", false, "leave no column out and cut no value, which is so without it: docker's name, as 'guestprobe list' has it")
}

// notQuiet refuses --quiet together with another form of output than the table.
func notQuiet(r *command.Run) error {
	if r.Given("quiet") && r.Given("format") {
		return command.Usagef("--quiet and --format: say one of them")
	}
	return nil
}
