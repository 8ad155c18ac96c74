package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/kvm/foreign"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Main runs guestprobe and returns its exit status.
func Main() int { return command.Main(Program()) }

// Program describes guestprobe's command line.
func Program() command.Program {
	a := &app{}
	return command.Program{
		Spec: command.Spec{
			Use:   "guestprobe",
			Short: "Probe a KVM guest from the outside",
			Long: `guestprobe attaches kprobes to the guest of a running guestprobed, shows what they
see, and controls the guest. 'guestprobe demo' shows all of it in a few seconds and
needs nothing but /dev/kvm.

Probes are written in the language of the kernel's kprobe_events:

  p[:[GROUP/]EVENT] SYMBOL[+OFFSET]|ADDRESS [NAME=FETCH[:TYPE]]...

Data goes to standard output, remarks to standard error.

Commands fail if a daemon accepts the connection and does not answer within 5 seconds. On a
slow machine set $` + answerTimeEnv + ` to a longer time, such as 1m.

` + exitStatusHelp,
			Example: `  guestprobe attach 'p:myread vfs_read fd=%di count=%dx:u64'
  guestprobe trace -c 10
  guestprobe detach myread`,
			Flags: a.fleet.addAll,
			Files: append([]string{"socket", "core", "core-image", "vm", "vm-image"}, fleetFiles...),
			Cures: cures(),
			FlagComplete: map[string]command.Completion{
				"socket":  completeSockets,
				"context": func(context.Context, []string, string) []string { return contextNames(os.Getenv) },
			},
			Sub: slices.Concat(
				commandGroup("Probes", a.attach(), a.apply(), a.detach(), a.enable(), a.disable(), a.filter(), a.list(), a.stat(), a.arm(), a.disarm(), optimizationCommand(a), a.blacklist()),
				commandGroup("Scripts and programs", a.run(), a.check(), a.scripts(), a.script(), a.stop(), a.tool(), a.maps(), bpfCommand()),
				commandGroup("Traces and profiles", a.trace(), a.top(), a.profile(), convertCommand(), reportCommand(), webCommand(a)),
				commandGroup("Look into the guest", regsCommand(a), a.mem(), btCommand(a), a.tasks(), a.symbols(), a.disas(), a.vars(), a.pt()),
				commandGroup("Debug", a.gdb(), a.step(), a.next(), a.finish(), a.stepUntil(), a.call()),
				commandGroup("Guest and daemons", a.guest(), a.ps(), a.vms(), contextCommand(a), a.fleetCommands(), doctorCommand(), demoCommand(), analyzeCommand(), versionCommand(a)),
				a.aliases(),
			),
		},
		Global: func(f *pflag.FlagSet) {
			f.StringVarP(&a.socket, "socket", "s", "", "`path` of the daemon's socket, or a name that 'guestprobe ps' shows (default: $"+api.SocketEnv+", else the user's, else the system's, else the only running daemon's)")
			f.StringVar(&a.context, "context", "", "use the daemon or the fleet of this `CONTEXT` of 'guestprobe context' (default: $"+contextEnv+", else the current one)")
			f.StringVar(&a.core, "core", "", "inspect the guest in this `file` from 'guestprobe guest save', with or without --elf, without a daemon: regs, mem, bt, pt, disas, tasks, symbols, vars, guest status")
			f.StringVar(&a.coreImage, "core-image", "", "`file` of that guest's image, if it has been moved")
			f.Var((*daemon.VMName)(&a.vm.Name), "vm", "inspect the guest of another VMM, by its `VM`'s pid or name ('guestprobe vms'), without a daemon: regs, mem, bt, pt, disas, tasks, symbols, vars, profile, guest status")
			f.StringVar(&a.vm.Image, "vm-image", "", "`file` of that guest's kernel or program (default: the kernel of its release below /boot, /usr/lib/debug and /lib/modules)")
			f.Uint64Var(&a.vm.Slide, "vm-slide", 0, "move the addresses of a program that is not Linux by `N` bytes")
			a.fleet.add(f)
		},
		Remote:       []string{"vm", "vm-image", "vm-slide"}, // others have been ignored since level 1.0
		HelpExamples: "  guestprobe help attach\n  guestprobe help guest reset",
		Judge:        judge,
		Prepare: func(r *command.Run) error {
			if a.context != "" && r.Only != nil {
				return command.Usagef("--context: there are no files here: it is for a shell")
			}
			return a.useContext(r.Getenv)
		},
	}
}

