package probe

import (
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
)

// On a host that delivers no breakpoint, an int3 would crash the guest. Such a target
// supports only kprobes by jumps: the site gets its jump in the stop that arms it.
// The jump leads to handlers that run in the guest or, where out to a port is
// reported, on the host. The engine cannot move a context that is past the first byte
// of the jump, nor fix up a fault in the detour. So the first instruction must be
// long enough for the jump, which then overlaps nothing else, and the code that runs
// in the guest must not fault.

// jumpsOnly reports whether a probe on st requires a jump.
func (o *optimizer) jumpsOnly(st *site) bool { return o.can[guest.Level(st.user)].NoBreakpoint != "" }

// refuseJump says why a host without breakpoints does not support a probe on st.
func (o *optimizer) refuseJump(st *site, why string) *Error {
	cpl := 0
	if st.user {
		cpl = 3
	}
	return newError(CodeHostCannot, fmt.Sprintf("this host delivers no breakpoints at CPL%d, and the probe cannot do without", cpl),
		fmt.Sprintf("%s; %s", why, o.can[guest.Level(st.user)].NoBreakpoint))
}

// admit decides whether r can be on st, which requires a jump.
func (o *optimizer) admit(r *registration, st *site) *Error {
	can := o.can[guest.Level(st.user)]
	why := ""
	switch {
	case !r.is(byJump):
		why = "only a kprobe is served by a jump"
	case r.watched():
		why = "post and fault handlers run after a breakpoint"
	case r.space != 0:
		why = "a jump is the same in all address spaces"
	case can.DetourPort != 0:
	case r.stage == nil:
		why = "its handlers must run in the guest"
	case can.NoStage != "":
		why = can.NoStage
	case r.stage.Walk != 0:
		why = "its program takes the stack, which only the host finds if a walk in the guest stops, and nothing sees that"
	case len(r.stage.Fixups) != 0:
		why = "its program reads memory, and nothing sees a fault of that"
	}
	if why != "" {
		return o.refuseJump(st, why)
	}
	if no := o.findRegion(st); no != nil {
		return o.refuseJump(st, fmt.Sprintf("it has no jump: %s (%s)", no.Reason, no.Detail))
	}
	if len(st.region.Boundaries) != 0 {
		return o.refuseJump(st, fmt.Sprintf("its instruction has %d bytes, and a jump displaces the next one, too", len(st.bytes())))
	}
	return nil
}

// replaceJump gives st, if it is armed, the jump to the handlers of its current
// probes. The world is stopped.
func (o *optimizer) replaceJump(w World, st *site) *Error {
	if !st.armed.Load() {
		o.setBlocked(st, notDisarmed)
		return nil
	}
	stages := o.stages(st)
	if d := st.detour(); d != nil && slices.Equal(d.run, stages) {
		return nil
	}
	if stages == nil && o.can[guest.Level(st.user)].DetourPort == 0 {
		return o.refuseJump(st, "not all handlers there run in the guest")
	}
	p := o.planJump(st)
	switch {
	case p.no != nil:
		return o.refuseJump(st, fmt.Sprintf("it has no jump: %s (%s)", p.no.Reason, p.no.Detail))
	case p.d == nil:
		return o.refuseJump(st, fmt.Sprintf("it has no jump: %s", o.obstacle(st)))
	}
	var lost []error
	if o.unoptimize(w, st, &lost); len(lost) != 0 {
		return textError(st, lost[0])
	}
	if no := o.optimize(w, st, p.d); no != nil {
		return o.refuseJump(st, fmt.Sprintf("it has no jump: %s (%s)", no.Reason, no.Detail))
	}
	return nil
}
