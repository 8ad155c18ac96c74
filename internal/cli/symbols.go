package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// symbolKinds are the values of api.Symbol.Kind.
var symbolKinds = []string{"func", "data", "other"}

func (a *app) symbols() command.Spec {
	var q remote.SymbolQuery
	var raw bool
	return command.Spec{
		Use:   "symbols [GLOB]",
		Short: "List the names of the guest's image",
		Long: `List the names of the guest's image by address, in the columns of kallsyms:
address, type (T text, D data, A other; lower case for local names), name; then
size, section, and why the name may not be probed. A glob selects: * stands for
any characters, ? for one, [a-z] for one of a set. The exit status is 4 when
nothing matches. With --types functions are listed as they are declared, where the
guest's image says so (BTF): their parameters have these names in definitions.`,
		Example: `  guestprobe symbols 'vfs_*'
  guestprobe symbols --types vfs_read
  guestprobe symbols --kind data`,
		Args: command.ArgsBetween(0, 1, ""),
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&q.Kind, "kind", "", "only this `kind`: func, data or other")
			f.BoolVar(&q.Types, "types", false, "functions only, with parameters and what they return")
			rawNames(f, &raw)
			f.IntVar(&q.Limit, "limit", 0, "at most this `many` (default 10000)")
		},
		Complete: a.completeSymbols(),
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			if r.Given("limit") && q.Limit < 1 {
				return command.Usagef("--limit %d: not at least 1", q.Limit)
			}
			if r.Given("kind") && !slices.Contains(symbolKinds, q.Kind) {
				return command.Usagef("--kind %q: not func, data or other", q.Kind)
			}
			if q.Types {
				if r.Given("kind") && q.Kind != "func" {
					return command.Usagef("--types is about functions: leave out --kind %s", q.Kind)
				}
				q.Kind = "func"
			}
			if len(r.Args) == 1 {
				q.Match = r.Args[0]
			}
			l, err := c.Symbols(ctx, q)
			if err != nil {
				return err
			}
			if err := r.Show(l, func() error { return printSymbols(r, q.Types, raw, l.Symbols) }); err != nil {
				return err
			}
			if l.More {
				r.Note("There are more; --limit shows them.")
			}
			if len(l.Symbols) == 0 {
				return &api.Error{Code: "symbol_not_found", Errno: "ENOENT", Message: noSymbol(q.Match)}
			}
			return nil
		}),
	}
}

// noSymbol says that no symbol matches a pattern.
func noSymbol(match string) string {
	switch {
	case match == "":
		return "the guest's symbols are not known: give its program, as with --vm-image FILE or guestprobed --guest FILE"
	case !strings.ContainsAny(match, "*?["):
		return fmt.Sprintf("no symbol matches %q; '%s*' matches all that begin with it", match, match)
	}
	return fmt.Sprintf("no symbol matches %q", match)
}

func printSymbols(r *command.Run, types, raw bool, syms []api.Symbol) error {
	switch {
	case len(syms) == 0:
		return nil
	case types:
		return printPrototypes(r, syms)
	}
	var rows [][]string
	for _, s := range syms {
		if s.Demangled != "" && !raw {
			s.Name = s.Demangled
		}
		note := s.Blacklist
		if note != "" {
			note = "not probeable: " + note
		}
		if s.User {
			note = "user"
		}
		rows = append(rows, []string{fmt.Sprintf("%016x", uint64(s.Addr)), symbolType(s), s.Name, fmt.Sprint(s.Size), s.Section, note})
	}
	return r.Table([]string{"ADDRESS", "T", "NAME", "SIZE", "SECTION", "NOTE"}, rows)
}

// printPrototypes prints one function per line: its prototype, or its name if the prototype is unknown.
func printPrototypes(r *command.Run, syms []api.Symbol) error {
	unknown := 0
	for _, s := range syms {
		line := s.Name
		if s.Prototype != nil {
			line = s.Prototype.Text
		} else {
			unknown++
		}
		if err := r.Print("%s\n", command.Clean(line)); err != nil {
			return err
		}
	}
	if unknown > 0 {
		r.Note("Of %d of %s the types are not known.", unknown, command.Plural(len(syms), "function"))
	}
	return nil
}

// symbolType returns the type letter that nm and kallsyms use.
func symbolType(s api.Symbol) string {
	t := map[string]byte{"func": 'T', "data": 'D'}[s.Kind]
	if t == 0 {
		t = 'A'
	}
	if !s.Global {
		t += 'a' - 'A'
	}
	return string(rune(t))
}
