package command

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest"
)

// Env is a command's environment.
type Env struct {
	Args           []string // without the program's name
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string

	// Only restricts a user who must not have the rights of this process, such as the user of a debugger's "monitor". It lists
	// the allowed commands by name, without the program's name. Flags with values that are files, programs or addresses are rejected.
	// nil: no restriction.
	Only []string
}

// Spec declares a command: its arguments and flags, its help, and its action.
type Spec struct {
	Use, Short, Long, Example string

	// Args checks the arguments; nil: none are allowed.
	Args Args

	// Negative allows negative numbers as arguments, such as -1.
	Negative bool

	// Formats are values of --format in addition to table and json. A Plain command has
	// only one output format.
	Formats []string
	Plain   bool

	// Row is a row for Go templates in --format, such as '{{.Name}} {{.Hits}}'. Only its type
	// matters. nil: no templates.
	Row any

	// Flags declares the command's own flags. It may be nil.
	Flags func(*pflag.FlagSet)

	// Files names the flags, of Flags or of a program's Global, with values that are files, programs to start, or addresses to connect to.
	Files []string

	// Complete returns completions for the next argument, given the arguments before it.
	// FlagComplete does so for flags, by name.
	Complete     Completion
	FlagComplete map[string]Completion

	// Cures is advice for flags and subcommands that only other programs have. Keys are flags with dashes, such as "-n",
	// or names of subcommands. Advice for flags also applies to the
	// subcommands.
	Cures map[string]string

	// AliasOf is the command that this one is an alias of, such as "guest pause", or "". Help,
	// documentation and completion do not show aliases.
	AliasOf string

	// Group is the title of the command's group in its parent's help, or "" for
	// none.
	Group string

	// ThisMachine means that Program.Prepare is not called for the command.
	ThisMachine bool

	// Local means that the command also rejects the flags Program.Remote: it needs no server.
	Local bool

	// Run is the action. A command without Run is a group of the commands in Sub and
	// prints its help.
	Run func(context.Context, *Run) error
	Sub []Spec
}

// Completion returns possible arguments that begin with prefix.
type Completion func(ctx context.Context, args []string, prefix string) []string

// Args checks the arguments of a command. It returns a usage error.
type Args func(args []string) error

// ArgsBetween requires from least to most arguments. A negative most means no limit.
// missing is the message if there are too few.
func ArgsBetween(least, most int, missing string) Args {
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

// OneArgOf allows at most one argument, which must be one of words.
func OneArgOf(words ...string) Args {
	return func(args []string) error {
		if len(args) > 0 && !slices.Contains(words, args[0]) {
			return Usagef("%q: not %s", args[0], strings.Join(words, " or "))
		}
		return ArgsBetween(0, 1, "")(args)
	}
}

// formats returns the values of --format.
func (s *Spec) formats() []string { return append([]string{formatTable, formatJSON}, s.Formats...) }

// Formats of all commands that are not Plain.
const (
	formatTable = "table"
	formatJSON  = "json"
)

// command builds the cobra command and its subcommands for one run of p.
func (s Spec) command(p *running) *cobra.Command {
	c := &cobra.Command{
		Use: s.Use, Short: s.Short, Long: s.Long, Example: s.Example,
		SilenceUsage: true, SilenceErrors: true, Hidden: s.AliasOf != "",
		Args: cobra.ArbitraryArgs, GroupID: s.Group,
	}
	p.cures[c] = s.Cures
	if s.Flags != nil {
		s.Flags(c.Flags())
	}
	if s.Negative {
		c.Flags().SetInterspersed(false)
	}
	for _, sub := range s.Sub {
		if sub.Group != "" && !c.ContainsGroup(sub.Group) {
			c.AddGroup(&cobra.Group{ID: sub.Group, Title: sub.Group})
		}
		c.AddCommand(sub.command(p))
	}
	for _, flag := range s.Files {
		if c.Flags().Lookup(flag) != nil { // otherwise a flag of Global, which completes file names by default
			_ = c.MarkFlagFilename(flag)
		}
	}
	c.ValidArgsFunction = completion(s.Complete)
	for flag, complete := range s.FlagComplete {
		// Ignore the error: the flag exists because Flags has declared it.
		_ = c.RegisterFlagCompletionFunc(flag, completion(complete))
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		args = showDeletions(args)
		if s.Run == nil {
			return p.group(c, args)
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
		if err := p.checkAllowed(c, &s); err != nil {
			return err
		}
		check := s.Args
		if check == nil {
			check = ArgsBetween(0, 0, "")
		}
		if err := check(args); err != nil {
			return err
		}
		p.Run.Args, p.Run.flags = args, c.Flags()
		for _, name := range p.remote {
			if s.Local && c.Flags().Changed(name) {
				return Usagef("%s uses no daemon, and no guest of others: leave out --%s", strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" "), name)
			}
		}
		if p.prepare != nil && !s.ThisMachine && !s.Local {
			if err := p.prepare(&p.Run); err != nil {
				return err
			}
		}
		return s.Run(c.Context(), &p.Run)
	}
	return c
}

// hidden marks an argument that begins like a flag but is not one. A process's arguments cannot
// contain it.
const hidden = "\x00"

// hideDeletions protects deletions in the probe definition language, such as -:EVENT, from being parsed as
// flags.
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

// group is the action of a command that only has subcommands.
func (r *running) group(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return r.unknownCommandError(c, args[0])
	}
	return c.Help()
}

// unknownCommandError returns the error for a name that is not a command of c, with a suggestion.
func (r *running) unknownCommandError(c *cobra.Command, name string) error {
	said := r.cures[c][name]
	if said == "" {
		said = Suggest(name, func(yield func(string) bool) {
			for _, sub := range c.Commands() {
				if !sub.Hidden && !yield(sub.Name()) {
					return
				}
			}
		})
	}
	if said != "" {
		said = ": " + said
	}
	if c.HasParent() {
		return Usagef("%s has no command %q%s", strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" "), name, said)
	}
	return Usagef("no command %q%s", name, said)
}

// Suggest returns a question with the names that begin with name, or with the most
// similar name. It returns "" if no name is similar.
func Suggest(name string, names iter.Seq[string]) string {
	const most = 4
	var longer []string
	if len(name) >= 3 {
		for n := range names {
			if strings.HasPrefix(n, name) {
				longer = append(longer, n)
			}
		}
	}
	switch near := guest.Nearest(name, names); {
	case len(longer) > 0 && len(longer) <= most:
		slices.Sort(longer)
		return "did you mean " + strings.Join(longer, " or ") + "?"
	case near != "":
		return "did you mean " + near + "?"
	}
	return ""
}

// numbersAndFlags parses the flags between and after the arguments of a command that accepts
// negative numbers, and returns the arguments. args begins with the first
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
		// Parse only one flag: the next argument can be a negative number.
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

// help returns the command `PROGRAM help COMMAND`, which prints the same as COMMAND --help.
func (r *running) help(examples string) *cobra.Command {
	find := func(c *cobra.Command, args []string) (*cobra.Command, error) {
		of := c.Root()
		for _, a := range args {
			at := slices.IndexFunc(of.Commands(), func(sub *cobra.Command) bool { return sub.Name() == a })
			if at < 0 {
				return nil, r.unknownCommandError(of, a)
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
