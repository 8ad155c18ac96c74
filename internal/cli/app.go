package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
)

// Env is what the command takes from its process.
type Env struct {
	Args           []string // without the program's name
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

// Main is guestprobe. It returns the exit status.
func Main() int {
	// The first Ctrl-C ends what runs in good order; a second one, or a reader
	// of our output that goes away, ends us as it ends any program.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return Run(ctx, Env{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv})
}

// Run is guestprobe. It returns the exit status; see exitStatus.
func Run(ctx context.Context, env Env) int {
	a := &app{env: env}
	cmd := a.root()
	cmd.SetArgs(env.Args)
	cmd.SetOut(env.Stdout)
	cmd.SetErr(env.Stderr)
	ran, err := cmd.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !a.started {
		// cobra's own errors are all about the command line.
		err = &usageError{err}
	}
	a.report(err, ran.CommandPath())
	return exitStatus(err)
}

// Root returns the description of the command line, for its documentation.
func Root() *cobra.Command { return (&app{env: Env{Getenv: func(string) string { return "" }}}).root() }

// app is one run of the command.
type app struct {
	env     Env
	started bool // a command's own code was reached

	socket    string
	format    string
	color     string
	noHeaders bool
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "guestprobe",
		Short: "Probe a KVM guest from the outside",
		Long: `guestprobe attaches kprobes to the guest of a running guestprobed, shows what they
see, and controls the guest. 'guestprobe demo' shows all of it in a few seconds and
needs nothing but /dev/kvm.

Probes are written in the language of the kernel's kprobe_events:

  p[:[GROUP/]EVENT] SYMBOL[+OFFSET]|ADDRESS [NAME=FETCH[:TYPE]]...

Data goes to standard output, remarks to standard error.

` + exitStatusHelp,
		Example: `  guestprobe attach 'p:myread vfs_read fd=%di count=%dx:u64'
  guestprobe trace -c 10
  guestprobe detach myread`,
		Version:       api.Build().Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.check(); err != nil {
				return err
			}
			a.started = true
			return nil
		},
	}
	f := root.PersistentFlags()
	f.StringVarP(&a.socket, "socket", "s", "", "`path` of the daemon's socket (default: $"+api.SocketEnv+", else the user's, else the system's)")
	f.StringVar(&a.format, "format", "table", "table or json, refusals of the daemon included; a command's help says where there are more")
	f.StringVar(&a.color, "color", "auto", "auto, always or never; auto obeys NO_COLOR")
	f.BoolVar(&a.noHeaders, "no-headers", false, "leave out the heading of tables")
	root.AddCommand(
		a.doctorCmd(), a.attachCmd(), a.detachCmd(), a.enableCmd(), a.disableCmd(), a.listCmd(), a.traceCmd(), a.statCmd(), a.mapCmd(),
		a.symbolsCmd(), a.disasCmd(), a.callCmd(), a.guestCmd(), a.armCmd(), a.disarmCmd(), a.optimizationCmd(), a.blacklistCmd(), a.demoCmd(), a.benchCmd(), a.soakCmd(), a.analyzeCmd(), a.versionCmd(),
	)
	root.AddCommand(a.bpfCmd())
	root.SetHelpCommand(helpCmd())
	root.InitDefaultHelpCmd()
	return root
}

// formats lists what --format may be; annotations of a command add to it.
const formatsKey = "formats"

func (a *app) check() error {
	switch a.color {
	case "auto", "always", "never":
	default:
		return fmt.Errorf("--color %q: not auto, always or never", a.color)
	}
	return nil
}

// wantFormat checks --format against what a command has.
func (a *app) wantFormat(also ...string) error {
	for _, f := range append([]string{"table", "json"}, also...) {
		if a.format == f {
			return nil
		}
	}
	return &usageError{fmt.Errorf("--format %q: not %s", a.format, strings.Join(append([]string{"table", "json"}, also...), " or "))}
}

// client returns a client of the socket that the user means: --socket, the
// environment, the user's own daemon if its socket is there, or the system's.
func (a *app) client() (*client.Client, error) {
	value, from := a.socket, "--socket"
	if value == "" {
		value, from = a.env.Getenv(api.SocketEnv), api.SocketEnv
	}
	if value == "" {
		value = api.SystemSocket
		if user := api.UserSocket(a.env.Getenv("XDG_RUNTIME_DIR")); user != "" {
			if _, err := os.Stat(user); err == nil {
				value = user
			}
		}
	}
	path, err := api.ParseSocket(value)
	if err != nil {
		return nil, &usageError{fmt.Errorf("%s: %w", from, err)}
	}
	return client.New(path), nil
}

// note writes a remark for people.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.env.Stderr, format+"\n", args...)
}

// report writes an error, with a caret where it points into a definition and
// with what to do where that is known. With --format json a refusal of the
// daemon is written as the daemon sent it, in one line. command is the one that
// failed.
func (a *app) report(err error, command string) {
	var wire *api.Error
	refused := errors.As(err, &wire)
	if refused && a.format == "json" {
		if json.NewEncoder(a.env.Stderr).Encode(api.ErrorBody{Error: *wire}) == nil {
			return
		}
	}
	fmt.Fprintf(a.env.Stderr, "guestprobe: %v\n", err)
	if refused {
		fmt.Fprint(a.env.Stderr, clean(wire.Caret()))
	}
	var usage *usageError
	switch {
	case errors.Is(err, client.ErrUnreachable) && errors.Is(err, fs.ErrPermission):
		a.note("The socket is its daemon's user's. 'guestprobed --allow-uid USER' and '--group GROUP' let others in.")
	case errors.Is(err, client.ErrUnreachable):
		a.note("Is guestprobed running there? 'guestprobed --socket PATH' starts it; 'guestprobe demo' needs none.")
	case errors.As(err, &usage):
		a.note("Run '%s --help' for usage.", command)
	}
}
