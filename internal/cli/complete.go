package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/client"
)

// completeTime bounds what a key press may cost.
const completeTime = 500 * time.Millisecond

// completeProbes completes the names of attached probes.
func (a *app) completeProbes(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	return a.complete(cmd.Context(), func(ctx context.Context, c *client.Client) []string {
		ps, err := c.Probes(ctx)
		if err != nil {
			return nil
		}
		var names []string
		for _, p := range ps {
			for _, n := range []string{p.Name[strings.IndexByte(p.Name, '/')+1:], p.Name} {
				if strings.HasPrefix(n, prefix) {
					names = append(names, n)
				}
			}
		}
		return names
	})
}

// completeSymbols completes the names of functions.
func (a *app) completeSymbols(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd.Context(), func(ctx context.Context, c *client.Client) []string {
		l, err := c.Symbols(ctx, client.SymbolQuery{Match: prefix + "*", Kind: "func", Limit: 1000})
		if err != nil {
			return nil
		}
		var names []string
		for _, s := range l.Symbols {
			names = append(names, s.Name)
		}
		return names
	})
}

func (a *app) complete(ctx context.Context, ask func(context.Context, *client.Client) []string) ([]string, cobra.ShellCompDirective) {
	if ctx == nil {
		ctx = context.Background()
	}
	c, err := a.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, completeTime)
	defer cancel()
	return ask(ctx, c), cobra.ShellCompDirectiveNoFileComp
}
