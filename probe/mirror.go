package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Values of mirror.state.
const (
	mirrorFree = iota
	mirrorBusy
	mirrorLive
)

// maxMirrorStack bounds the stack that a mirror may use, in bytes: further down is
// another stack.
const maxMirrorStack = 64 << 10

// holds reports whether the vCPU is inside the activation m. If the guest has a
// profile it must be on the very stack: another task's can be next to it.
func (m *mirror) holds(s State) bool {
	sp := m.sp.Load()
	return m.state.Load() == mirrorLive && sp-s.Regs.RSP <= maxMirrorStack && (sp^s.Regs.RSP)&m.mask.Load() == 0 && m.sameSpace(s)
}

// returned reports whether the vCPU has just left the activation m with a return,
// to where mirrors end: its stack pointer is above the return address, which is still
// there.
func (m *mirror) returned(c *cpu, s State) bool {
	sp := m.sp.Load()
	if m.state.Load() != mirrorLive || sp+8 != s.Regs.RSP || !m.sameSpace(s) {
		return false
	}
	w, ok := c.readWord(s, sp)
	return ok && uint64(w) == m.back.Load()
}

// mirrored reports whether word is at place because a mirror runs there, which covers
// a return address.
func (k *core) mirrored(place, word uint64) bool {
	list := k.mirrors.Load()
	if list == nil {
		return false
	}
	for i := range *list {
		if m := &(*list)[i]; m.state.Load() != mirrorFree && m.sp.Load() == place && m.back.Load() == word {
			return true
		}
	}
	return false
}

// sameSpace reports whether m belongs to code of the privilege level of s and, for
// CPL3, to its address space.
func (m *mirror) sameSpace(s State) bool {
	return m.user.Load() == (s.CPL == 3) && (s.CPL != 3 || guest.GPA(m.root.Load()) == s.Root)
}

// arrive implements kind.
func (jp *jprobe) arrive(c *cpu, s State, r *registration, k *cell) (taken bool) {
	taken = jp.ordinary.arrive(c, s, r, k)
	if k.passed != c.seq {
		return taken
	}
	c.mirrorsDue = c.mirrorsDue || jp.entry != 0
	if jp.probe.Entry != nil {
		c.runJprobe(r, jp)
	}
	return taken
}

// mirror implements kind.
func (jp *jprobe) mirror() *jprobe {
	if jp.entry == 0 {
		return nil
	}
	return jp
}

// runJprobe runs the entry handler of the jprobe r.
func (c *cpu) runJprobe(r *registration, jp *jprobe) {
	depth := c.depth
	defer c.contain(&r.tally, "entry", depth)
	jp.probe.Entry(&c.ctx, c.ctx.Args())
}

// nextMirror returns the first jprobe of list, from r on, whose mirror is to
// run at the hit seq.
func nextMirror(c *cpu, list chain, seq uint32) (*registration, chain) {
	for i, r := range list {
		if r.kind.mirror() != nil && r.cells[c.id].passed == seq {
			return r, list[i+1:]
		}
	}
	return nil, nil
}

// beginMirrors sends the vCPU to the mirrors of the jprobes that let the hit pass,
// the newest first, and then to the probed instruction. The verdict is void, and
// nothing has happened, if no record is free or the stack cannot be written: those
// jprobes have missed the call.
func (c *cpu) beginMirrors(s State, st *site, all chain, watch bool, at guest.GVA) bool {
	r, _ := nextMirror(c, all, c.seq)
	m := c.takeMirror(s)
	if m == nil || !c.beginMirror(s, m, r, st, all, watch, at) {
		for r, rest := nextMirror(c, all, c.seq); r != nil; r, rest = nextMirror(c, rest, c.seq) {
			k := &r.cells[c.id]
			k.handled.Store(k.handled.Load() - 1)
			count(&k.missed)
		}
		return false
	}
	return true
}

// beginMirror fills in m, and sends the vCPU to the mirror of r. It returns false,
// with m free again, if there is no stack for that.
func (c *cpu) beginMirror(s State, m *mirror, r *registration, st *site, all chain, watch bool, at guest.GVA) bool {
	m.regs = *s.Regs
	m.regs.RIP, m.at = uint64(at), at
	m.site, m.chain, m.cpu, m.seq, m.watch = st, all, c.id, c.seq, watch
	m.sp.Store(s.Regs.RSP)
	m.root.Store(uint64(s.Root))
	m.user.Store(s.CPL == 3)
	m.mask.Store(c.stackMask.Load())
	m.n = 0
	for x := range all {
		if j := all[x].kind.mirror(); j != nil && all[x].cells[c.id].passed == c.seq {
			m.n = max(m.n, j.stack)
		}
	}
	c.mem.root, c.mem.cpl = s.Root, s.CPL
	for m.n > 0 && c.mem.Read(m.regs.RSP, m.stack[:m.n]) != nil {
		m.n -= 8 // the stack ends there
	}
	if m.n < 8 || !c.enterMirror(s, m, r) {
		m.site, m.chain, m.next = nil, nil, nil
		m.state.Store(mirrorFree)
		return false
	}
	return true
}

