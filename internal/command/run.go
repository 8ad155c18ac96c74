package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Exit statuses that all programs have.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2 // a command line that cannot be
)

// Program is the command line of one binary.
type Program struct {
	Spec // of the program itself

	// Global declares flags that all its commands have; nil: none but those of
	// output, which a Plain program does not have either.
	Global func(*pflag.FlagSet)

	// HelpExamples stand in the help of the command help.
	HelpExamples string

	// Judge says what an error means that is not one of usage; nil: ExitFailed.
	Judge func(error) Verdict
}

// Verdict is what an error means to the caller of a program.
type Verdict struct {
	Status int      // exit status
	Code   api.Code // for --format json, where the error is not the daemon's
	Hint   string   // what to do, a line; "" where the error says it
}

// Codes of errors that are none of a daemon's answers.
const (
	codeUsage  api.Code = "usage"
	codeFailed api.Code = "failed"
)

// usageError is a command line that cannot be.
type usageError struct{ err error }

// Error is the cause's text.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *usageError) Unwrap() error { return e.err }

// Status is an error that needs no word: the program ends with that exit status.
type Status int

// Error names the status.
func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Usagef returns an error about the command line itself, for ExitUsage.
func Usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// Main runs a program in this process until it is done, or a signal ends it. It
// returns the exit status.
func Main(p Program) int {
	// The first Ctrl-C ends what runs in good order; a second one, or a reader
	// of our output that goes away, ends us as it ends any program.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		first := <-signals
		signal.Stop(signals) // before anything is done: who sees that done may send the second one
		cancel(fmt.Errorf("%v signal received", first))
		select {
		case second := <-signals:
			_ = syscall.Kill(os.Getpid(), second.(syscall.Signal))
		default:
		}
	}()
	return p.Run(ctx, Process())
}

// Process is the environment of this process.
func Process() Env {
	return Env{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
}

// running is one run of a program.
type running struct {
	Run
	begun bool     // the command line was understood
	files []string // the program's flags that are files
}

// Run runs the program once and returns the exit status.
func (p Program) Run(ctx context.Context, env Env) int {
	r := &running{Run: Run{Env: env, Format: formatTable, color: colorAuto}, files: p.Files}
	root := p.root(r)
	if env.Only != nil { // what shells ask for completion has no check of its own
		env.Args = slices.DeleteFunc(slices.Clone(env.Args), func(a string) bool { return a == cobra.ShellCompRequestCmd || a == cobra.ShellCompNoDescRequestCmd })
	}
	root.SetArgs(hideDeletions(env.Args))
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	ran, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	var silent Status
	if errors.As(err, &silent) {
		return int(silent)
	}
	var usage *usageError
	if !r.begun && !errors.As(err, &usage) {
		err = &usageError{err} // cobra's own errors are all about the command line
	}
	v := p.judge(err, ran.CommandPath())
	if !p.Plain && slices.Contains(formatOf(env.Args), formatJSON) {
		r.reportJSON(err, v)
	} else {
		r.report(p.Name(), err, v)
	}
	return v.Status
}

// Name is what the program is called.
func (p Program) Name() string { return strings.Fields(p.Use)[0] }

// Describe returns the commands as cobra has them, for documents.
func (p Program) Describe() *cobra.Command { return p.root(&running{}) }

// root makes the program's command for one run.
func (p Program) root(r *running) *cobra.Command {
	root := p.Spec.command(r)
	root.Version = api.Build().Version
	root.SetFlagErrorFunc(r.flagError)
	f := root.PersistentFlags()
	if p.Global != nil {
		p.Global(f)
	}
	if !p.Plain {
		f.StringVar(&r.Format, "format", formatTable, "`FORMAT` of the output, errors included: table or json; a command's help says where there are more")
		f.StringVar(&r.color, "color", colorAuto, "`WHEN` to colour: auto, always or never; auto obeys NO_COLOR")
		f.BoolVar(&r.noHeaders, "no-headers", false, "leave out the heading of tables, and the header of a trace")
	}
	if len(p.Sub) == 0 {
		root.CompletionOptions.DisableDefaultCmd = true
		return root
	}
	root.SetHelpCommand(help(p.HelpExamples))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" { // cobra's own shows its help for whatever follows
			c.Args = cobra.ArbitraryArgs
			c.RunE = func(c *cobra.Command, args []string) error {
				if len(args) > 0 {
					return unknownCommand(c, args[0])
				}
				return c.Help()
			}
		}
	}
	return root
}

