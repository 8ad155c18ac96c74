package probe

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// mirror is one activation of a jprobe's mirror: what the probed function needs
// to begin as if the mirror had never run. A mirror usually ends on the vCPU
// that it began on, but one that sleeps against the rules is still found.
type mirror struct {
	// state is free, busy (one vCPU's own) or live. Who sets busy is alone in
	// touching the rest.
	state atomic.Uint32
	sp    atomic.Uint64 // of the activation: where its return address is
	root  atomic.Uint64 // page tables, for code of CPL3
	mask  atomic.Uint64 // of its stack (guest.Profile); 0: not known
	back  atomic.Uint64 // what is at sp instead of the return address: where mirrors end
	user  atomic.Bool

	regs  Regs
	site  *site
	chain chain
	cpu   int
	seq   uint32
	watch bool
	next  *registration // another mirror on the site, to run after this one
	n     int           // bytes of stack
	at    guest.GVA     // where the probed instruction was hit
	stack [MaxJprobeStack]byte
}

// Values of mirror.state.
const (
	mirrorFree = iota
	mirrorBusy
	mirrorLive
)

// maxMirrorStack bounds how much stack a mirror may use, in bytes: further down
// is another stack.
const maxMirrorStack = 64 << 10

// holds reports whether the vCPU is inside the activation m. Where the guest has
// a profile it must be on the very stack: another task's can be next to it.
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

// mirrored reports whether word is at place because a mirror runs there, which
// covers a return address.
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

// sameSpace reports whether m belongs to code of the privilege level, and for
// CPL3 of the address space, of s.
func (m *mirror) sameSpace(s State) bool {
	return m.user.Load() == (s.CPL == 3) && (s.CPL != 3 || guest.GPA(m.root.Load()) == s.Root)
}

// runJprobe runs the entry handler of the jprobe r.
func (c *cpu) runJprobe(r *registration) {
	depth := c.depth
	defer c.contain(&r.tally, "entry", depth)
	r.jprobe.probe.Entry(&c.ctx, c.ctx.Args())
}

// nextMirror returns the first jprobe of list, from r on, whose mirror is to
// run at the hit seq.
func nextMirror(c *cpu, list chain, seq uint32) (*registration, chain) {
	for i, r := range list {
		if r.jprobe != nil && r.jprobe.mirror != 0 && r.cells[c.id].passed == seq {
			return r, list[i+1:]
		}
	}
	return nil, nil
}

// beginMirrors sends the vCPU to the mirrors of the jprobes that let the hit
// pass, the newest first, and then to the probed instruction. The verdict is
// void, and nothing has happened, when there is no record left or the stack cannot
// be written: those jprobes have missed the call.
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

// beginMirror fills in m, and sends the vCPU to the mirror of r. It reports false,
// and m is free again, when there is no stack for that.
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
		if j := all[x].jprobe; j != nil && j.mirror != 0 && all[x].cells[c.id].passed == c.seq {
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

// enterMirror sends the vCPU, whose registers and stack are those of the function's
// entry, to the mirror of r. Where the mirror would return to is where it ends: one
// that returns does no harm. It reports false when the stack cannot be written.
func (c *cpu) enterMirror(s State, m *mirror, r *registration) bool {
	if !c.writeWord(s, m.regs.RSP, r.jprobe.ends) {
		return false
	}
	m.back.Store(uint64(r.jprobe.ends))
	*s.Regs = m.regs
	s.Regs.RIP = uint64(r.jprobe.mirror)
	s.Regs.RFLAGS &^= x86.FlagIF | x86.FlagTF
	m.next = r
	c.mirror = m
	m.state.Store(mirrorLive)
	return true
}

// takeMirror returns a record for the caller alone, or nil. One whose stack
// position is entered anew, or has another return address by now, was left by a
// mirror that has not ended as it should.
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

// inMirror reports whether the vCPU is inside a mirror: its hits are missed, as
// those inside a handler are.
func (c *cpu) inMirror(s State) bool { return c.mirror != nil && c.mirror.holds(s) }

// endMirror handles the arrival at the end of a mirror, and reports false when
// the vCPU is in none. The next mirror runs, or the probed instruction.
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
		_ = c.mem.Write(m.regs.RSP, m.stack[:m.n]) // it could be read: what has become of it is the guest's affair
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
	// A mirror that has slept has let other hits pass meanwhile: who is to be
	// told what comes after this one is not known any more.
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

// abortMirrors ends the mirrors that vCPUs are inside, as if they had come to
// their end, for an engine that closes: nobody is there afterwards to do it. The
// world is stopped, and all text is put back before it goes on.
func (e *Engine) abortMirrors(w World) {
	for i := range e.cpus {
		c := &e.cpus[i]
		s := w.CPU(i)
		if !c.inMirror(s) {
			continue
		}
		m := c.mirror
		if m.n > 0 {
			c.mem.root, c.mem.cpl = s.Root, s.CPL
			_ = c.mem.Write(m.regs.RSP, m.stack[:m.n])
		}
		*s.Regs = m.regs
		c.mirror = nil
		m.state.Store(mirrorFree)
	}
}

// noteStacks finds out how large the stacks are that mirrors run on.
func (e *Engine) noteStacks() {
	mask := uint64(0)
	if p := e.tasks.Load(); p != nil {
		mask = p.StackMask
	}
	e.stackMask.Store(mask)
}

// forgetMirrors forgets every activation: the guest was reset.
func (e *Engine) forgetMirrors() {
	e.noteStacks()
	for i := range e.cpus {
		e.cpus[i].mirror = nil
	}
	if list := e.mirrors.Load(); list != nil {
		for i := range *list {
			(*list)[i].state.Store(mirrorFree)
		}
	}
}
