package session

import (
	"syscall"

	"github.com/guestprobe/guestprobe/probe"
)

// setStops returns the function that stops the vCPU at a hit of a, as requested.
// Callers hold changes.
func (at *attacher) setStops(a *Probe) (stop func(*probe.Context), err error) {
	g, ok := at.guest.(stopper)
	switch {
	case !ok:
		return nil, &Error{Code: CodeUnavailable, Errno: syscall.EOPNOTSUPP, Text: "the vCPUs of this guest cannot be stopped one by one"}
	case a.spec.Stop != StopVCPU && a.spec.Stop != StopAll:
		return nil, badValue("stop %q: not %s or %s", a.spec.Stop, StopVCPU, StopAll)
	case a.spec.Mirror != "":
		return nil, badValue("stop: the vCPU of a jprobe with a mirror continues in the mirror; attach a probe at the same place that stops")
	}
	all := a.spec.Stop == StopAll
	return func(c *probe.Context) {
		c.StopBy(a)
		if all {
			g.StopAll(c)
		}
	}, nil
}

// ifPassed runs do for the hits that pass a filter.
func ifPassed(hit func(*probe.Context) bool, do func(*probe.Context)) func(*probe.Context) {
	return func(c *probe.Context) {
		if hit(c) {
			do(c)
		}
	}
}
