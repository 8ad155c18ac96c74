package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/internal/cli/tools"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Commands and flags that users know from other programs. Some of them work here as well; for each of
// the others the error names the right one.

// aliases returns commands with alternative names. They work, but the help does not list them.
func (a *app) aliases() []command.Spec {
	guest := a.guest()
	ofGuest := func(name string) command.Spec {
		i := slices.IndexFunc(guest.Sub, func(s command.Spec) bool { return nameOf(s) == name })
		s := guest.Sub[i]
		s.AliasOf = "guest " + name
		return s
	}
	named := func(name string, s command.Spec) command.Spec {
		was := nameOf(s)
		if s.AliasOf == "" {
			s.AliasOf = was
		}
		s.Use = name + strings.TrimPrefix(s.Use, was)
		return s
	}
	return []command.Spec{
		named("ls", a.list()), named("rm", a.detach()), named("logs", ofGuest("console")), named("console", ofGuest("console")),
		named("pause", ofGuest("pause")), named("resume", ofGuest("resume")), named("status", ofGuest("status")),
	}
}

// nameOf returns a command's name.
func nameOf(s command.Spec) string { return strings.Fields(s.Use)[0] }

// cures returns advice for unknown commands, and for flags that are unknown in all commands.
func cures() map[string]string {
	all := map[string]string{
		"--json": "--format json prints JSON",
		"-f":     "--format json prints JSON",
		"-j":     "--format json prints JSON",
		"-o":     "for JSON use --format json; to keep the output, > FILE",

		"start": "'guestprobed' starts a guest with its daemon",
		"boot":  "'guestprobed' starts a guest with its daemon",
		"init":  "'guestprobed' starts a guest with its daemon",
		"kill":  "'guestprobe guest pause' stops the vCPUs; a signal ends the daemon with its guest",
		"reset": "'guestprobe guest reset' boots the guest again",
		"save":  "'guestprobe guest save FILE' saves the guest",
		"dump":  "'guestprobe map dump MAP' prints a map, 'guestprobe mem' memory",
		"exec":  "'guestprobe run' runs a script; programs in the guest are the guest's own",
		"probe": "'guestprobe attach' attaches probes, 'guestprobe list' lists them",
		"maps":  "'guestprobe map list' lists maps",
	}
	for _, t := range tools.List() {
		all[t.Name] = fmt.Sprintf("it is a tool: 'guestprobe tool %s'", t.Name)
	}
	return all
}

// curesOfRun is the advice for bpftrace's flags.
var curesOfRun = map[string]string{
	"-q":            "messages are on standard error: 2>/dev/null leaves them out",
	"--quiet":       "messages are on standard error: 2>/dev/null leaves them out",
	"--no-warnings": "messages are on standard error: 2>/dev/null leaves them out",
	"-c":            "programs of the guest are started in the guest; --duration ends the script, or Ctrl-C",
	"-p":            "a condition of the script chooses a process: kprobe:f / pid == 123 / { ... }",
	"-f":            "--format json prints JSON",
	"-B":            "output is written line by line",
	"-k":            "failures are reported without it",
	"-kk":           "failures are reported without it",
	"-I":            "types of structures come from the guest (BTF, DWARF); others are declared in the script",
	"--include":     "types of structures come from the guest (BTF, DWARF); others are declared in the script",
	"--dry-run":     "--check compiles the script and does not run it",
	"--info":        "'guestprobe doctor' shows this host's features",
	"-V":            "'guestprobe version' prints versions",
	"--version":     "'guestprobe version' prints versions",
	"--timeout":     "--duration ends the script after a time",
}

// checkQuoted returns an error for a definition that the shell has split at spaces.
func checkQuoted(defs []string) error {
	if len(defs) > 1 && event.ReadCommand(defs[0]).LacksPlace() {
		return command.Usagef("a definition is one argument: write it in quotes, as '%s'", strings.Join(defs, " "))
	}
	return nil
}
