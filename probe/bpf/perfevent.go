package bpf

import (
	"fmt"
	"strings"
)

// softwareEvents maps perf's software events (perf_event_open(2)) to advice. The advice is "" for events that can be measured from outside of the guest.
var softwareEvents = map[string]string{
	"cpu-clock": "", "cpu": "",
	"task-clock":       "write software:cpu-clock, which counts on each vCPU that runs",
	"page-faults":      "write tracepoint:exceptions:page_fault_user, which runs at each fault of user code",
	"faults":           "write tracepoint:exceptions:page_fault_user, which runs at each fault of user code",
	"minor-faults":     "write tracepoint:exceptions:page_fault_user, which runs at each fault of user code",
	"major-faults":     "write tracepoint:exceptions:page_fault_user, which runs at each fault of user code",
	"context-switches": "write tracepoint:sched:sched_switch", "cs": "write tracepoint:sched:sched_switch",
	"cpu-migrations":   "write tracepoint:sched:sched_migrate_task",
	"alignment-faults": "the processor reports them to the guest alone", "emulation-faults": "the guest's kernel alone counts them",
	"dummy": "it never occurs", "bpf-output": "it is written by programs",
}

// NoCounters is the reason why hardware events are not supported.
const NoCounters = "hardware counters are not available"

// SoftwareEvent returns advice for one of perf's software events that cannot be measured from outside of the guest. It returns "" for cpu-clock,
// which can be. known is false for other names.
func SoftwareEvent(name string) (instead string, known bool) {
	instead, known = softwareEvents[name]
	return instead, known
}

// SoftwareEvents returns the names of perf's software events.
func SoftwareEvents() []string { return sortedKeys(softwareEvents) }

// perfEventError returns the error for a program in a section perf_event. at is the event chosen for the program, in the form of scripts, or "".
func perfEventError(at string) error {
	const section = "perf_event/ is %w: "
	provider, event, _ := strings.Cut(at, ":")
	name, _, _ := strings.Cut(event, ":")
	switch instead, known := SoftwareEvent(name); {
	case provider == "software" && known && instead == "":
		return fmt.Errorf(section+"scripts run at times (guestprobe run -e 'software:%s'), programs do not", ErrSection, event)
	case provider == "software" && known:
		return fmt.Errorf(section+"software:%s: %s", ErrSection, name, instead)
	case provider == "software":
		return fmt.Errorf(section+"unknown software event %q: there are %q", ErrSection, name, SoftwareEvents())
	case provider == "hardware":
		return fmt.Errorf(section+"hardware:%s: %s", ErrSection, name, NoCounters)
	}
	return fmt.Errorf(section+"the section does not say which event it is for. For cpu-clock write a script (guestprobe run -e 'software:cpu-clock'), for page-faults name the section tracepoint/exceptions/page_fault_user, "+
		"for context-switches tracepoint/sched/sched_switch; hardware events cannot be had: %s", ErrSection, NoCounters)
}
