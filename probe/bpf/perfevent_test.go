package bpf

import (
	"errors"
	"strings"
	"testing"
)

func TestPerfEvents(t *testing.T) {
	for at, want := range map[string]string{
		"":                           "the section does not say which event it is for",
		"vfs_read":                   "the section does not say which event it is for",
		"software:cpu-clock:1000000": "guestprobe run -e 'software:cpu-clock:1000000'",
		"software:page-faults:1":     "software:page-faults: write tracepoint:exceptions:page_fault_user",
		"software:cs":                "software:cs: write tracepoint:sched:sched_switch",
		"software:alignment-faults":  "the processor reports them to the guest alone",
		"software:nothing":           `unknown software event "nothing"`,
		"hardware:cache-misses:1000": "hardware:cache-misses: hardware counters are not available",
	} {
		for _, key := range []string{"", "sample"} {
			sel := Selection{Kernel: appKernel, Section: "?perf_event", At: map[string]string{}}
			if at != "" {
				sel.At[key] = at
			}
			if _, err := LoadObject(readObject(t, "usdt.o"), sel); !errors.Is(err, ErrSection) || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", at, err, want)
			}
		}
	}
}
