package probe

import (
	"fmt"
	"runtime/debug"

	"github.com/guestprobe/guestprobe/guest"
)

// enter begins a stage in which handlers run for st.
func (c *cpu) enter(e *Engine, s State, st *site) {
	c.depth++
	c.ctx.Addr = st.addr
	c.ctx.Regs = s.Regs
	c.ctx.Root = s.Root
	c.ctx.CPL = s.CPL
}

// leave ends the stage.
func (c *cpu) leave() { c.depth-- }

// The run functions call one handler each and contain its panic: the result is
// then the zero value. The depth of guest calls that the handler was in is
// theirs to restore, because a panic skips it.

func (e *Engine) runFilter(c *cpu, r *registration) (pass bool) {
	depth := c.depth
	defer e.contain(c, r, "filter", depth)
	return r.probe.Filter(&c.ctx)
}

func (e *Engine) runPre(c *cpu, r *registration) (taken int) {
	depth := c.depth
	defer e.contain(c, r, "pre", depth)
	return r.probe.Pre(&c.ctx)
}

func (e *Engine) runPost(c *cpu, r *registration) {
	depth := c.depth
	defer e.contain(c, r, "post", depth)
	r.probe.Post(&c.ctx)
}

func (e *Engine) runFault(c *cpu, r *registration, t Trap) (fixed bool) {
	depth := c.depth
	defer e.contain(c, r, "fault", depth)
	return r.probe.Fault(&c.ctx, t)
}

// contain is deferred around every handler.
func (e *Engine) contain(c *cpu, r *registration, stage string, depth int) {
	v := recover()
	if v == nil {
		return
	}
	c.depth = depth
	count32(&r.cells[c.id].panics)
	if r.first(loggedPanic) {
		e.log.Error("probe handler panicked; further panics of this probe are only counted",
			"probe", r.probe.Name, "addr", r.site.addr, "cpu", c.id, "handler", stage,
			"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
}

// badAccess counts a guest memory access of a handler that failed.
func (e *Engine) badAccess(c *Context, addr guest.GVA, err error) {
	count32(&c.reg.cells[c.CPU].accesses)
	if c.reg.first(loggedAccess) {
		e.log.Warn("probe handler used a bad guest address; further ones of this probe are only counted",
			"probe", c.reg.probe.Name, "at", c.reg.site.addr, "cpu", c.CPU, "addr", addr, "err", err)
	}
}
