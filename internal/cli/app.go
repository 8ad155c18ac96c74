package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Main is guestprobe. It returns the exit status.
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

A daemon that takes a connection and says nothing for 5 seconds is given up: $` + answerTimeEnv + `, as 1m, is
for machines that are slower.

` + exitStatusHelp,
			Example: `  guestprobe attach 'p:myread vfs_read fd=%di count=%dx:u64'
  guestprobe trace -c 10
  guestprobe detach myread`,
			Flags: a.fleet.addAll,
			Files: append([]string{"socket", "core", "core-image"}, fleetFiles...),
			Sub: []command.Spec{
				a.doctor(), a.attach(), a.apply(), a.detach(), a.enable(), a.disable(), a.filter(), a.list(), a.ps(), a.trace(), a.top(), a.convert(), a.report(), a.profile(), a.run(), a.check(), a.scripts(), a.script(), a.stop(), a.tool(), a.stat(), a.maps(), a.symbols(), a.tasks(), a.disas(), a.vars(), a.regs(), a.mem(), a.bt(), a.pt(), a.gdb(), a.web(), a.step(), a.next(), a.finish(), a.until(),
				a.call(), a.guest(), a.arm(), a.disarm(), a.optimization(), a.blacklist(), a.fleetCommands(), a.demo(), a.analyze(), a.version(), a.bpf(),
			},
		},
		Global: func(f *pflag.FlagSet) {
			f.StringVarP(&a.socket, "socket", "s", "", "`path` of the daemon's socket (default: $"+api.SocketEnv+", else the user's, else the system's)")
			f.StringVar(&a.core, "core", "", "look at the guest of this `file` of 'guestprobe guest save', with --elf or without, without a daemon: regs, mem, bt, pt, disas, tasks, symbols, vars, guest status")
			f.StringVar(&a.coreImage, "core-image", "", "`file` of that guest's image, where it is not where it was")
			a.fleet.add(f)
		},
		HelpExamples: "  guestprobe help attach\n  guestprobe help guest reset",
		Judge:        judge,
	}
}

// app is one run of the command.
type app struct {
	socket, core, coreImage string
	fleet                   fleetFlags
}

// asking is what a command does that needs a daemon.
type asking func(context.Context, *command.Run, *remote.Client) error

// ask runs f with a client of the daemon that the user means.
func (a *app) ask(f asking) func(context.Context, *command.Run) error {
	return func(ctx context.Context, r *command.Run) error {
		c, err := a.client(ctx, r.Getenv, r.Stderr)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := answers(ctx, r.Getenv, c); err != nil {
			return err
		}
		return f(ctx, r, c)
	}
}

// answerTimeEnv names the time that a daemon has to say that it is there, where answerTimeUsual is too short for it.
const (
	answerTimeEnv   = "GUESTPROBE_ANSWER_TIME"
	answerTimeUsual = 5 * time.Second
	answerTimeMax   = time.Hour
)

// answerTime is how long a daemon may take to say that it is there.
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

// answers refuses a daemon that takes connections and does not answer: it is stopped, or
// hangs. What else may be wrong the command finds out.
func answers(ctx context.Context, getenv func(string) string, c *remote.Client) error {
	limit, err := answerTime(getenv)
	if err != nil {
		return err
	}
	ask, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if _, err := c.Version(ask); err != nil && ask.Err() != nil && ctx.Err() == nil {
		return notAnswering(c.Path(), limit)
	}
	return nil
}

// notAnswering is for a daemon that is there and does not answer.
func notAnswering(path string, limit time.Duration) error {
	return fmt.Errorf("%w on %s within %v: its process is stopped, or has no time", remote.ErrUnreachable, path, limit)
}

// show runs ask, and shows the answer: as the JSON that the daemon sent, or as
// what table prints.
func show[T any](a *app, ask func(context.Context, *command.Run, *remote.Client) (T, error), table func(*command.Run, T) error) func(context.Context, *command.Run) error {
	return a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
		v, err := ask(ctx, r, c)
		if err != nil {
			return err
		}
		return r.Show(v, func() error { return table(r, v) })
	})
}

// client returns a client of the socket that the user means: --socket, the
// environment, the user's own daemon if its socket is there, or the system's; or of the guest of --core, or the
// one daemon of --fleet that is meant.
func (a *app) client(ctx context.Context, getenv func(string) string, warn io.Writer) (*remote.Client, error) {
	if _, err := a.fleet.check(); err != nil {
		return nil, err
	}
	if a.fleet.URL != "" {
		if a.socket != "" || a.core != "" {
			return nil, command.Usagef("--fleet goes with neither --socket nor --core")
		}
		return a.fleet.one(ctx)
	}
	if a.core != "" {
		c, err := daemon.OpenCore(a.core, a.coreImage)
		if err != nil {
			return nil, err
		}
		for _, what := range c.Inside() {
			fmt.Fprintf(warn, "guestprobe: warning: %s: %s when the guest ended; its registers there are those that the handlers have used\n", a.core, what)
		}
		return remote.Of(a.core, c.Dial, c.Close), nil
	}
	value, from := a.socket, "--socket"
	if value == "" {
		value, from = getenv(api.SocketEnv), api.SocketEnv
	}
	if value == "" {
		value = api.SystemSocket
		if user := api.UserSocket(getenv("XDG_RUNTIME_DIR")); user != "" {
			if _, err := os.Stat(user); err == nil {
				value = user
			}
		}
	}
	path, err := api.ParseSocket(value)
	if err != nil {
		return nil, command.Usagef("%s: %w", from, err)
	}
	return remote.New(path), nil
}

// completeTime bounds what a key press may cost.
const completeTime = 500 * time.Millisecond

// complete completes an argument by names that the daemon has.
func (a *app) complete(names func(ctx context.Context, c *remote.Client, prefix string) []string) command.Completion {
	return func(ctx context.Context, _ []string, prefix string) (out []string) {
		ctx, cancel := context.WithTimeout(ctx, completeTime)
		defer cancel()
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

// completeSymbols completes the first argument by names of functions.
func (a *app) completeSymbols() command.Completion {
	complete := a.complete(func(ctx context.Context, c *remote.Client, prefix string) (names []string) {
		l, _ := c.Symbols(ctx, remote.SymbolQuery{Match: prefix + "*", Kind: "func", Limit: 1000})
		for _, s := range l.Symbols {
			names = append(names, s.Name)
		}
		return names
	})
	return first(complete)
}

// first completes the first argument only.
func first(complete command.Completion) command.Completion {
	return func(ctx context.Context, args []string, prefix string) []string {
		if len(args) > 0 {
			return nil
		}
		return complete(ctx, args, prefix)
	}
}

// Exit statuses besides those that all programs have. exitStatusHelp documents
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
  6    trace ended by itself before the hits of --count were there
  7    some daemons of --fleet or --all have not done it, or fewer are there than --expect says
  124  trace --timeout was over before the hits of --count were there
  N    run, script --follow, stop: the script has called exit(N)`

