package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
)

func (a *app) symbolsCmd() *cobra.Command {
	var q client.SymbolQuery
	cmd := &cobra.Command{
		Use:   "symbols [GLOB]",
		Short: "List the names of the guest's image",
		Long: `List the names of the guest's image by address, in the columns of kallsyms:
address, type (T text, D data, A other; lower case for local names), name; then
size, section, and why the name may not be probed. A glob selects: * stands for
any characters, ? for one, [a-z] for one of a set. The exit status is 4 when
nothing matches.`,
		Example: `  guestprobe symbols 'vfs_*'
  guestprobe symbols --kind data`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.wantFormat(); err != nil {
				return err
			}
			if len(args) == 1 {
				q.Match = args[0]
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			l, err := c.Symbols(cmd.Context(), q)
			if err != nil {
				return err
			}
			if a.format == "json" {
				if err := a.printJSON(l); err != nil {
					return err
				}
			} else if len(l.Symbols) > 0 {
				if err := a.printSymbols(l.Symbols); err != nil {
					return err
				}
			}
			if l.More {
				a.note("There are more; --limit shows them.")
			}
			if len(l.Symbols) == 0 {
				return &api.Error{Code: "symbol_not_found", Errno: "ENOENT", Message: fmt.Sprintf("no symbol matches %q", q.Match)}
			}
			return nil
		},
		ValidArgsFunction: a.completeSymbols,
	}
	cmd.Flags().StringVar(&q.Kind, "kind", "", "only func, data or other")
	cmd.Flags().IntVar(&q.Limit, "limit", 0, "at most this many (default 10000)")
	return cmd
}

func (a *app) printSymbols(syms []api.Symbol) error {
	var rows [][]string
	for _, s := range syms {
		note := s.Blacklist
		if note != "" {
			note = "not probeable: " + note
		}
		if s.User {
			note = "user"
		}
		rows = append(rows, []string{fmt.Sprintf("%016x", uint64(s.Addr)), symbolType(s), s.Name, u64(s.Size), s.Section, note})
	}
	return a.table([]string{"ADDRESS", "T", "NAME", "SIZE", "SECTION", "NOTE"}, rows)
}

// symbolType is the letter that nm and kallsyms have.
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
