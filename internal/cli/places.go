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
// does, and types of the guest ("struct file"). With types it also prints the functions' parameters, and the types' definitions.
func listPlaces(ctx context.Context, r *command.Run, c *remote.Client, pattern string, types bool) error {
	if strings.Contains(pattern, ".") && !strings.ContainsAny(pattern, ":*") {
		r.Note("WARNING: It appears that '%[1]s' is a filename but the file does not exist. Treating '%[1]s' as a search pattern.", command.Clean(pattern))
	}
	all, text, missing := api.PlaceList{Places: []api.Place{}}, "", []string{}
	for _, part := range splitPlaces(pattern) {
		found, err := c.Places(ctx, part, types)
		if err != nil {
			return err
		}
		if len(found.Places)+len(found.Types) == 0 {
			missing = append(missing, part)
		}
		all.Places, all.Types = append(all.Places, found.Places...), append(all.Types, found.Types...)
		text += placesText(found)
	}
	if err := r.Show(all, func() error { return r.Print("%s", command.Clean(text)) }); err != nil {
		return err
	}
	none := len(all.Places)+len(all.Types) == 0
	for _, part := range missing {
		if !none {
			r.Note("guestprobe: no place matches %q", part)
		}
	}
	if none {
		return &api.Error{Code: "symbol_not_found", Errno: "ENOENT", Message: fmt.Sprintf("no place matches %q", pattern)}
	}
	return nil
}

// placesText returns places and types as bpftrace prints them.
func placesText(l api.PlaceList) string {
	var b strings.Builder
	for _, p := range l.Places {
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
		if provider, _, _ := strings.Cut(p.Probe, ":"); provider == "kretprobe" || provider == "uretprobe" || provider == "fexit" {
			fmt.Fprintf(&b, "    %s retval\n", p.Prototype.Returns)
		}
	}
	for i, t := range l.Types {
		switch {
		case t.Definition != "":
			fmt.Fprintf(&b, "%s: %s\n", t.Module, t.Definition)
		case i == 0 || l.Types[i-1].Name != t.Name:
			b.WriteString(t.Name + "\n")
		}
	}
	return b.String()
}

// listScript prints the places of a script's probes, as bpftrace -l does with a script.
func (s *scriptFlags) listScript(ctx context.Context, r *command.Run, c *remote.Client) error {
	checked, err := c.Check(ctx, api.Check{Script: &s.req, Places: true})
	if err != nil {
		return err
	}
	for _, w := range checked.Warnings {
		r.Note("%s", command.Clean(w))
	}
	if checked.Places == nil {
		checked.Places = []api.Place{}
	}
	l := api.PlaceList{Places: checked.Places}
	return r.Show(l, func() error { return r.Print("%s", command.Clean(placesText(l))) })
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
			return []string{"kprobe:", "kretprobe:", "fentry:", "fexit:", "tracepoint:", "rawtracepoint:", "usdt:", "uprobe:", "uretprobe:", "watchpoint:", "interval:", "profile:", "vm:"}
		}
		found, _ := c.Places(ctx, prefix+"*", false)
		for _, p := range found.Places {
			names = append(names, p.Probe)
		}
		return names
	}))
}
