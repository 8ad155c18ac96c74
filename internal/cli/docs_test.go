package cli_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/cli"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/dev"
	"github.com/guestprobe/guestprobe/internal/server/fleetd"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
)

var update = flag.Bool("update", false, "write generated documents anew")

// pages are the documents generated from help texts.
var pages = map[string][]command.Program{
	"../../docs/cli.md":   {cli.Program(), daemon.Program(nil), fleetd.Program()},
	"../../docs/gpdev.md": {dev.Program()},
}

// TestDocument checks that the pages match the help texts.
// `make generate` writes them.
func TestDocument(t *testing.T) {
	for path, programs := range pages {
		var b strings.Builder
		b.WriteString("# Command lines\n\nThis page is generated from the programs' own help texts; a test compares them.\n")
		for _, p := range programs {
			cmd := p.Describe()
			cmd.InitDefaultCompletionCmd()
			document(&b, cmd)
		}
		if *update {
			if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(b.String(), string(got)); d != "" {
			t.Errorf("%s is not what the commands say (-commands +file); run `make generate`:\n%s", path, d)
		}
	}
}

// document appends a command and its subcommands.
func document(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n", cmd.CommandPath(), cmd.Short)
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if cmd.Runnable() {
		fmt.Fprintf(b, "\n    %s\n", command.UseLine(cmd))
	}
	block := func(title, text string) {
		if text = strings.Trim(text, "\n"); text == "" {
			return
		}
		fmt.Fprintf(b, "\n%s\n\n", title)
		for _, line := range strings.Split(text, "\n") {
			fmt.Fprintf(b, "%s\n", strings.TrimRight("    "+line, " "))
		}
	}
	if cmd.HasAvailableSubCommands() {
		block("Commands:", command.Subcommands(cmd))
	}
	// Long texts have their own line breaks and tables.
	if cmd.Long != "" && cmd.Long != cmd.Short {
		block("Description:", cmd.Long)
	}
	block("Examples:", cmd.Example)
	block("Flags:", cmd.NonInheritedFlags().FlagUsages())
	for _, sub := range cmd.Commands() {
		document(b, sub)
	}
}

// TestEveryCommandIsDescribed checks that each command has a one-line summary, and that the names of flags' values
// are not names of Go's types.
func TestEveryCommandIsDescribed(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" && !cmd.Hidden {
			t.Errorf("%s has no summary", cmd.CommandPath())
		}
		if strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: the summary ends in a full stop", cmd.CommandPath())
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if what, _ := pflag.UnquoteUsage(f); slices.Contains([]string{"string", "strings", "stringArray", "int", "uint", "float"}, what) {
				t.Errorf("%s --%s: %s is no word for what the flag takes", cmd.CommandPath(), f.Name, what)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	for _, programs := range pages {
		for _, p := range programs {
			walk(p.Describe())
		}
	}
}
