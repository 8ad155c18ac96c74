package session

import (
	"syscall"

	"github.com/guestprobe/guestprobe/probe"
)

// stops has the hits of a that pass its filter stop the vCPU. Callers hold changes.
func (st *Session) stops(a *Probe, hit func(*probe.Context) bool) error {
	g, ok := st.guest.(stopper)
	switch {
	case !ok:
		return &Error{Code: CodeUnavailable, Errno: syscall.EOPNOTSUPP, Text: "the vCPUs of this guest cannot be stopped one by one"}
	case a.spec.Stop != StopVCPU && a.spec.Stop != StopAll:
		return badValue("stop %q: not %s or %s", a.spec.Stop, StopVCPU, StopAll)
	case a.spec.Mirror != "":
		return badValue("stop: the vCPU of a jprobe with a mirror goes on in that; attach a probe at the same place that stops")
	}
	all := a.spec.Stop == StopAll
	stop := func(c *probe.Context) {
		c.StopBy(a)
		if all {
			g.StopAll(c)
		}
	}
	passed := func(c *probe.Context) {
		if hit(c) {
			stop(c)
		}
	}
	switch p := a.probe.(type) {
	case *probe.Kretprobe:
		p.Return = passed
	case *probe.Jprobe:
		p.Entry = func(c *probe.Context, _ probe.Args) { stop(c) } // the filter has run
	default:
		if a.watch != nil {
			a.watch.Handler = passed
			break
		}
		a.kprobe.Pre = func(c *probe.Context) int { stop(c); return 0 }
	}
	return nil
}