// enterMirror sends the vCPU, which has the registers and stack of the function's
// entry, to the mirror of r. The mirror returns to the place where mirrors end, so a
// mirror may return, too. It returns false if the stack cannot be written.
func (c *cpu) enterMirror(s State, m *mirror, r *registration) bool {
	jp := r.kind.mirror()
	if !c.writeWord(s, m.regs.RSP, jp.ends) {
		return false
	}
	m.back.Store(uint64(jp.ends))
	*s.Regs = m.regs
	s.Regs.RIP = uint64(jp.entry)
	s.Regs.RFLAGS &^= x86.FlagIF | x86.FlagTF
	m.next = r
	c.mirror = m
	m.state.Store(mirrorLive)
	return true
}

// takeMirror returns a record for the caller's exclusive use, or nil. A record whose
// stack position is entered again, or has another return address by now, was left by
// a mirror that has not ended as it should.
func (c *cpu) takeMirror(s State) *mirror {
	list := *c.mirrors.Load()
	for i := range list {
		if list[i].state.CompareAndSwap(mirrorFree, mirrorBusy) {
			return &list[i]
		}
	}
	for i := range list {
		m := &list[i]
		if m.state.Load() != mirrorLive || !m.sameSpace(s) || !m.state.CompareAndSwap(mirrorLive, mirrorBusy) {
			continue
		}
		w, ok := c.readWord(s, m.sp.Load())
		if m.sp.Load() == s.Regs.RSP || ok && uint64(w) != m.back.Load() {
			return m
		}
		m.state.Store(mirrorLive)
	}
	return nil
}

// inMirror reports whether the vCPU is inside a mirror: its hits count as missed,
// like those inside a handler.
func (c *cpu) inMirror(s State) bool { return c.mirror != nil && c.mirror.holds(s) }

// endMirror handles a vCPU at the end of a mirror, and returns false if the vCPU is
// in none. The next mirror runs, or the probed instruction.
func (c *cpu) endMirror(s State) (Verdict, bool) {
	m := c.mirror
	if m == nil || !m.holds(s) && !m.returned(c, s) {
		m = nil
		list := *c.mirrors.Load()
		for i := range list {
			// Of several on one stack the lowest is the innermost.
			if x := &list[i]; (x.holds(s) || x.returned(c, s)) && (m == nil || x.sp.Load() < m.sp.Load()) {
				m = x
			}
		}
	}
	if m == nil || !m.state.CompareAndSwap(mirrorLive, mirrorBusy) {
		return Verdict{}, false
	}
	if c.mirror == m {
		c.mirror = nil
	}
	if m.n > 0 {
		c.mem.root, c.mem.cpl = s.Root, s.CPL
		_ = c.mem.Write(m.regs.RSP, m.stack[:m.n]) // it could be read before: if it no longer can be written, that is the guest's doing
	}
	done, same := m.next, m.cpu == c.id && m.seq == c.seq
	count(&done.cells[c.id].steps)
	for i, r := range m.chain {
		if r != done || !same {
			continue
		}
		if next, _ := nextMirror(c, m.chain[i+1:], m.seq); next != nil && next.enabled.Load() && c.enterMirror(s, m, next) {
			return Verdict{Action: Resume}, true
		}
	}
	*s.Regs = m.regs
	st, all, watch, at := m.site, m.chain, m.watch && same, m.at
	m.site, m.chain, m.next = nil, nil, nil
	m.state.Store(mirrorFree)
	// A mirror that slept has let other hits pass: the probes to notify after this
	// one are no longer known.
	return c.executeAt(s, st, all, !same, watch, at), true
}

// mirroring reports whether any mirror is under way.
func (k *core) mirroring() bool {
	list := k.mirrors.Load()
	if list == nil {
		return false
	}
	for i := range *list {
		if (*list)[i].state.Load() != mirrorFree {
			return true
		}
	}
	return false
}