// commandGroup assigns commands to a group of the program's help.
func commandGroup(title string, all ...command.Spec) []command.Spec {
	for i := range all {
		all[i].Group = title
	}
	return all
}

// app is the state of one guestprobe command line.
type app struct {
	socket, core, coreImage string
	vm                      daemon.VM
	context                 string // a name from 'guestprobe context'
	fleet                   fleetFlags
}

// asking is the part of a command that talks to a daemon.
type asking func(context.Context, *command.Run, *remote.Client) error

// ask returns a command that calls f with a client of the selected daemon.
func (a *app) ask(f asking) func(context.Context, *command.Run) error {
	return func(ctx context.Context, r *command.Run) error {
		c, err := a.client(ctx, r.Getenv, r.Stderr)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := checkAnswering(ctx, r.Getenv, c); err != nil {
			return err
		}
		return f(ctx, r, c)
	}
}

// answerTimeEnv names the environment variable that sets how long a daemon may take to answer, in place of answerTimeUsual.
const (
	answerTimeEnv   = "GUESTPROBE_ANSWER_TIME"
	answerTimeUsual = 5 * time.Second
	answerTimeMax   = time.Hour
)

// answerTime returns how long a daemon may take to answer its first request.
func answerTime(getenv func(string) string) (time.Duration, error) {
	v := getenv(answerTimeEnv)
	if v == "" {
		return answerTimeUsual, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < time.Millisecond || d > answerTimeMax {
		return 0, command.Usagef("%s: %q is no time of 1ms to 1h, as 30s", answerTimeEnv, v)
	}
	return d, nil
}

// checkAnswering returns an error for a daemon that accepts connections but does not answer, because it is stopped or
// hangs. It ignores all other errors: the command itself will report them.
func checkAnswering(ctx context.Context, getenv func(string) string, c *remote.Client) error {
	limit, err := answerTime(getenv)
	if err != nil {
		return err
	}
	ask, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, err := c.Version(ask); err != nil && ask.Err() != nil && ctx.Err() == nil {
		return notAnsweringError(c.Path(), limit)
	}
	return nil
}

// notAnsweringError returns the error for a daemon that accepts connections but does not answer.
func notAnsweringError(path string, limit time.Duration) error {
	return fmt.Errorf("%w on %s within %v: its process is stopped, or has no time", remote.ErrUnreachable, path, limit)
}

// show returns a command that calls ask and prints the answer, either as the JSON that the daemon sent or with table.
func show[T any](a *app, ask func(context.Context, *command.Run, *remote.Client) (T, error), table func(*command.Run, T) error) func(context.Context, *command.Run) error {
	return a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
		v, err := ask(ctx, r, c)
		if err != nil {
			return err
		}
		return r.Show(v, func() error { return table(r, v) })
	})
}

