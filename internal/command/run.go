package command

import (
	"cmp"
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

// Exit statuses of all programs.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2 // invalid command line
)

// Program is the command line of one binary.
type Program struct {
	Spec // for the program itself

	// Global declares flags for all commands, in addition to the flags for
	// output, which a Plain program does not have. It may be nil.
	Global func(*pflag.FlagSet)

	// HelpExamples are examples for the help of the help command.
	HelpExamples string

	// Remote are flags of Global that select the server of a command, and that commands with Local reject.
	Remote []string

	// Prepare runs before each command without ThisMachine or Local, after its command line has been
	// validated. If it returns an error, the command does not run. It may be nil.
	Prepare func(*Run) error

	// Judge returns the verdict on errors other than usage errors. nil: all are ExitFailed.
	Judge func(error) Verdict
}

// Verdict is the exit status and the message for an error.
type Verdict struct {
	Status int      // exit status
	Code   api.Code // for --format json, if the error is not the daemon's
	Hint   string   // advice in one line; "" if the error contains it
}

// Codes of errors that are not a daemon's.
const (
	codeUsage  api.Code = "usage"
	codeFailed api.Code = "failed"
)

// usageError is an error in the command line.
type usageError struct{ err error }

// Error returns the cause's text.
func (e *usageError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *usageError) Unwrap() error { return e.err }

// Status is an error without a message: the program exits with this status.
type Status int

// Error returns the status as text.
func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Usagef returns an error about the command line. The program exits with ExitUsage.
func Usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// Main runs a program until it ends or is interrupted, and returns the exit
// status.
func Main(p Program) int {
	// The first Ctrl-C stops the command in good order. A second one, or a write
	// to a closed pipe, ends the process at once, as it would any program.
	signals := make(chan os.Signal, 2)
	ignored := signal.Ignored(os.Interrupt) // as in background jobs of a script
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		first := <-signals
		if ignored {
			cancel(fmt.Errorf("%v signal received", first))
			second := (<-signals).(syscall.Signal)
			signal.Stop(signals)
			_ = syscall.Kill(os.Getpid(), second) // no effect if the signal is an ignored SIGINT
			os.Exit(128 + int(second))
		}
		signal.Stop(signals) // before the cancel, because the user may send the second one as soon as its effect is visible
		cancel(fmt.Errorf("%v signal received", first))
		select {
		case second := <-signals:
			_ = syscall.Kill(os.Getpid(), second.(syscall.Signal))
		default:
		}
	}()
	return p.Run(ctx, Process())
}

// Process returns the environment of this process.
func Process() Env {
	return Env{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
}

// running is one run of a program.
type running struct {
	Run
	begun bool     // the command line was valid
	files []string // Program.Files

	cures   map[*cobra.Command]map[string]string // Spec.Cures
	remote  []string                             // Program.Remote
	prepare func(*Run) error                     // Program.Prepare
}

// Run runs the program once and returns the exit status.
func (p Program) Run(ctx context.Context, env Env) int {
	r := &running{Run: Run{Env: env, Format: formatTable, color: colorAuto}, files: p.Files}
	root := p.root(r)
	if env.Only != nil { // completion requests do not run checkAllowed
		env.Args = slices.DeleteFunc(slices.Clone(env.Args), func(a string) bool { return a == cobra.ShellCompRequestCmd || a == cobra.ShellCompNoDescRequestCmd })
	}
	if len(env.Args) > 0 && env.Args[0] == cobra.ShellCompRequestCmd {
		unquoteUsages(root)
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
		err = &usageError{err} // errors from cobra are always usage errors
	}
	v := p.judge(err, ran.CommandPath())
	if !p.Plain && slices.Contains(formatOf(env.Args), formatJSON) {
		r.reportJSON(err, v)
	} else {
		r.report(p.Name(), err, v)
	}
	return v.Status
}

// Name returns the program's name.
func (p Program) Name() string { return strings.Fields(p.Use)[0] }

// Describe returns the commands in cobra's form, for documentation.
func (p Program) Describe() *cobra.Command { return p.root(&running{}) }

// root builds the program's cobra command for one run.
func (p Program) root(r *running) *cobra.Command {
	r.cures, r.remote, r.prepare = map[*cobra.Command]map[string]string{}, p.Remote, p.Prepare
	root := p.Spec.command(r)
	root.Version = api.Build().Version
	root.SetFlagErrorFunc(r.flagError)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) { _ = writeHelp(c.OutOrStdout(), c) })
	f := root.PersistentFlags()
	if p.Global != nil {
		p.Global(f)
		for flag, complete := range p.FlagComplete { // for flags of Global, which has just declared them
			_ = root.RegisterFlagCompletionFunc(flag, func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
				names, directive := completion(complete)(c, args, prefix)
				if len(names) == 0 && slices.Contains(p.Files, flag) {
					directive = cobra.ShellCompDirectiveDefault // complete file names in the shell
				}
				return names, directive
			})
		}
	}
	if !p.Plain {
		f.StringVar(&r.Format, "format", formatTable, "`FORMAT` of the output, errors included: table or json; a command's help says where there are more")
		f.StringVar(&r.color, "color", colorAuto, "`WHEN` to use colors: auto, always or never; auto obeys NO_COLOR")
		f.BoolVar(&r.noHeaders, "no-headers", false, "leave out the heading of tables, and the header of a trace")
	}
	if len(p.Sub) == 0 {
		root.CompletionOptions.DisableDefaultCmd = true
		return root
	}
	root.SetHelpCommand(r.help(p.HelpExamples))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			r.changeCompletion(c)
		}
	}
	return root
}

