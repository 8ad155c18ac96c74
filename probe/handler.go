package probe

import (
	"github.com/guestprobe/guestprobe/guest"
)

// enter begins a round of handlers.
func (c *cpu) enter(s State) {
	c.depth++
	c.ctx.Regs = s.Regs
	c.ctx.Root = s.Root
	c.ctx.CPL = s.CPL
}

// setProbe makes r the probe whose handler runs next.
func (c *cpu) setProbe(r *registration) {
	c.ctx.tally, c.ctx.Probe, c.ctx.Addr = &r.tally, r.probe, r.reportedAddr()
}

// leave ends the round.
func (c *cpu) leave() { c.depth-- }

// The run functions call one handler each and contain its panic: the result is
// then the zero value. The depth of guest calls that the handler was in is
// theirs to restore, because a panic skips it.

func (c *cpu) runFilter(r *registration) (pass bool) {
	depth := c.depth
	defer c.contain(&r.tally, "filter", depth)
	return r.filter(&c.ctx)
}

func (c *cpu) runPre(r *registration) (taken int) {
	depth := c.depth
	defer c.contain(&r.tally, "pre", depth)
	return r.pre(&c.ctx)
}

func (c *cpu) runPost(r *registration) {
	depth := c.depth
	defer c.contain(&r.tally, "post", depth)
	r.post(&c.ctx)
}

func (c *cpu) runFault(r *registration, t Trap) (fixed bool) {
	depth := c.depth
	defer c.contain(&r.tally, "fault", depth)
	return r.fault(&c.ctx, t)
}

// badAccess counts a failed access of a handler to guest memory.
func (c *Context) badAccess(addr guest.GVA, err error) {
	count32(&c.tally.cells[c.CPU].accesses)
	if c.tally.first(loggedAccess) {
		c.cpu.log.Warn("probe handler used a bad guest address; further ones of this probe are only counted",
			"probe", c.tally.name, "at", c.Addr, "cpu", c.CPU, "addr", addr, "err", err)
	}
}