// errTimeout ends a trace whose time is over too early.
var errTimeout = errors.New("timeout")

// errTooFew ends a trace whose stream has ended too early: with the guest, the probes or
// the daemon.
var errTooFew = errors.New("the trace ended too early")

// Codes of errors that no daemon has sent.
const (
	codeTooFew      api.Code = "too_few"
	codeUnreachable api.Code = "unreachable"
	codePermission  api.Code = "permission"
	codeTimeout     api.Code = "timeout"
	codeOldDaemon   api.Code = "daemon_too_old"
	codeOther       api.Code = "other_version"
	codePartly      api.Code = "partly"
)

// judge says what an error means: its exit status, and what to do.
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
			Hint: "Is guestprobed running there? 'guestprobed --socket PATH' starts it, 'guestprobe ps' lists those that run; 'guestprobe demo' needs none."}
	case errors.Is(err, remote.ErrOldDaemon):
		return command.Verdict{Status: command.ExitFailed, Code: codeOldDaemon}
	case errors.Is(err, fleet.ErrNoServer):
		return command.Verdict{Status: exitUnreachable, Code: codeUnreachable, Hint: "'guestprobe fleet serve' starts one."}
	case errors.Is(err, fleet.ErrRefused):
		return command.Verdict{Status: exitPermission, Code: codePermission, Hint: "--fleet-creds names the file that 'guestprobe fleet serve' keeps in its --store, or that the server's administrator gives."}
	case errors.Is(err, fleet.ErrUntrusted):
		return command.Verdict{Status: exitPermission, Code: codePermission, Hint: "--fleet-ca names the file of the authority that the server's certificate is of."}
	case errors.Is(err, errNobody):
		return command.Verdict{Status: exitUnreachable, Code: codeUnreachable, Hint: "'guestprobe fleet ls --fleet URL' lists those there are."}
	case errors.Is(err, errNoLocal):
		return command.Verdict{Status: exitUnreachable, Code: codeUnreachable, Hint: "'guestprobe ps' lists those there are."}
	case errors.Is(err, errPartly), errors.Is(err, errExpected):
		return command.Verdict{Status: exitPartly, Code: codePartly}
	case errors.Is(err, errTimeout):
		return command.Verdict{Status: exitTimeout, Code: codeTimeout}
	case errors.Is(err, errTooFew):
		return command.Verdict{Status: exitTooFew, Code: codeTooFew}
	}
	return command.Verdict{Status: command.ExitFailed}
}

// wireStatus is the exit status for a refusal of the daemon.
func wireStatus(code api.Code) int {
	switch code {
	case api.CodeProbeNotFound, api.CodeMapNotFound, api.CodeNoStream, api.CodeNoScript, api.CodeNoSnapshot, api.CodeNoTask, api.CodeNoType, "symbol_not_found", "no_symbol_at_address":
		return exitNotFound
	case api.CodeForbidden:
		return exitPermission
	case api.CodeBadDefinition, api.CodeBadScript:
		return command.ExitUsage
	}
	return command.ExitFailed
}
