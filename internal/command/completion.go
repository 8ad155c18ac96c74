package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// unquoteUsages removes the backquotes around the names of values in the descriptions of
// flags, which only the help needs.
func unquoteUsages(c *cobra.Command) {
	for _, flags := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "`", "") })
	}
	for _, sub := range c.Commands() {
		unquoteUsages(sub)
	}
}

// changeCompletion changes cobra's command that prints completion scripts for shells.
func (r *running) changeCompletion(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs
	c.Short = "Print a completion script for a shell"
	c.Long = "Print a completion script for a shell. 'completion SHELL --help' says how to install it."
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
		shell.Short = "Print the completion script for " + shell.Name()
		shell.Long = fmt.Sprintf(completionHelp[shell.Name()], c.Root().Name())
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

// completionHelp says how to install each shell's script. The daemon and the programs run on Linux.
var completionHelp = map[string]string{
	"bash": `Print the completion script for bash. It needs the package bash-completion. For this shell:

	source <(%[1]s completion bash)

For each new shell:

	%[1]s completion bash | sudo tee /etc/bash_completion.d/%[1]s >/dev/null`,
	"zsh": `Print the completion script for zsh. It needs compinit, as from 'autoload -U compinit; compinit' in ~/.zshrc. For this shell:

	source <(%[1]s completion zsh)

For each new shell, in a folder of $fpath:

	%[1]s completion zsh >"${fpath[1]}/_%[1]s"`,
	"fish": `Print the completion script for fish. For this shell:

	%[1]s completion fish | source

For each new shell:

	%[1]s completion fish >~/.config/fish/completions/%[1]s.fish`,
	"powershell": `Print the completion script for PowerShell. For this shell, and in its profile for each new one:

	%[1]s completion powershell | Out-String | Invoke-Expression`,
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
