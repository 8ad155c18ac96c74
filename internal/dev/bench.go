package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/dev/bench"
)

// formatMarkdown is the form of a result as part of a page.
const formatMarkdown = "markdown"

func benchSpec() command.Spec {
	var o bench.Options
	var from string
	var noPeers bool
	return command.Spec{
		Use:   "bench",
		Short: "Measure what a probe costs on this host",
		Long: `Measure what each kind of probe costs on this host, in guest kernel code (CPL0) and
in guest user code (CPL3): exits, host time and guest instructions per hit, beside
the unprobed call, and, in the same run, what you would use instead: a Linux
uprobe on the same function in a native process, and a breakpoint through QEMU's
gdb stub. It boots its own guest and needs no daemon. The kinds have the letters
that the kernel's kprobes documentation uses.

--format may also be markdown.`,
		Formats: []string{formatMarkdown},
		Flags: func(f *pflag.FlagSet) {
			f.IntVar(&o.Runs, "runs", bench.MinRuns, "take medians of this many `runs`")
			f.IntVar(&o.Calls, "calls", bench.DefaultCalls, "probed `calls` per measurement")
			f.BoolVar(&noPeers, "no-peers", false, "skip the comparisons with uprobes and gdb")
			f.StringVar(&from, "from", "", "print the result that an earlier run left in `FILE` with --format json, measuring nothing")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			o.Peers = !noPeers
			o.Daemon, _ = command.Find("guestprobed") // without one it is measured in this process, and said so
			o.Progress = func(what string) { r.Note("measuring %s", what) }
			res, err := benchResult(ctx, o, from)
			if err != nil {
				return err
			}
			if r.Format == formatMarkdown {
				return r.Print("%s", res.Markdown())
			}
			return r.Show(res, func() error { return printBench(r, res) })
		},
	}
}

func benchResult(ctx context.Context, o bench.Options, from string) (*bench.Result, error) {
	if from == "" {
		return bench.Run(ctx, o)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return nil, err
	}
	res := new(bench.Result)
	if err := json.Unmarshal(b, res); err != nil {
		return nil, fmt.Errorf("%s: not a result of 'gpdev bench --format json': %w", from, err)
	}
	return res, nil
}

// printBench prints the tables of the document as columns.
func printBench(r *command.Run, res *bench.Result) error {
	r.Note("%s", res.Header())
	for i, t := range res.Tables() {
		if i > 0 {
			if err := r.Print("\n"); err != nil {
				return err
			}
		}
		var heading []string
		for _, h := range t.Heading {
			heading = append(heading, strings.ToUpper(h))
		}
		if len(t.Rows) > 0 {
			if err := r.Table(heading, t.Rows); err != nil {
				return err
			}
		}
		for _, n := range t.Notes {
			if err := r.Print("%s\n", n); err != nil {
				return err
			}
		}
	}
	return nil
}
