package script

import (
	"strings"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// softwareCount is the default interval of software:cpu-clock in nanoseconds, as in
// bpftrace.
const softwareCount = 1e6

// software returns the nanoseconds between two runs of software:TARGET, or the reason
// for rejecting it and a hint.
func software(target string) (ns uint64, wrong, hint string) {
	event, count, given := strings.Cut(target, ":")
	instead, known := bpf.SoftwareEvent(event)
	switch {
	case !known:
		if m := nearestName(event, bpf.SoftwareEvents()); m != "" {
			hint = "did you mean " + m + "?"
		}
		return 0, "unknown software event " + event, hint
	case instead != "":
		return 0, "software:" + event + " is not supported", instead
	case !given:
		return softwareCount, "", ""
	}
	n, ok := parseNumber(count)
	if !ok || n < minInterval {
		return 0, "software:" + event + ": want a number of nanoseconds, 1000 or more", "write software:cpu-clock:10ms"
	}
	return n, "", ""
}