// check refuses output that a command does not have, and notes that the command
// line is understood.
func (r *running) check(s *Spec) error {
	switch r.color {
	case colorAuto, colorAlways, colorNever:
	default:
		return Usagef("--color %q: not auto, always or never", r.color)
	}
	formats := s.formats()
	if s.Plain {
		formats = []string{formatTable}
	}
	if s.Row != nil {
		if isTemplate(r.Format) {
			var err error
			r.template, err = parseTemplate(r.Format, s.Row)
			r.begun = err == nil
			return err
		}
		formats = append(formats, "a template, as {{json .}}")
	}
	if !slices.Contains(formats, r.Format) {
		if s.Plain {
			return Usagef("--format %q: this command has one form of output", r.Format)
		}
		return Usagef("--format %q: not %s", r.Format, strings.Join(formats, " or "))
	}
	r.begun = true
	return nil
}

// allowed refuses commands and flags that are not for this user.
func (r *running) allowed(c *cobra.Command, s *Spec) (err error) {
	if r.Only == nil {
		return nil
	}
	if name := strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" "); !slices.Contains(r.Only, name) {
		return Usagef("%s works with files or programs: it is for a shell, and cannot be used here", name)
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && (slices.Contains(s.Files, f.Name) || slices.Contains(r.files, f.Name)) {
			err = Usagef("--%s: there are no files here: it is for a shell", f.Name)
		}
	})
	return err
}

// judge says what an error of a command means.
func (p Program) judge(err error, command string) Verdict {
	var usage *usageError
	switch {
	case errors.As(err, &usage):
		return Verdict{Status: ExitUsage, Code: codeUsage, Hint: fmt.Sprintf("Run '%s --help' for usage.", command)}
	case p.Judge == nil:
		return Verdict{Status: ExitFailed}
	}
	return p.Judge(err)
}

// report writes an error, with a caret where it points into a definition.
func (r *Run) report(program string, err error, v Verdict) {
	fmt.Fprintf(r.Stderr, "%s: %s\n", program, Clean(err.Error()))
	var wire *api.Error
	if errors.As(err, &wire) {
		fmt.Fprint(r.Stderr, Clean(wire.Caret()))
	}
	if v.Hint != "" {
		r.Note("%s", v.Hint)
	}
}

// reportJSON writes an error in one line: a refusal of the daemon as the daemon
// sent it, any other in the same form.
func (r *Run) reportJSON(err error, v Verdict) {
	var wire *api.Error
	if !errors.As(err, &wire) {
		wire = &api.Error{Code: v.Code, Message: err.Error(), Detail: v.Hint}
		if wire.Code == "" {
			wire.Code = codeFailed
		}
	}
	// An api.Error is strings and numbers: it can always be written.
	_ = json.NewEncoder(r.Stderr).Encode(api.ErrorBody{Error: *wire})
}

// formatOf returns the values of --format in a command line that may not parse.
func formatOf(args []string) (out []string) {
	for i, a := range args {
		value, ok := strings.CutPrefix(a, "--format=")
		switch {
		case a == "--":
			return out
		case ok:
			out = append(out, value)
		case a == "--format" && i+1 < len(args):
			out = append(out, args[i+1])
		}
	}
	return out
}

// flagError puts what is wrong with a flag in words for people.
func (r *running) flagError(c *cobra.Command, err error) error {
	// A mistyped command leaves its flags to the group that it is not in.
	if args := c.Flags().Args(); c.HasSubCommands() && len(args) > 0 {
		return unknownCommand(c, args[0])
	}
	if none := (*pflag.NotExistError)(nil); errors.As(err, &none) && none.GetSpecifiedShortnames() != "" {
		return Usagef("%w; put -- before an argument that begins with -", err)
	}
	var value *pflag.InvalidValueError
	if !errors.As(err, &value) {
		return &usageError{err}
	}
	return Usagef("--%s %q: %w", value.GetFlag().Name, value.GetValue(), invalidWhy(value))
}

// invalidWhy says what is wrong with a flag's value.
func invalidWhy(value *pflag.InvalidValueError) error {
	if want, ok := valueTypes[value.GetFlag().Value.Type()]; ok {
		return errors.New("not " + want)
	}
	return value.Unwrap()
}

// valueTypes says in words what the values of pflag's own types are, whose errors
// speak of Go.
var valueTypes = map[string]string{
	"int": "a number", "int64": "a number", "uint": "a number from 0 on", "uint64": "a number from 0 on",
	"intSlice": "numbers with commas between", "duration": "a duration, as 500ms, 5s or 2m", "bool": "true or false",
}
