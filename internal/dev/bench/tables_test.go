package bench

import (
	"strings"
	"testing"
)

// TestTables prints every part of a result, and marks what no cost can be.
func TestTables(t *testing.T) {
	r := Result{
		Runs: 5,
		Rows: []Row{
			{Name: "k", CPL: 3, What: "kprobe", ExitsPerHit: 2, NsPerHit: &Spread{90, 100, 110}, EngineNs: 300, RatioToFirst: 1, BaselineNs: 1.5},
			{Name: "o", CPL: 3, What: "optimized", ExitsPerHit: 1, NsPerHit: &Spread{-7, -3, 9}, EngineNs: 200, RatioToFirst: -0.03, BaselineNs: 1.5},
			{Name: "rb", CPL: 3, What: "boosted", Unavailable: "the same as r"},
		},
		InGuest: []InGuest{
			{Name: rowPlain, What: "no probe", CallNs: &Spread{1, 2, 3}},
			{Name: rowCount, What: "count", CallNs: &Spread{1, 1.9, 3}, OverNs: -0.1, Floor: rowFloorCount, FloorRatio: 0.9, Hits: 7},
			{Name: rowRecord, What: "record", Unavailable: "no jump"},
		},
		Attach:    Attach{Lines: 20, Sites: 100, InGuest: 90, Ns: &Spread{4e7, 5e7, 6e7}},
		Optimizer: Optimizer{CPUs: 8, Sites: 1000, Stops: 8, OneNs: &Spread{1e6, 2e6, 3e6}, BatchNs: &Spread{4e6, 5e6, 6e6}, LongestNs: 7e5},
		Snapshots: Snapshots{Memory: 64 << 20, FileBytes: 300 << 10, SaveNs: &Spread{1e6, 2e6, 3e6}, StopNs: &Spread{5e5, 6e5, 7e5}, RestoreNs: &Spread{4e6, 5e6, 6e6}, ResetNs: &Spread{1e6, 1.5e6, 2e6}},
		Profiling: Profiling{VCPUs: 2, Plain: &Spread{1, 2, 3}, Rates: []ProfilingAt{{99, &Spread{-1, 0.25, 2}, &Spread{1, 2.5, 3}, 100, 1}, {990, &Spread{1, 2, 3}, &Spread{4, 5, 6}, 1000, 0}}, SampleUs: &Spread{10, 20, 30}},
		Watching:  Watching{VCPUs: 2, Probes: []string{"p a", "r b"}, Plain: &Spread{1, 2, 3}, Every: []WatchingAt{{1000, &Spread{-1, 0.25, 2}, 3, 100}, {100, &Spread{1, 2, 3}, 30, 1000}}},
		Peers: []Peer{{Name: "uprobe", What: "uprobe", NsPerHit: &Spread{40, 50, 60}}, {Name: "gdb", What: "gdb", Unavailable: "no qemu"},
			{Name: "own", What: "own", NsPerHit: &Spread{20, 30, 40}, Packets: []Packet{{"g", 1500}, {"s", 2000}, {"c", 30000}}}},
	}
	text := r.Markdown()
	for _, want := range []string{
		"| k | 3 | kprobe | 2.00 | 100 (90 to 110) | 300 | 0.0 | 1.00 | 1.5 |\n",
		"| o | 3 | optimized | 1.00 | -3.0 (!) (-7.0 to 9.0) | 200 | 0.0 | -0.03 (!) | 1.5 |\n",
		"| rb | 3 | boosted | - |",
		"| plain: no probe | 2.0 (1.0 to 3.0) | - | - | - |",
		"| count: count | 1.9 (1.0 to 3.0) | -0.1 (!) | floor_count | 0.90 | 7 | 0 | - |\n",
		"| record | unavailable: no jump | - |",
		"A script of 20 lines at 100 functions, 90 of them in the guest, from its text to its jumps: 50 ms (40 to 60).\n",
		"one site 2000 us (1000 to 3000); 1000 sites in 8 stops 5000 us (4000 to 6000) in all; the longest single stop of the run 700 us.\n",
		"64 MiB of memory, files of 300 KiB: saved in 2.0 (1.0 to 3.0) ms, of which it is stopped for at most 0.6 (0.5 to 0.7) ms; restored in a new machine in 5.0 (4.0 to 6.0) ms; reset to where it was in 1.5 (1.0 to 2.0) ms.\n",
		"by the calls of a function that vCPU 0 makes in a second, on a processor that nothing else uses: at 99 Hz 0.25 % slower (-1.00 to 2.00), 2.50 % of a processor more (1.00 to 3.00), 100 samples, 1 lost; " +
			"at 990 Hz 2.00 % slower (1.00 to 3.00), 5.00 % of a processor more (4.00 to 6.00), 1000 samples, 0 lost. By the last, a sample takes 20.0 us of its vCPU's time (10.0 to 30.0).\n",
		"Top on a busy guest on 2 vCPUs with 2 probes, by the rounds of work that it does in a second of processor time: every 1000 ms 0.25 % slower (-1.00 to 2.00), 100 calls timed; every 100 ms 2.00 % slower (1.00 to 3.00), 1000 calls timed.\n",
		"| uprobe | uprobe | 50.0 (40.0 to 60.0) | 0.50 |\n",
		"| gdb | gdb | unavailable: no qemu | - |\n",
		"| own | own; us of packets, medians: g 1.5, s 2.0, c 30.0 | 30.0 (20.0 to 40.0) | 0.30 |\n",
		"\n`(!)`: no cost can be that",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	r.Rows, r.InGuest = r.Rows[:1], nil
	if text := r.Markdown(); strings.Contains(text, doubt) {
		t.Errorf("a mark without a reason:\n%s", text)
	}
}
