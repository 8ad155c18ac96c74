package cli

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/cli/tools"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
)

func (a *app) tool() command.Spec {
	var sf scriptFlags
	var list, source bool
	return command.Spec{
		Use:   "tool [flags] {--list [NAME] | NAME [ARG...]}",
		Short: "Run one of the scripts that come with guestprobe",
		Long: `Run one of the scripts that come with guestprobe, which count, time and trace functions of
the guest: --list lists them, --list NAME shows the help of one, --source NAME its script.
docs/tools.md shows the output of each. A tool ends as 'guestprobe run' does, with Ctrl-C or
after --duration, and prints its maps; --interval also prints and clears them while it runs, and
--detach NAME leaves it running.

` + chartHelp,
		Example: `  guestprobe tool --list
  guestprobe tool funccount 'vfs_*' --duration 5s
  guestprobe tool slower vfs_read 100 -d 5s`,
		Args:    command.ArgsBetween(0, -1, ""),
		Formats: []string{formatSVG},
		Files:   []string{"output"},
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&list, "list", "l", false, "list the tools, or print the help of one")
			f.BoolVar(&source, "source", false, "print the script of the tool")
			sf.declare(f)
		},
		Complete: completeFirst(func(context.Context, []string, string) (names []string) {
			for _, t := range tools.List() {
				names = append(names, t.Name)
			}
			return names
		}),
		Run: func(ctx context.Context, r *command.Run) error {
			if len(r.Args) == 0 {
				if !list {
					return command.Usagef("say which tool: --list lists them")
				}
				return listTools(r)
			}
			t, ok := tools.Find(r.Args[0])
			switch {
			case !ok:
				return command.Usagef("there is no tool %q: %s", r.Args[0], cmp.Or(command.Suggest(r.Args[0], func(yield func(string) bool) {
					for _, t := range tools.List() {
						if !yield(t.Name) {
							return
						}
					}
				}), "'guestprobe tool --list' lists them"))
			case list:
				return r.Show(t, func() error { return r.Print("%s", toolHelp(t)) })
			case source:
				for i, v := range t.Variants {
					if err := r.Print("%s%s", strings.Repeat("\n", min(i, 1)), v.Script); err != nil {
						return err
					}
				}
				return nil
			}
			return a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) (err error) {
				sf.req.Name = t.Name + ".bt"
				var failed error
				sf.req.Script, sf.req.Args, err = t.Script(r.Args[1:], func(pattern string) bool {
					found, err := c.Places(ctx, pattern, false)
					failed = cmp.Or(failed, err)
					return len(found.Places) > 0
				})
				switch {
				case failed != nil:
					return failed
				case err != nil:
					return command.Usagef("%v\n\n%s", err, strings.TrimRight(toolHelp(t), "\n"))
				}
				return sf.run(ctx, r, newAlone(c))
			})(ctx, r)
		},
	}
}

// toolHelp returns the help of a tool.
func toolHelp(t tools.Tool) string {
	return strings.TrimSpace("guestprobe tool "+t.Name+" "+t.Usage) + "\n\n" + t.Help
}

func listTools(r *command.Run) error {
	all := tools.List()
	return r.Show(map[string][]tools.Tool{"tools": all}, func() error {
		var rows [][]string
		for _, t := range all {
			rows = append(rows, []string{t.Name, t.Usage, t.Summary})
		}
		return r.Table([]string{"NAME", "ARGUMENTS", "WHAT"}, rows)
	})
}
