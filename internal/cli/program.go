package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
)

// maxObject is the size of the largest object file that the daemon takes.
const maxObject = 16 << 20

// programFlags are the flags of attach that are about object files.
type programFlags struct {
	file, section string
}

// check refuses what cannot be with --program, or only with it.
func (p *programFlags) check(probes *probeFlags, defs []string) error {
	switch {
	case p.file == "" && p.section != "":
		return &usageError{fmt.Errorf("--section %q: it is about an object file: --program FILE", p.section)}
	case p.file == "":
		return nil
	case len(defs) > 0:
		return &usageError{fmt.Errorf("--program %s and definitions: its sections say what to probe", p.file)}
	case probes.post || probes.regs || probes.emulate || probes.filter != "" || probes.args != 0 || probes.mirror != "":
		return &usageError{fmt.Errorf("--program %s: --post, --regs, --filter, --emulate, --args and --mirror are about definitions", p.file)}
	}
	return nil
}

// attach reads the file and attaches its programs.
func (p *programFlags) attach(ctx context.Context, c *client.Client, probes *probeFlags) ([]api.Probe, error) {
	object, err := readObject(p.file)
	if err != nil {
		return nil, err
	}
	space, err := probes.spaceValue()
	if err != nil {
		return nil, err
	}
	ps, err := c.AttachProgram(ctx, api.AttachProgram{Object: object, Section: p.section, OnHost: probes.onHost, Disabled: probes.disabled, Space: space})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.file, err)
	}
	return ps, nil
}

// readObject reads a file of bounded size; it may be a pipe.
func readObject(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxObject+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxObject:
		return nil, fmt.Errorf("%s: larger than %d bytes", path, maxObject)
	case len(b) == 0:
		return nil, fmt.Errorf("%s: the file is empty", path)
	}
	return b, nil
}

// noteRuns says where programs run, and if on the host why.
func (a *app) noteRuns(ps []api.Probe) {
	for _, p := range ps {
		switch {
		case p.Program == nil || a.format == "json":
		case p.Runs == api.RunsInGuest:
			a.note("%s runs in the guest.", clean(p.Name))
		default:
			a.note("%s runs on the host: %s.", clean(p.Name), clean(p.OnHost))
		}
	}
}

// printPrograms prints the counts of programs, if there are any.
func (a *app) printPrograms(ps []api.Probe) error {
	var rows [][]string
	for _, p := range ps {
		g := p.Program
		if g == nil {
			continue
		}
		fault := g.Fault
		if fault == "" {
			fault = "-"
		}
		rows = append(rows, []string{p.Name, p.Runs, u64(g.Runs), u64(g.InGuest), u64(g.Faults), u64(g.Missed), strings.TrimPrefix(fault, "run program: ")})
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.env.Stdout)
	return a.table([]string{"PROGRAM", "PLACE", "RUNS", "IN-GUEST", "FAULTS", "MISSED", "LAST-FAULT"}, rows)
}
