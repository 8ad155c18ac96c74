package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// maxObject is the maximum size of an object file that the daemon accepts.
const maxObject = 16 << 20

// programFlags are the flags of attach for object files.
type programFlags struct {
	file, section, at string
	set               []string
	entries           string
	skip              bool
}

// check returns an error for flags that exclude --program, or need it.
func (p *programFlags) check(probes *probeFlags, defs []string) error {
	switch {
	case p.file == "" && p.section != "":
		return command.Usagef("--section %q: it is about an object file: --program FILE", p.section)
	case p.file == "" && (p.at != "" || len(p.set) > 0 || p.skip || p.entries != ""):
		return command.Usagef("--at, --set, --map-entries and --skip-missing are about an object file: --program FILE")
	case p.file == "":
		return nil
	case len(defs) > 0:
		return command.Usagef("--program %s and definitions: its sections say what to probe", p.file)
	case probes.post || probes.regs || probes.emulate || len(probes.files) > 0 || probes.filter != "" || probes.args != 0 || probes.mirror != "":
		return command.Usagef("--program %s: --post, --regs, --filter, --emulate, --file, --args and --mirror are about definitions", p.file)
	}
	if probes.override.set.Changed("override") {
		return command.Usagef("--program %s: --override is about definitions; programs have bpf_override_return", p.file)
	}
	return probes.override.rejectAlone(aboutOverride[1:]...)
}

// parseConstants reads the values of --set.
func parseConstants(flags []string) (map[string]string, error) {
	set := map[string]string{}
	for _, s := range flags {
		name, value, ok := strings.Cut(s, "=")
		if _, twice := set[name]; !ok || name == "" || twice {
			return nil, command.Usagef("--set %q: want NAME=VALUE, each name once", s)
		}
		set[name] = value
	}
	return set, nil
}

// attach reads the object file and attaches its programs.
func (p *programFlags) attach(ctx context.Context, c *remote.Client, probes *probeFlags) (list api.ProbeList, err error) {
	object, err := readObject(ctx, p.file)
	if err != nil {
		return list, err
	}
	space, err := probes.spaceValue()
	if err != nil {
		return list, err
	}
	entries, err := bpf.ParseMapEntries(p.entries)
	if err != nil {
		return list, command.Usagef("--map-entries: %v", err)
	}
	set, err := parseConstants(p.set)
	if err != nil {
		return list, err
	}
	list, err = c.AttachProgram(ctx, api.AttachProgram{Object: object, Section: p.section, At: p.at, SkipMissing: p.skip, Set: set, MapEntries: entries, OnHost: probes.onHost, Strict: probes.strict, Unsafe: probes.override.unsafe, Disabled: probes.disabled, Space: space})
	if err != nil {
		return list, fmt.Errorf("%s: %w", p.file, err)
	}
	return list, nil
}

// readObject reads a file or a pipe of at most maxObject bytes.
func readObject(ctx context.Context, path string) ([]byte, error) {
	b, err := files.Input(ctx, nil, path, maxObject)
	if err == nil && len(b) == 0 {
		err = fmt.Errorf("%s: the file is empty", path)
	}
	return b, err
}

// noteRuns prints where each program runs, and if on the host, why.
func noteRuns(r *command.Run, ps []api.Probe) {
	for _, p := range ps {
		switch {
		case p.Program == nil:
			continue
		case p.Runs == api.RunsInGuest:
			r.Note("%s runs in the guest.", command.Clean(p.Name))
		default:
			r.Note("%s runs on the host: %s.", command.Clean(p.Name), command.Clean(p.OnHost))
		}
		for _, w := range p.Program.Warnings {
			source := ""
			if w.Source != "" {
				source = " (" + w.Source + ")"
			}
			r.Note("%s: warning: instruction %d (%s): %s%s.", command.Clean(p.Name), w.Instruction, command.Clean(w.Text), command.Clean(w.What), command.Clean(source))
		}
	}
}
