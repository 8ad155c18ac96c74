package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// completion converts a Completion to cobra's type.
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

// changeCompletion changes cobra's command that prints completion scripts for shells.
func (r *running) changeCompletion(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error { // cobra's own command ignores arguments and prints its help
		if len(args) > 0 {
			return r.unknownCommandError(c, args[0])
		}
		return c.Help()
	}
	for _, shell := range c.Commands() {
		write := map[string]func(root *cobra.Command, w io.Writer, described bool) error{
			"bash": (*cobra.Command).GenBashCompletionV2,
			"zsh": func(root *cobra.Command, w io.Writer, described bool) error {
				if described {
					return root.GenZshCompletion(w)
				}
				return root.GenZshCompletionNoDesc(w)
			},
			"fish": (*cobra.Command).GenFishCompletion,
			"powershell": func(root *cobra.Command, w io.Writer, described bool) error {
				if described {
					return root.GenPowerShellCompletionWithDesc(w)
				}
				return root.GenPowerShellCompletion(w)
			},
		}[shell.Name()]
		if write == nil {
			continue
		}
		change := inQuotes[shell.Name()]
		shell.RunE = func(c *cobra.Command, _ []string) error {
			plain := c.Flags().Lookup("no-descriptions")
			var script bytes.Buffer
			if err := write(c.Root(), &script, plain == nil || plain.Value.String() != "true"); err != nil {
				return err
			}
			head, tail, ok := strings.Cut(script.String(), change.before)
			if !ok {
				return fmt.Errorf("BUG: cobra's script for %s has no %q", c.Name(), change.before)
			}
			_, err := io.WriteString(c.OutOrStdout(), head+change.insert+change.before+tail)
			return err
		}
	}
}

// inQuotes are lines added to cobra's scripts. They complete a word with an open quote, such as 'p vfs_. They are inserted before
// the line before. Without them cobra's script evaluates the command line, which fails at an open quote.
var inQuotes = map[string]struct{ before, insert string }{
	"bash": {
		before: "    local out directive\n",
		insert: `    if [[ ${cur} == [\'\"]* ]]; then
        # A word with an open quote: what bash inserts follows the quote.
        local line
        while IFS='' read -r line; do
            [[ ${line} == :* ]] || COMPREPLY+=("${line}")
        done < <("${words[0]}" __completeNoDesc "${words[@]:1:$cword-1}" "${cur:1}" 2>/dev/null)
        return
    fi

`,
	},
	"zsh": {
		before: "    # The user could have moved the cursor backwards",
		insert: `    if [[ -n ${compstate[quote]} || ${words[CURRENT]} == *\\\ * ]]; then
        # A word with an open quote, or with a blank: the lines below cut the command line at blanks.
        local -a found
        found=("${(@f)$("${(Q)words[1]}" __completeNoDesc "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
        found=("${(@)found:#:*}")
        (( ${#found} )) && compadd -- "${(@)found}"
        return
    fi

`,
	},
}
