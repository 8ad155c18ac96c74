package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Manuals returns the manual pages of the program and its commands, by name without the section, which
// is 1. The pages have no date, so their text does not depend on the day of the build.
func (p Program) Manuals() map[string]string {
	pages := map[string]string{}
	var add func(c *cobra.Command)
	add = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		c.InitDefaultHelpFlag()
		pages[manualName(c)] = manual(c)
		for _, sub := range c.Commands() {
			add(sub)
		}
	}
	add(p.Describe())
	return pages
}

// manualName returns the name of a command's page.
func manualName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manual returns a command's page. It keeps the line breaks and tables of help texts.
func manual(c *cobra.Command) string {
	var b strings.Builder
	name := manualName(c)
	fmt.Fprintf(&b, ".TH %q 1 \"\" guestprobe \"guestprobe\"\n", strings.ToUpper(name))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(c.Short))
	section := func(title, text string) {
		if text = strings.Trim(text, "\n"); text != "" {
			fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n.fi\n", title, roff(text))
		}
	}
	if c.Runnable() {
		section("SYNOPSIS", UseLine(c))
	}
	section("DESCRIPTION", c.Long)
	section("EXAMPLES", c.Example)
	section("OPTIONS", c.NonInheritedFlags().FlagUsages())
	section("OPTIONS OF ALL COMMANDS", c.InheritedFlags().FlagUsages())
	var see []string
	if c.HasParent() {
		see = append(see, manualName(c.Parent())+"(1)")
	}
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			see = append(see, manualName(sub)+"(1)")
		}
	}
	if len(see) > 0 {
		fmt.Fprintf(&b, ".SH \"SEE ALSO\"\n%s\n", roff(strings.Join(see, ", ")))
	}
	return b.String()
}

// roff escapes text for troff, so that nothing in it is a request or an escape.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "~", `\(ti`, "^", `\(ha`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
