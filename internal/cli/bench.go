package cli

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/bench"
)

func (a *app) benchCmd() *cobra.Command {
	var o bench.Options
	var from string
	var noPeers bool
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what a probe costs on this host",
		Long: `Measure what each kind of probe costs on this host, in guest kernel code (CPL0) and
in guest user code (CPL3): exits, host time and guest instructions per hit, beside
the unprobed call, and, in the same run, what you would use instead: a Linux
uprobe on the same function in a native process, and a breakpoint through QEMU's
gdb stub. It boots its own guest and needs no daemon. The letters of the kinds are
those of the kernel's kprobes documentation.

--format may also be markdown.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.wantFormat("markdown"); err != nil {
				return err
			}
			o.Peers = !noPeers
			o.Progress = func(what string) { a.note("measuring %s", what) }
			res, err := benchResult(cmd, o, from)
			if err != nil {
				return err
			}
			switch a.format {
			case "json":
				return a.printJSON(res)
			case "markdown":
				_, err := fmt.Fprint(a.env.Stdout, res.Markdown())
				return err
			}
			return a.printBench(res)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Runs, "runs", bench.MinRuns, "take medians of this many `runs`")
	f.IntVar(&o.Calls, "calls", bench.DefaultCalls, "probed `calls` per measurement")
	f.BoolVar(&noPeers, "no-peers", false, "leave out what is not guestprobe")
	f.StringVar(&from, "from", "", "print the result that an earlier run left in `FILE` with --format json, measuring nothing")
	return cmd
}

func benchResult(cmd *cobra.Command, o bench.Options, from string) (*bench.Result, error) {
	if from == "" {
		return bench.Run(cmd.Context(), o)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return nil, err
	}
	res := new(bench.Result)
	if err := json.Unmarshal(b, res); err != nil {
		return nil, fmt.Errorf("%s: not a result of 'guestprobe bench --format json': %w", from, err)
	}
	return res, nil
}

func (a *app) printBench(res *bench.Result) error {
	h := res.Host
	a.note("%s, %d cores, Linux %s; %s; %s", h.CPU, h.Cores, h.Kernel, h.KVM, h.Date)
	var rows [][]string
	for _, r := range res.Rows {
		if r.NsPerHit == nil {
			rows = append(rows, []string{r.Name, fmt.Sprint(r.CPL), "-", "-", "-", "-", "-", r.What + ": " + r.Unavailable})
			continue
		}
		rows = append(rows, []string{
			r.Name, fmt.Sprint(r.CPL), fmt.Sprintf("%.2f", r.ExitsPerHit), r.NsPerHit.String(), fmt.Sprintf("%.0f", r.EngineNs),
			fmt.Sprintf("%.1f", r.InsnsPerHit), fmt.Sprintf("%.1f", r.BaselineNs), r.What,
		})
	}
	for _, p := range res.Peers {
		if p.NsPerHit == nil {
			rows = append(rows, []string{p.Name, "-", "-", "-", "-", "-", "-", p.What + ": " + p.Unavailable})
			continue
		}
		rows = append(rows, []string{p.Name, "-", "-", p.NsPerHit.String(), "-", "-", baseline(p.BaselineNs), p.What})
	}
	return a.table([]string{"PROBE", "CPL", "EXITS/HIT", "NS/HIT", "HOST NS", "INSNS", "UNPROBED NS", "WHAT"}, rows)
}

// baseline is "-" for a peer that has no unprobed call to compare with.
func baseline(ns float64) string {
	if ns == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", ns)
}
