package probe

import "github.com/guestprobe/guestprobe/guest"

// Sample runs f on the current state of vCPU cpu, with Context.Addr its address and
// no probe. It is called on the vCPU's own thread, out of guest mode, with its
// registers in s, whose changes have no effect. In the middle of a hit it returns
// false, and does not run f.
func (e *Engine) Sample(cpu int, s State, f func(*Context)) bool {
	c := &e.cpus[cpu]
	if c.depth != 0 || c.step.active {
		return false
	}
	c.depth++
	regs := *s.Regs
	c.ctx.Addr, c.ctx.Regs, c.ctx.Root, c.ctx.CPL = c.Home(guest.GVA(s.Regs.RIP)), s.Regs, s.Root, s.CPL
	c.ctx.tally, c.ctx.Probe, c.ctx.Watched = &e.samples, nil, Watched{}
	c.runSample(f)
	*s.Regs = regs
	c.leave()
	return true
}

func (c *cpu) runSample(f func(*Context)) {
	defer c.contain(c.ctx.tally, "sample", c.depth)
	f(&c.ctx)
}
