package command

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Env is what a command takes from its process.
type Env struct {
	Args           []string // without the program's name
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string

	// Only says that the user is somebody else than whom the process runs for: there are only these
	// commands, by their names behind the program's, and no flags and arguments that are files.
	// nil: the user is who has started it.
	Only []string
}

// Spec declares a command: what it takes, what it offers, and what it does.
type Spec struct {
	Use, Short, Long, Example string

	// Args says what may stand behind the flags; nil: nothing.
	Args Args

	// Negative lets arguments be negative numbers: -1 is no flag.
	Negative bool

	// Formats are those of --format beside table and json. A Plain command has
	// only its one form of output.
	Formats []string
	Plain   bool

	// Row is a row as --format takes Go templates for, as '{{.Name}} {{.Hits}}'; only its type
	// matters. nil: it takes none.
	Row any

	// Flags declares the command's own flags; nil: none.
	Flags func(*pflag.FlagSet)

	// Files are the flags, of Flags or a program's Global, whose values are files, programs to start, or addresses to connect to.
	Files []string

	// Complete lists what the next argument may be, given those before it, for
	// completion by shells. FlagComplete does it for flags, by name.
	Complete     Completion
	FlagComplete map[string]Completion

	// Run does it. A command without Run is a group of the commands in Sub, and
	// shows its help.
	Run func(context.Context, *Run) error
	Sub []Spec
}

// Completion lists what an argument that begins with prefix may be.
type Completion func(ctx context.Context, args []string, prefix string) []string

// Args checks the arguments of a command. Its error is one of usage.
type Args func(args []string) error

// Between wants from least to most arguments, or any number where most is
// negative. Missing says what to say when there are too few.
func Between(least, most int, missing string) Args {
	return func(args []string) error {
		switch {
		case len(args) < least:
			return Usagef("%s", missing)
		case most >= 0 && len(args) > most:
			return Usagef("unexpected argument %q", args[most])
		}
		return nil
	}
}

// OneOf wants at most one argument, one of these words.
func OneOf(words ...string) Args {
	return func(args []string) error {
		if len(args) > 0 && !slices.Contains(words, args[0]) {
			return Usagef("%q: not %s", args[0], strings.Join(words, " or "))
		}
		return Between(0, 1, "")(args)
	}
}

// formats are those that a command has.
func (s *Spec) formats() []string { return append([]string{formatTable, formatJSON}, s.Formats...) }

// Formats that every command has that is not plain.
const (
	formatTable = "table"
	formatJSON  = "json"
)

// command makes the command, and those below it, for one run of p.
func (s Spec) command(p *running) *cobra.Command {
	c := &cobra.Command{
		Use: s.Use, Short: s.Short, Long: s.Long, Example: s.Example,
		SilenceUsage: true, SilenceErrors: true, SuggestionsMinimumDistance: 2,
		Args: cobra.ArbitraryArgs,
	}
	if s.Flags != nil {
		s.Flags(c.Flags())
	}
	if s.Negative {
		c.Flags().SetInterspersed(false)
	}
	for _, sub := range s.Sub {
		c.AddCommand(sub.command(p))
	}
	for _, flag := range s.Files {
		if c.Flags().Lookup(flag) != nil { // else one of Global, whose shells' completion is that of files already
			_ = c.MarkFlagFilename(flag)
		}
	}
	c.ValidArgsFunction = completion(s.Complete)
	for flag, complete := range s.FlagComplete {
		// The flag is there: Flags has just declared it.
		_ = c.RegisterFlagCompletionFunc(flag, completion(complete))
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		args = showDeletions(args)
		if s.Run == nil {
			return group(c, args)
		}
		if s.Negative {
			var err error
			if args, err = numbersAndFlags(c.Flags(), args); err != nil {
				return p.flagError(c, err)
			}
			if h := c.Flags().Lookup("help"); h != nil && h.Changed {
				return c.Help()
			}
		}
		if err := p.check(&s); err != nil {
			return err
		}
		if err := p.allowed(c, &s); err != nil {
			return err
		}
		check := s.Args
		if check == nil {
			check = Between(0, 0, "")
		}
		if err := check(args); err != nil {
			return err
		}
		p.Run.Args, p.Run.flags = args, c.Flags()
		return s.Run(c.Context(), &p.Run)
	}
	return c
}

// hidden stands before an argument that begins like a flag and is none. No argument of a
// process has it.
const hidden = "\x00"

// hideDeletions has the deletions of the probe definition language, as -:EVENT, taken for
// arguments.
func hideDeletions(args []string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		if a == "--" {
			copy(out[i:], args[i:])
			break
		}
		if out[i] = a; strings.HasPrefix(a, "-:") {
			out[i] = hidden + a
		}
	}
	return out
}

// showDeletions undoes hideDeletions.
func showDeletions(args []string) []string {
	for i, a := range args {
		args[i] = strings.TrimPrefix(a, hidden)
	}
	return args
}

// group is what a command does that only has others below it.
func group(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return unknownCommand(c, args[0])
	}
	return c.Help()
}

// unknownCommand names what was meant, as far as can be guessed.
func unknownCommand(c *cobra.Command, name string) error {
	said := ""
	if near := c.SuggestionsFor(name); len(near) > 0 {
		said = ": did you mean " + strings.Join(near, " or ") + "?"
	}
	if c.HasParent() {
		return Usagef("%s has no command %q%s", strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" "), name, said)
	}
	return Usagef("no command %q%s", name, said)
}

// numbersAndFlags returns the arguments of a command that takes negative numbers,
// with the flags between and behind them parsed. args begins with the first
// argument.
func numbersAndFlags(f *pflag.FlagSet, args []string) (out []string, err error) {
	for len(args) > 0 {
		a := args[0]
		if a == "--" {
			return append(out, args[1:]...), nil
		}
		if negative := len(a) > 1 && a[0] == '-' && a[1] >= '0' && a[1] <= '9'; negative || a == "-" || !strings.HasPrefix(a, "-") {
			out, args = append(out, a), args[1:]
			continue
		}
		// One flag at a time: what follows its value may be a number again.
		n := 1
		err := f.Parse(args[:n])
		if needs := (*pflag.ValueRequiredError)(nil); errors.As(err, &needs) && len(args) > n {
			n++
			err = f.Parse(args[:n])
		}
		if err != nil {
			return nil, err
		}
		args = args[n:]
	}
	return out, nil
}

// completion is a Completion as cobra wants it.
func completion(f Completion) cobra.CompletionFunc {
	if f == nil {
		return cobra.NoFileCompletions
	}
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		ctx := c.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		return f(ctx, args, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// help is `PROGRAM help COMMAND`: what COMMAND --help says.
func help(examples string) *cobra.Command {
	find := func(c *cobra.Command, args []string) (*cobra.Command, error) {
		of := c.Root()
		for _, a := range args {
			at := slices.IndexFunc(of.Commands(), func(sub *cobra.Command) bool { return sub.Name() == a })
			if at < 0 {
				return nil, unknownCommand(of, a)
			}
			of = of.Commands()[at]
		}
		return of, nil
	}
	return &cobra.Command{
		Use:     "help [COMMAND]...",
		Short:   "Show what a command does and takes",
		Example: examples,
		RunE: func(c *cobra.Command, args []string) error {
			of, err := find(c, args)
			if err != nil {
				return err
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
		ValidArgsFunction: completion(nil),
	}
}
