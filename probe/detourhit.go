package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// outLen is the length of out %al, $imm8 (SDM Vol. 2, OUT).
const outLen = 2

// trap implements resident: at the exit.
func (d *detour) trap(e *Engine, c *cpu, s State, kind TrapKind) (Verdict, bool) {
	off := guest.GVA(s.Regs.RIP) - d.exit
	if d.exit == 0 || off != 0 && (kind != TrapDetour || off > outLen) {
		return Verdict{}, false
	}
	return e.arriveFrom(c, s, d), true
}

// arriveFrom handles the arrival at the exit of d: a hit of its site, if that is
// still probed. The registers are those that an int3 would have shown.
func (e *Engine) arriveFrom(c *cpu, s State, d *detour) Verdict {
	st := e.table.Load().find(d.site())
	if st == nil || !st.armed.Load() || st.user != d.user {
		// The probe went away after the guest had passed the jump.
		count(&c.counts.stale)
		return e.leaveBy(s, d)
	}
	count(&c.counts.detours)
	s.Regs.RIP = uint64(d.site())
	return e.arrive(c, s, st, d)
}

// leaveBy lets the guest go on with the copies of the displaced instructions.
func (e *Engine) leaveBy(s State, d *detour) Verdict {
	s.Regs.RIP = uint64(d.copies[0])
	return Verdict{Action: Resume}
}

// punned moves a vCPU that has come to an int3 inside a jump to the copy of the
// instruction that used to begin there, and reports whether there was one.
func (e *Engine) punned(c *cpu, s State, rip guest.GVA) bool {
	t := e.table.Load()
	for k := guest.GVA(1); k < insn.JmpLen; k++ {
		st := t.find(rip - k)
		if st == nil {
			continue
		}
		if d := st.jump.Load(); d != nil {
			if a, ok := d.copyOf(rip); ok {
				count(&c.counts.punned)
				s.Regs.RIP = uint64(a)
				return true
			}
		}
	}
	return false
}

// fault implements resident: of a stage, which goes on at its fixup,
// or of a displaced instruction, which is that of the original.
func (d *detour) fault(e *Engine, c *cpu, s State, t Trap) Verdict {
	rip := guest.GVA(s.Regs.RIP)
	if t.Vector == insn.VectorPF || t.Vector == insn.VectorGP || t.Vector == insn.VectorSS {
		for _, p := range d.placed {
			for _, f := range p.fixups {
				if rip == p.at+guest.GVA(f.Fault) {
					s.Regs.RIP = uint64(p.at) + uint64(f.Resume)
					return Verdict{Action: Resume}
				}
			}
		}
	}
	if t.Vector == insn.VectorDB && !d.whole(rip) {
		// The guest single-steps, and has not yet executed the next instruction of its
		// own.
		return Verdict{Action: Resume}
	}
	count(&c.counts.faults)
	s.Regs.RIP = uint64(d.home(e, rip))
	return Verdict{Action: NotOurs}
}

// accessor implements resident. The copies stand one behind the other; what is
// before them accesses nothing of the guest's.
func (d *detour) accessor(e *Engine, s State) (guest.GVA, bool) {
	rip := guest.GVA(s.Regs.RIP)
	home := d.home(e, rip)
	switch {
	case e.repeats(s, home):
		return home, true
	case rip > d.copies[0] && rip <= d.back:
		return d.home(e, rip-1), true
	}
	return home, false
}

// Unpatch puts into p, which was read from guest memory at addr, the bytes that
// belong there instead of the engine's int3s and jumps. It may be called from any
// thread.
func (e *Engine) Unpatch(addr guest.GVA, p []byte) {
	t := e.table.Load()
	for a := addr - (insn.JmpLen - 1); a != addr+guest.GVA(len(p)); a++ {
		st := t.find(a)
		if st == nil || !st.armed.Load() {
			continue
		}
		orig := st.orig[:1]
		if d := st.jump.Load(); d != nil {
			orig = d.orig[:]
		}
		for i, b := range orig {
			if off := a + guest.GVA(i) - addr; off < guest.GVA(len(p)) {
				p[off] = b
			}
		}
	}
}