// check validates --color and --format, and records that the command line is
// valid.
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

// checkAllowed rejects commands and flags that Env.Only does not allow.
func (r *running) checkAllowed(c *cobra.Command, s *Spec) (err error) {
	if r.Only == nil {
		return nil
	}
	name := cmp.Or(s.AliasOf, strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" "))
	if !slices.Contains(r.Only, name) {
		return Usagef("%s works with files or programs: it is for a shell, and cannot be used here", name)
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && (slices.Contains(s.Files, f.Name) || slices.Contains(r.files, f.Name)) {
			err = Usagef("--%s: there are no files here: it is for a shell", f.Name)
		}
	})
	return err
}

// judge returns the verdict on a command's error.
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

// report prints an error. If it is about a definition, a caret marks the place.
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

// reportJSON prints an error in one line: a daemon's error as received,
// other errors in the same form.
func (r *Run) reportJSON(err error, v Verdict) {
	var wire *api.Error
	if !errors.As(err, &wire) {
		wire = &api.Error{Code: v.Code, Message: err.Error(), Detail: v.Hint}
		if wire.Code == "" {
			wire.Code = codeFailed
		}
	}
	// Encoding cannot fail: an api.Error consists of strings and numbers.
	_ = json.NewEncoder(r.Stderr).Encode(api.ErrorBody{Error: *wire})
}

// formatOf returns the values of --format in a command line that may be invalid.
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

// flagError rewrites pflag's errors for users.
func (r *running) flagError(c *cobra.Command, err error) error {
	// After a mistyped command name, its flags are parsed as flags of the group.
	if args := c.Flags().Args(); c.HasSubCommands() && len(args) > 0 {
		return r.unknownCommandError(c, args[0])
	}
	if none := (*pflag.NotExistError)(nil); errors.As(err, &none) {
		return r.unknownFlagError(c, none)
	}
	var value *pflag.InvalidValueError
	if !errors.As(err, &value) {
		return &usageError{err}
	}
	return Usagef("--%s %q: %w", value.GetFlag().Name, value.GetValue(), invalidWhy(value))
}

// unknownFlagError returns the error for an unknown flag, with a suggestion.
func (r *running) unknownFlagError(c *cobra.Command, err *pflag.NotExistError) error {
	name, short := err.GetSpecifiedName(), err.GetSpecifiedShortnames()
	flag := "--" + name
	if short != "" {
		flag = "-" + name
	}
	for of := c; of != nil; of = of.Parent() {
		if cure := r.cures[of][flag]; cure != "" {
			return Usagef("%w: %s", err, cure)
		}
	}
	switch {
	case short == "":
		if near := suggestFlag(c.Flags(), name, nil); near != "" {
			return Usagef("%w%s", err, near)
		}
	case name >= "0" && name <= "9":
		return Usagef("%w; put -- before an argument that begins with -", err)
	}
	return &usageError{err}
}

// invalidWhy returns why a flag's value is invalid.
func invalidWhy(value *pflag.InvalidValueError) error {
	if want, ok := valueTypes[value.GetFlag().Value.Type()]; ok {
		return errors.New("not " + want)
	}
	return value.Unwrap()
}

// valueTypes describes the values of pflag's types, because pflag's own errors
// use Go's terms.
var valueTypes = map[string]string{
	"int": "a number", "int64": "a number", "uint": "a number from 0 on", "uint64": "a number from 0 on",
	"intSlice": "comma-separated numbers", "duration": "a duration, as 500ms, 5s or 2m", "bool": "true or false",
}