// client returns a client of the selected daemon: the one of socketPath, the guest of --core, or the only daemon of --fleet
// that matches.
func (a *app) client(ctx context.Context, getenv func(string) string, warn io.Writer) (*remote.Client, error) {
	if _, err := a.fleet.check(); err != nil {
		return nil, err
	}
	if a.fleet.URL != "" {
		if a.socket != "" || a.core != "" || a.vm.Name != "" {
			return nil, command.Usagef("--fleet cannot be used with --socket, --core or --vm")
		}
		return a.fleet.findOne(ctx)
	}
	switch {
	case a.vm.Name != "" && (a.socket != "" || a.core != ""):
		return nil, command.Usagef("--vm cannot be used with --socket or --core")
	case a.vm.Name == "" && (a.vm.Image != "" || a.vm.Slide != 0):
		return nil, command.Usagef("--vm-image and --vm-slide describe the guest of --vm")
	case a.vm.Slide != 0 && a.vm.Image == "":
		return nil, command.Usagef("--vm-slide moves the program of --vm-image")
	case a.vm.Name != "":
		c, err := daemon.OpenVM(a.vm, slog.New(slog.NewTextHandler(warn, &slog.HandlerOptions{Level: slog.LevelWarn})))
		if err != nil {
			return nil, err
		}
		return remote.NewWithDial("VM "+a.vm.Name, c.Dial, c.Close), nil
	}
	if a.core != "" {
		c, err := daemon.OpenCore(a.core, a.coreImage)
		if err != nil {
			return nil, err
		}
		for _, what := range c.InsideNotes() {
			fmt.Fprintf(warn, "guestprobe: warning: %s: %s when the guest ended; its registers there are those that the handlers have used\n", a.core, what)
		}
		return remote.NewWithDial(a.core, c.Dial, c.Close), nil
	}
	path, err := a.socketPath(ctx, getenv, warn)
	if err != nil {
		return nil, err
	}
	return remote.New(path), nil
}

// completeTime is the longest that a completion may take after a key press.
const completeTime = 500 * time.Millisecond

// complete returns a completion by names that the daemon knows.
func (a *app) complete(names func(ctx context.Context, c *remote.Client, prefix string) []string) command.Completion {
	return func(ctx context.Context, _ []string, prefix string) (out []string) {
		ctx, cancel := context.WithTimeout(ctx, completeTime)
		defer cancel()
		if a.useContext(os.Getenv) != nil {
			return nil
		}
		c, err := a.client(ctx, os.Getenv, io.Discard)
		if err != nil {
			return nil
		}
		defer c.Close()
		for _, n := range names(ctx, c, prefix) {
			if strings.HasPrefix(n, prefix) {
				out = append(out, n)
			}
		}
		return out
	}
}

// completeProbes completes the names of attached probes.
func (a *app) completeProbes() command.Completion {
	return a.complete(func(ctx context.Context, c *remote.Client, _ string) (names []string) {
		ps, _ := c.Probes(ctx)
		for _, p := range ps {
			names = append(names, p.Name[strings.IndexByte(p.Name, '/')+1:], p.Name)
		}
		return names
	})
}

// completeSymbols completes the first argument with names of functions.
func (a *app) completeSymbols() command.Completion {
	complete := a.complete(func(ctx context.Context, c *remote.Client, prefix string) (names []string) {
		l, _ := c.Symbols(ctx, remote.SymbolQuery{Match: prefix + "*", Kind: "func", Limit: 1000})
		for _, s := range l.Symbols {
			names = append(names, s.Name)
		}
		return names
	})
	return completeFirst(complete)
}

// completeFirst completes the first argument only.
func completeFirst(complete command.Completion) command.Completion {
	return func(ctx context.Context, args []string, prefix string) []string {
		if len(args) > 0 {
			return nil
		}
		return complete(ctx, args, prefix)
	}
}

// Exit statuses in addition to the ones that all programs have. exitStatusHelp documents
// them.
const (
	exitUnreachable = 3
	exitNotFound    = 4
	exitPermission  = 5
	exitTooFew      = 6
	exitPartly      = 7
	exitTimeout     = 124 // as timeout(1)
)

const exitStatusHelp = `Exit status:
  0    done; also a trace that Ctrl-C has ended
  1    the operation failed
  2    bad usage, or a definition or script that does not compile
  3    no daemon answers on the socket
  4    no such symbol, probe, map, script, task or type
  5    no permission
  6    trace ended before --count hits
  7    some daemons of --fleet or --all failed, or fewer than --expect answered
  124  trace --timeout expired before --count hits
  N    run, script --follow, stop: the script has called exit(N)`

