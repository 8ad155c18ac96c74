package cli

import (
	"encoding/json"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// templateHelp describes templates for --format.
const templateHelp = `--format also takes a Go template, as docker does, and prints a line with it for each row.
The template has the fields of --format json, as .maxActive or .MaxActive, and besides Go's functions
json, join, split, lower, upper, title, pad and truncate.`

// tableTemplateHelp describes templates for lists, which are printed when all rows are known.
const tableTemplateHelp = templateHelp + ` 'table '
before it prints columns under a heading; \t separates columns.`

// probeRow is a probe in a template: the fields of the probe and of its counts.
type probeRow struct {
	api.Probe
	api.Stats
	Daemon string // empty without a fleet
}

// MarshalJSON encodes the probe as --format json does.
func (p probeRow) MarshalJSON() ([]byte, error) { return json.Marshal(p.Probe) }

// probeRows returns the template rows of probes.
func probeRows(ps []api.Probe) []probeRow {
	out := make([]probeRow, len(ps))
	for i, p := range ps {
		out[i] = probeRow{Probe: p, Stats: p.Stats}
	}
	return out
}

// hitRow is a hit in a template.
type hitRow struct {
	api.Hit
	Daemon string `json:"-"` // empty without a fleet
}

// Arg returns the named argument of the hit as ftrace prints it, or "" if the probe has no such
// argument.
func (h hitRow) Arg(name string) string {
	for _, a := range h.Args {
		if a.Name == name {
			return a.Text
		}
	}
	return ""
}

// printNames prints the names of probes, one per line. With once it prints each name only once.
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

// addNoTrunc declares docker's --no-trunc for a command that never truncates.
func addNoTrunc(f *pflag.FlagSet) {
	f.Bool("no-trunc", false, "accepted as for 'guestprobe list'; this output is never cut")
}

// rejectQuiet returns an error if both --quiet and --format were given.
func rejectQuiet(r *command.Run) error {
	if r.Given("quiet") && r.Given("format") {
		return command.Usagef("--quiet and --format: say one of them")
	}
	return nil
}
