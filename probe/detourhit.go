package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// trap implements resident: at the exit, which is a hit of the site that had the jump
// last, if that is still probed. The registers are those that an int3 would have
// shown.
func (d *detour) trap(c *cpu, s State, kind TrapKind) (hit *site, from *detour, ok bool) {
	off := guest.GVA(s.Regs.RIP) - d.exit
	if d.exit == 0 || off != 0 && (kind != TrapDetour || off > outLen) {
		return nil, nil, false
	}
	return d.siteOfHit(c, s), d, true
}

// siteOfHit returns the site of a hit that the host must handle, and puts its
// registers into s. It returns nil if there is nothing to handle, and the guest
// resumes.
func (d *detour) siteOfHit(c *cpu, s State) *site {
	st := d.on.Load()
	if st == nil || !st.armed.Load() {
		// The probe was removed after the guest had passed the jump.
		count(&c.counts.stale)
		d.resumeAtCopies(c, s)
		return nil
	}
	count(&c.counts.detours)
	s.Regs.RIP = uint64(st.addr)
	return st
}

// resumeAtCopies lets the guest continue with the copies of the displaced instructions.
func (d *detour) resumeAtCopies(c *cpu, s State) Verdict {
	c.repeating = repeating{d.copies[0], s.Regs.RCX}
	s.Regs.RIP = uint64(d.copies[0])
	return Verdict{Action: Resume}
}

// repeated reports whether a trap of TF at the first copy, of a string instruction,
// follows one of its iterations, and not the code before the copy.
func (d *detour) repeated(c *cpu, s State) bool {
	rip := guest.GVA(s.Regs.RIP)
	if rip != d.copies[0] || !d.region.Insts[0].Repeats() {
		return false
	}
	was := c.repeating
	c.repeating = repeating{rip, s.Regs.RCX}
	return was.at == rip && was.cx != s.Regs.RCX
}

// resumePunned moves a vCPU that has hit an int3 inside a jump to the copy of the
// instruction that used to begin there, and reports whether there was one. If the
// guest has written over the jump, the vCPU comes back until the engine has noticed.
func (c *cpu) resumePunned(s State, rip guest.GVA) bool {
	for k := guest.GVA(1); k < x86.JmpLen; k++ {
		st := c.sites.Find(rip - k)
		if st == nil {
			continue
		}
		d := st.detour()
		if d == nil {
			continue
		}
		jump, now := d.jump(), c.word[:x86.JmpLen]
		if c.target.ReadMemory(s.Root, st.addr, now) == nil && [x86.JmpLen]byte(now) != jump {
			if !c.alarm.Swap(true) {
				go c.onAlarm()
			}
			return jump[k] == x86.Int3 // otherwise it is the guest's
		}
		if a, ok := d.copyOf(rip); ok {
			count(&c.counts.punned)
			s.Regs.RIP = uint64(a)
			return true
		}
	}
	return false
}

// fault implements resident: it handles the fault of a stage, which resumes at its
// fixup or whose hit the host handles; or that of a displaced instruction, which is
// the fault of the original.
func (d *detour) fault(c *cpu, s State, t Trap) Verdict {
	rip := guest.GVA(s.Regs.RIP)
	if t.Vector == x86.VectorPF || t.Vector == x86.VectorGP || t.Vector == x86.VectorSS {
		if to, ok := d.fixup(rip); ok {
			s.Regs.RIP = uint64(to)
			return Verdict{Action: Resume}
		}
	}
	if t.Vector == x86.VectorDB && !d.instCompleted(rip) && !d.repeated(c, s) {
		// The guest single-steps, and has not yet executed the next instruction of its
		// own.
		return Verdict{Action: Resume}
	}
	if rip != d.copies[0] {
		c.repeating = repeating{}
	}
	for _, x := range d.touches {
		if rip == d.start+guest.GVA(x.off) {
			s.Regs.RSP += uint64(x.below)
			if st := d.siteOfHit(c, s); st != nil {
				return c.handleArrival(s, st, d)
			}
			return Verdict{Action: Resume}
		}
	}
	if rip >= d.start && rip < d.copies[0] {
		// The guest has unmapped a page of its stack while a stage runs on it. Once
		// the page is back, the guest resumes here.
		return Verdict{Action: NotOurs}
	}
	count(&c.counts.faults)
	s.Regs.RIP = uint64(d.home(rip))
	return Verdict{Action: NotOurs}
}

// fixup implements resident.
func (d *detour) fixup(rip guest.GVA) (to guest.GVA, ok bool) { return fixupOf(d.placed, rip) }

// loads implements resident.
func (d *detour) loads() bool { return anyFixup(d.placed) }

// accessor implements resident. The copies follow one another; the code before them
// accesses no guest data.
func (d *detour) accessor(c *cpu, s State) (guest.GVA, bool) {
	rip := guest.GVA(s.Regs.RIP)
	home := d.home(rip)
	switch {
	case c.repeats(s, home):
		return home, true
	case rip > d.copies[0] && rip <= d.back:
		return d.home(rip - 1), true
	}
	return home, false
}
