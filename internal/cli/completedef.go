package cli

import (
	"context"
	"regexp"
	"strings"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
)

// untilPlace matches a definition up to its place.
var untilPlace = regexp.MustCompile(`^\s*[pr]\d*(:\S*)?\s+`)

// completeDefinitions completes the function in a definition after its first word, and the event in a
// deletion.
func (a *app) completeDefinitions() command.Completion {
	places := a.complete(func(ctx context.Context, c *remote.Client, prefix string) (names []string) {
		head := untilPlace.FindString(prefix)
		if place := prefix[len(head):]; head != "" && !strings.ContainsAny(place, " \t") {
			l, _ := c.Symbols(ctx, remote.SymbolQuery{Match: place + "*", Kind: "func", Limit: 1000})
			for _, s := range l.Symbols {
				names = append(names, head+s.Name)
			}
		}
		return names
	})
	events := a.completeProbes()
	return func(ctx context.Context, args []string, prefix string) (out []string) {
		prefix = strings.TrimLeft(prefix, `'"`) // fish passes the opening quote too
		event, ok := strings.CutPrefix(prefix, "-:")
		if !ok {
			return places(ctx, args, prefix)
		}
		for _, name := range events(ctx, args, event) {
			out = append(out, "-:"+name)
		}
		return out
	}
}
