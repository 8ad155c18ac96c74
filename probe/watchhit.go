package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// watchTrap handles a trap of the debug registers, and reports whether it was
// one of ours.
func (c *cpu) watchTrap(s State, t Trap) bool {
	table := c.watched.Load()
	ours := false
	for i, wp := range table.dr {
		if wp == nil || t.DR6>>i&1 == 0 {
			continue
		}
		ours = true
		if wp.watch.Access == AccessExec {
			// A fault: the instruction is still to be executed.
			c.access(s, wp, guest.GVA(s.Regs.RIP), Watched{Watch: wp.watch, Exact: true})
			// It does not fire again at the instruction that the processor resumes at
			// (SDM Vol. 3, 18.3.1.1).
			s.Regs.RFLAGS |= x86.FlagRF
			continue
		}
		var b [8]byte
		now := wp.value.Load()
		if c.readWatched(s, wp, &b) {
			now = le.Uint64(b[:])
		}
		old := wp.value.Swap(now)
		at, exact := c.accessor(s)
		c.access(s, wp, at, Watched{Watch: wp.watch, Write: wp.watch.Access == AccessWrite || old != now, Old: old, New: now, Exact: exact})
	}
	return ours
}

// readWatched reads the bytes of wp into b.
func (c *cpu) readWatched(s State, wp *watchpoint, b *[8]byte) bool {
	clear(c.watch[:])
	if c.target.ReadMemory(s.Root, wp.addr, c.watch[:wp.n]) != nil {
		return false
	}
	*b = c.watch
	return true
}

// Accessed tells the engine of an access to a page that it asked SetWatches for. It
// is called on the vCPU's own thread, with its registers in s: after the instruction
// for a write, at it for a read.
func (e *Engine) Accessed(cpu int, s State, a PageAccess) (stop bool) {
	c := &e.cpus[cpu]
	for _, wp := range c.watched.Load().pages {
		if wp.pa >= a.PA+guest.GPA(a.Len) || a.PA >= wp.pa+guest.GPA(wp.n) {
			continue
		}
		// The watched bytes, with the accessed ones replaced.
		old := wp.value.Load()
		now := old
		for i := range a.Len {
			if o := a.PA + guest.GPA(i) - wp.pa; o < guest.GPA(wp.n) {
				old = old&^(0xff<<(8*o)) | uint64(a.Old[i])<<(8*o)
				now = now&^(0xff<<(8*o)) | uint64(a.New[i])<<(8*o)
			}
		}
		wp.value.Store(now)
		if a.Write && wp.watch.Access&AccessWrite == 0 || !a.Write && wp.watch.Access&AccessRead == 0 {
			continue
		}
		at, exact := guest.GVA(s.Regs.RIP), true
		if a.Write {
			at, exact = c.accessor(s)
		}
		c.access(s, wp, at, Watched{Watch: wp.watch, Write: a.Write, Old: old, New: now, Exact: exact})
	}
	return c.addStop(Verdict{}).Stop
}

// access counts an access to wp by the instruction at at, and runs the handler.
func (c *cpu) access(s State, wp *watchpoint, at guest.GVA, w Watched) {
	k := &wp.cells[c.id]
	if c.depth != 0 {
		count(&k.missed)
		return
	}
	count(&k.handled)
	if wp.watch.Handler == nil {
		return
	}
	c.depth++
	regs := *s.Regs
	c.ctx.Addr, c.ctx.Regs, c.ctx.Root, c.ctx.CPL = at, s.Regs, s.Root, s.CPL
	c.ctx.tally, c.ctx.Probe, c.ctx.Watched = wp.tally, nil, w
	c.runWatch(wp)
	*s.Regs = regs
	c.leave()
}

// handleExecute is the pre handler of the breakpoint of an execute watch.
func (wp *watchpoint) handleExecute(c *Context) int {
	if wp.watch.Handler != nil {
		regs := *c.Regs
		c.Regs.RIP = uint64(wp.addr)
		c.Watched = Watched{Watch: wp.watch, Exact: true}
		wp.watch.Handler(c)
		*c.Regs = regs
	}
	return 0
}

func (c *cpu) runWatch(wp *watchpoint) {
	depth := c.depth
	defer c.contain(wp.tally, "watch", depth)
	wp.watch.Handler(&c.ctx)
}

// accessor returns the instruction that has just accessed memory: the one that ends
// at RIP, or a repeated one at RIP that is not done. exact is false, and the address
// is RIP, if the vCPU got there in another way.
func (c *cpu) accessor(s State) (at guest.GVA, exact bool) {
	rip := guest.GVA(s.Regs.RIP)
	if r := c.code.ResidentAt(rip); r != nil {
		return r.accessor(c, s)
	}
	if c.repeats(s, rip) {
		return rip, true
	}
	syms := c.target.Symbols()
	sym, ok := syms.Find(rip - 1)
	if !ok || !syms.IsText(rip-1) {
		return rip, false
	}
	for a := sym.Addr; a < rip; {
		in, err := x86.Decode(syms.Code(a, x86.MaxLen))
		if err != nil {
			return rip, false
		}
		next := a + guest.GVA(in.Len)
		if next == rip {
			if !in.Falls() || !accesses(&in, a, s) {
				return rip, false
			}
			return a, true
		}
		a = next
	}
	return rip, false
}

// repeats reports whether the instruction at a is a repeated one that has accessed
// memory and is not done.
func (c *cpu) repeats(s State, a guest.GVA) bool {
	in, err := x86.Decode(c.target.Symbols().Code(a, x86.MaxLen))
	return err == nil && in.Prefix&(x86.PrefixRep|x86.PrefixRepNE) != 0 && s.Regs.RCX != 0 && accesses(&in, a, s)
}

// accesses reports whether an instruction transfers memory at all.
func accesses(in *x86.Inst, at guest.GVA, s State) bool {
	var room [3]x86.Touch
	t, ok := in.AppendTouches(room[:0], uint64(at), s.Regs)
	return len(t) != 0 || !ok
}
