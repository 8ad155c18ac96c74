package metrics

import "github.com/prometheus/client_golang/prometheus"

// desc describes a metric. Its name follows guestprobe_.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("guestprobe_"+name, help, labels, nil)
}

// The metrics.
var (
	buildInfo = desc("build_info", "The daemon's version.", "version")

	guestState  = desc("guest_state", "1 for the state that the guest is in.", "state")
	guestBoots  = desc("guest_boots_total", "Boots of the guest: 1, and one more for each reset.")
	guestMemory = desc("guest_memory_bytes", "RAM of the guest.")
	guestVCPUs  = desc("guest_vcpus", "vCPUs of the guest.")
	checks      = desc("guest_failed_checks_total", "Wrong results that the guest's self-check has reported.")
	exits       = desc("vm_exits_total", "VM exits, by vCPU and reason.", "vcpu", "reason")
	trapExits   = desc("vcpu_trap_exits_total", "VM exits that probes have caused.", "vcpu")
	vcpuHits    = desc("vcpu_hits_total", "Breakpoints that belonged to probes.", "vcpu")
	foreign     = desc("vcpu_foreign_breakpoints_total", "Breakpoints that were the guest's own.", "vcpu")
	inPlace     = desc("vcpu_in_place_total", "Instructions stepped with the world stopped.", "vcpu")
	ticks       = desc("vcpu_ticks_total", "Timer interrupts given to the guest.", "vcpu")

	armed        = desc("probes_armed", "0 while 'guestprobe disarm' has all probes out.")
	attached     = desc("probes", "Attached probes, by the letter of their kind.", "kind")
	probeEnabled = desc("probe_enabled", "1 for a probe that is enabled.", "probe")
	hits         = desc("probe_hits_total", "Arrivals at a probe: handled, filtered and missed.", "probe")
	handled      = desc("probe_handled_total", "Hits whose handlers have run.", "probe")
	filtered     = desc("probe_filtered_total", "Hits that the filter has rejected.", "probe")
	missed       = desc("probe_missed_total", "Hits that could not be handled.", "probe")
	faults       = desc("probe_faults_total", "Faults of the probed instruction.", "probe")
	badAccesses  = desc("probe_bad_accesses_total", "Guest memory that the handlers could not access.", "probe")
	probeEvents  = desc("probe_events_total", "Records made, whether or not anyone read them.", "probe")
	probeLost    = desc("probe_events_lost_total", "Records that found no room in a vCPU's ring.", "probe")
	returns      = desc("probe_returns_total", "Calls that a return probe has seen return.", "probe")
	abandoned    = desc("probe_abandoned_total", "Calls of a return probe's function that were left in another way.", "probe")
	inUse        = desc("probe_calls_in_progress", "Calls that a return probe follows now.", "probe")

	probeDuration = desc("probe_duration_seconds", "Time from a function's entry to its return, traps included.", "probe")
	durationsLost = desc("probe_durations_lost_total", "Returns whose durations are not known: records that found no room, or make no sense.", "probe")

	eventsStored    = desc("events_total", "Events that handlers have made and that found room.")
	eventsLost      = desc("events_lost_total", "Events that found no room in a vCPU's ring.")
	streams         = desc("streams", "Open streams of events and of the console.")
	scriptValue     = desc("script_map", "Value of a script's map, by key; of avg() the mean.", "script", "map", "key")
	scriptStats     = desc("script_map_stats", "Count and sum of a script's stats(), by key.", "script", "map", "key")
	scriptHistogram = desc("script_map_distribution", "Histogram of a script's map, by key.", "script", "map", "key")
	scriptLeftOut   = desc("script_map_keys_left_out", "Elements of a script's map that are no metrics: beyond the limit, no numbers, or with a key that is another's label.", "script", "map")
	scriptRunning   = desc("script_running", "1 for a script that runs, 0 for one that has ended.", "script")
	scriptLost      = desc("script_records_lost_total", "Records of a script that found no room.", "script")

	logLost = desc("log_lines_lost_total", "Lines of the log that could not be written.")
)
