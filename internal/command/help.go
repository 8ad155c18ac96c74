package command

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpPage is the annotation of global flags whose help is shown in one command's help
// only. Its value is the command's name.
const helpPage = "help-page"

// ShowOnlyIn restricts the help of global flags to the help of one command,
// because most users never need them. It panics if f does not have a flag.
func ShowOnlyIn(command string, f *pflag.FlagSet, flags ...string) {
	for _, name := range flags {
		if err := f.SetAnnotation(name, helpPage, []string{command}); err != nil {
			panic("BUG: " + err.Error())
		}
	}
}

// UseLine returns a command's usage in a line.
func UseLine(c *cobra.Command) string {
	if c.HasAvailableSubCommands() {
		return c.CommandPath() + " COMMAND [flags]"
	}
	return c.UseLine()
}

// Subcommands returns the list of a command's subcommands by group, as in its help; "" if it has none.
func Subcommands(c *cobra.Command) string {
	var b strings.Builder
	for _, g := range groups(c) {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.text)
	}
	return strings.TrimPrefix(b.String(), "\n")
}

// writeHelp writes the help of a command: first usage and examples, then
// subcommands by group, the description and the flags.
func writeHelp(w io.Writer, c *cobra.Command) error {
	var b strings.Builder
	c.InitDefaultHelpFlag()
	fmt.Fprintf(&b, "%s\n\nUsage:\n", c.Short)
	fmt.Fprintf(&b, "  %s\n", UseLine(c))
	section := func(title, text string) {
		if text = strings.Trim(text, "\n"); text != "" {
			fmt.Fprintf(&b, "\n%s:\n%s\n", title, text)
		}
	}
	section("Examples", c.Example)
	for _, g := range groups(c) {
		section(g.title, g.text)
	}
	if text := strings.Trim(c.Long, "\n"); text != "" && text != c.Short {
		fmt.Fprintf(&b, "\n%s\n", text)
	}
	own, elsewhere := splitFlags(c, c.NonInheritedFlags())
	section("Flags", own)
	global, more := splitFlags(c, c.InheritedFlags())
	section("Flags of all commands", global)
	for _, page := range slices.Concat(elsewhere, more) {
		fmt.Fprintf(&b, "\nMore flags of all commands: '%s %s --help'.\n", c.Root().Name(), page)
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n'%s COMMAND --help' describes a command.\n", c.CommandPath())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// commandGroup is a titled list of subcommands.
type commandGroup struct{ title, text string }

// groups returns the subcommands of c by group. The groups are in the order of
// their first members.
func groups(c *cobra.Command) (all []commandGroup) {
	width := 0
	for _, sub := range c.Commands() {
		width = max(width, len(sub.Name()))
	}
	add := func(title string, sub *cobra.Command) {
		i := slices.IndexFunc(all, func(g commandGroup) bool { return g.title == title })
		if i < 0 {
			i = len(all)
			all = append(all, commandGroup{title: title})
		}
		all[i].text += fmt.Sprintf("  %-*s  %s\n", width, sub.Name(), sub.Short)
	}
	subs := slices.Clone(c.Commands())
	for _, g := range c.Groups() {
		for _, sub := range subs {
			if sub.GroupID == g.ID && sub.IsAvailableCommand() {
				add(g.Title, sub)
			}
		}
	}
	title := "Commands"
	if len(all) > 0 {
		title = "Other commands"
	}
	for _, sub := range subs {
		if sub.GroupID == "" && (sub.IsAvailableCommand() || sub.Name() == "help") {
			add(title, sub)
		}
	}
	return all
}

// splitFlags returns the help of flags, and the names of commands whose help has the other flags: the ones that ShowOnlyIn
// assigned to a command that is neither c nor a parent of c.
func splitFlags(c *cobra.Command, flags *pflag.FlagSet) (text string, elsewhere []string) {
	on := func(page string) bool {
		of := c
		for of != nil && of.Name() != page {
			of = of.Parent()
		}
		return of != nil
	}
	here := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.VisitAll(func(f *pflag.Flag) {
		switch page := f.Annotations[helpPage]; {
		case len(page) == 0 || on(page[0]):
			here.AddFlag(f)
		case !slices.Contains(elsewhere, page[0]):
			elsewhere = append(elsewhere, page[0])
		}
	})
	return here.FlagUsages(), elsewhere
}
