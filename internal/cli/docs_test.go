package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/daemon"
)

var update = flag.Bool("update", false, "write generated documents anew")

// TestDocument keeps docs/cli.md equal to what the commands say about
// themselves. `go test ./internal/cli -run TestDocument -update` writes it.
func TestDocument(t *testing.T) {
	const path = "../../docs/cli.md"
	var b strings.Builder
	b.WriteString("# Command lines\n\nThis page is generated from the programs' own help texts; a test compares them.\n")
	for _, cmd := range []*cobra.Command{Root(), daemon.Command()} {
		cmd.InitDefaultCompletionCmd()
		document(&b, cmd)
	}
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(b.String(), string(got)); d != "" {
		t.Errorf("docs/cli.md is not what the commands say (-commands +file); run `go test ./internal/cli -run TestDocument -update`:\n%s", d)
	}
}

// document appends a command and those below it.
func document(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n", cmd.CommandPath(), cmd.Short)
	cmd.InitDefaultHelpFlag()
	if cmd.Runnable() {
		fmt.Fprintf(b, "\n    %s\n", cmd.UseLine())
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

// TestEveryCommandIsDescribed wants a one-line summary everywhere, and an
// example where a command takes definitions or names.
func TestEveryCommandIsDescribed(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" && !cmd.Hidden {
			t.Errorf("%s has no summary", cmd.CommandPath())
		}
		if strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: the summary ends in a full stop", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(Root())
	walk(daemon.Command())
}