// errTimeout ends a trace or a profile when its time is over.
var errTimeout = errors.New("timeout")

// errTooFew ends a trace whose stream ended too early because the guest, the probes or
// the daemon are gone.
var errTooFew = errors.New("the trace ended too early")

// Codes of errors that come from guestprobe itself, not from a daemon.
const (
	codeTooFew      api.Code = "too_few"
	codeUnreachable api.Code = "unreachable"
	codePermission  api.Code = "permission"
	codeTimeout     api.Code = "timeout"
	codeOldDaemon   api.Code = "daemon_too_old"
	codeOther       api.Code = "other_version"
	codePartly      api.Code = "partly"
)

// judge returns the exit status for an error, and advice.
func judge(err error) command.Verdict {
	var wire *api.Error
	switch {
	case errors.As(err, &wire):
		return command.Verdict{Status: wireStatus(wire.Code)}
	case errors.Is(err, fleet.ErrOther):
		return command.Verdict{Status: command.ExitFailed, Code: codeOther}
	case errors.Is(err, remote.ErrUnreachable) && errors.Is(err, fs.ErrPermission):
		return command.Verdict{Status: exitPermission, Code: codePermission,
			Hint: "The socket is its daemon's user's. 'guestprobed --allow-uid USER' and '--group GROUP' let others in."}
	case errors.Is(err, fs.ErrPermission):
		return command.Verdict{Status: exitPermission, Code: codePermission}
	case errors.Is(err, remote.ErrUnreachable):
		return command.Verdict{Status: exitUnreachable, Code: codeUnreachable,
			Hint: "Is guestprobed running there? 'guestprobed' (with --socket PATH, where it is not the default) starts it, 'guestprobe ps' lists those that run; 'guestprobe demo' needs none."}
	case errors.Is(err, remote.ErrOldDaemon):
		return command.Verdict{Status: command.ExitFailed, Code: codeOldDaemon}
	case errors.Is(err, fleet.ErrNoServer):
		return command.Verdict{Status: exitUnreachable, Code: codeUnreachable, Hint: "'guestprobe fleet serve' starts one."}
	case errors.Is(err, fleet.ErrRefused):
		return command.Verdict{Status: exitPermission, Code: codePermission, Hint: "--fleet-creds names the file that 'guestprobe fleet serve' keeps in its --store, or that the server's administrator gives."}
	case errors.Is(err, fleet.ErrUntrusted):
		return command.Verdict{Status: exitPermission, Code: codePermission, Hint: "--fleet-ca names the file of the authority that the server's certificate is of."}
	case errors.Is(err, errNoMatch):
		return command.Verdict{Status: exitUnreachable, Code: codeUnreachable, Hint: "'guestprobe fleet ls --fleet URL' lists the existing ones."}
	case errors.Is(err, errNoLocal):
		return command.Verdict{Status: exitUnreachable, Code: codeUnreachable, Hint: "'guestprobe ps' lists the existing ones."}
	case errors.Is(err, errPartly), errors.Is(err, errExpected):
		return command.Verdict{Status: exitPartly, Code: codePartly}
	case errors.Is(err, errTimeout):
		return command.Verdict{Status: exitTimeout, Code: codeTimeout}
	case errors.Is(err, errTooFew):
		return command.Verdict{Status: exitTooFew, Code: codeTooFew}
	}
	return command.Verdict{Status: command.ExitFailed}
}

// wireStatus returns the exit status for an error code sent by the daemon.
func wireStatus(code api.Code) int {
	switch code {
	case api.CodeProbeNotFound, api.CodeMapNotFound, api.CodeNoStream, api.CodeNoScript, api.CodeNoSnapshot, api.CodeNoTask, api.CodeNoType, "symbol_not_found", "no_symbol_at_address":
		return exitNotFound
	case api.CodeForbidden, api.Code(foreign.CodeNoPermission):
		return exitPermission
	case api.CodeBadDefinition, api.CodeBadScript:
		return command.ExitUsage
	}
	return command.ExitFailed
}
