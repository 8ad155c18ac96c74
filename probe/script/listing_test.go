package script

import (
	"fmt"
	"testing"
)

// TestList: the places that a pattern lists. Without a provider it is one for the names of the kernel's places.
func TestList(t *testing.T) {
	for pattern, want := range map[string]string{
		"*sched_switch*":         "kprobe:*sched_switch* fentry:*sched_switch* tracepoint:[sched:sched_switch] rawtracepoint:[sched_switch] software:[]",
		"sched_switch":           "kprobe:sched_switch fentry:sched_switch tracepoint:[sched:sched_switch] rawtracepoint:[sched_switch] software:[]",
		"*":                      "kprobe:* fentry:* tracepoint:[sched:sched_process_exec sched:sched_switch] rawtracepoint:[sched_switch sys_enter sys_exit] software:[cpu-clock cpu-clock:]",
		"cpu-clock":              "kprobe:cpu-clock fentry:cpu-clock tracepoint:[] rawtracepoint:[] software:[cpu-clock]",
		"tracepoint:*exec":       "tracepoint:[sched:sched_process_exec]",
		"tracepoint:sched_s*":    "tracepoint:[sched:sched_switch]",
		"tracepoint:sched:*exec": "tracepoint:[sched:sched_process_exec]",
		"tracepoint:sys:*exec":   "tracepoint:[]",
		"t:sched:sched_switch":   "tracepoint:[sched:sched_switch]",
		"rt:sys_*":               "rawtracepoint:[sys_enter sys_exit]",
		"k*probe:vfs_*":          "kprobe:vfs_* kretprobe:vfs_*",
		"kprobe:vmlinux:vfs_*":   "kprobe:vmlinux:vfs_*",
		"kfunc:vfs_*":            "fentry:vfs_*",
		"fr:vmlinux:vfs_*":       "fexit:vmlinux:vfs_*",
		"f*:vfs_*":               "fentry:vfs_* fexit:vfs_*",
		"profile:hz:99":          "profile:[hz:]",
	} {
		listed, err := List(pattern, target)
		got := ""
		for i, l := range listed {
			if i > 0 {
				got += " "
			}
			if l.Pattern == "" {
				got += fmt.Sprintf("%s:%v", l.Provider, l.Places)
			} else {
				got += l.Provider + ":" + l.Pattern
			}
		}
		if err != nil || got != want {
			t.Errorf("%s: %s, want %s; %v", pattern, got, want, err)
		}
	}
}
