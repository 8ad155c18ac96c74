package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// listPlaces prints the places for a script's probes that match a pattern, as bpftrace -l
// does. With types it also prints the functions' parameters.
func listPlaces(ctx context.Context, r *command.Run, c *remote.Client, pattern string, types bool) error {
	ps, missing := []api.Place{}, []string{}
	for _, part := range splitPlaces(pattern) {
		found, err := c.Places(ctx, part, types)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			missing = append(missing, part)
		}
		ps = append(ps, found...)
	}
	if err := r.Show(api.PlaceList{Places: ps}, func() error {
		var b strings.Builder
		for _, p := range ps {
			b.WriteString(p.Probe + "\n")
			if p.Prototype == nil {
				continue
			}
			for _, x := range p.Prototype.Params {
				typ := x.Type
				if strings.HasPrefix(p.Probe, "uprobe:/") {
					typ = fileTypeText(typ)
				}
				fmt.Fprintf(&b, "    %s\n", strings.TrimSpace(typ+" "+x.Name))
			}
			if strings.Contains(p.Probe, "retprobe:") {
				fmt.Fprintf(&b, "    %s retval\n", p.Prototype.Returns)
			}
		}
		return r.Print("%s", command.Clean(b.String()))
	}); err != nil {
		return err
	}
	for _, part := range missing {
		if len(ps) > 0 {
			r.Note("guestprobe: no place matches %q", part)
		}
	}
	if len(ps) == 0 {
		return &api.Error{Code: "symbol_not_found", Errno: "ENOENT", Message: fmt.Sprintf("no place matches %q", pattern)}
	}
	return nil
}

// splitPlaces splits a list of patterns at its commas, except those in quotes and brackets.
func splitPlaces(list string) (parts []string) {
	var quoted, inside bool
	from := 0
	for i, c := range list {
		switch {
		case c == '"':
			quoted = !quoted
		case c == '[' || c == ']':
			inside = c == '['
		case c == ',' && !quoted && !inside:
			parts = append(parts, strings.TrimSpace(list[from:i]))
			from = i + 1
		}
	}
	parts = append(parts, strings.TrimSpace(list[from:]))
	if strings.Trim(list, ", ") != "" { // an empty pattern is one for all places
		parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	}
	return parts
}

// fileTypeText returns a type of a file in bpftrace's form, which differs from the form for the kernel's types: int* and char* const.
func fileTypeText(typ string) string {
	if strings.ContainsAny(typ, "([") {
		return typ
	}
	return strings.ReplaceAll(strings.ReplaceAll(typ, " *", "*"), "*const", "* const")
}

// completePlaces completes the pattern with names of functions. Shells start a new
// word at a colon.
func (a *app) completePlaces() command.Completion {
	return completeFirst(a.complete(func(ctx context.Context, c *remote.Client, prefix string) (names []string) {
		if !strings.Contains(prefix, ":") {
			return []string{"kprobe:", "kretprobe:", "uprobe:", "uretprobe:", "watchpoint:", "interval:", "profile:", "vm:"}
		}
		ps, _ := c.Places(ctx, prefix+"*", false)
		for _, p := range ps {
			names = append(names, p.Probe)
		}
		return names
	}))
}
