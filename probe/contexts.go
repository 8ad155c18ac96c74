package probe

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// How the engine's addresses get out of the guest's memory
//
// The engine's code is interrupted like any other, and calls that are followed return
// through it. So the guest's memory and registers contain addresses of it: in frames
// of interrupts and exceptions, in place of return addresses, and in the guest's
// copies of these, wherever it has put them: on other stacks, in tables of tasks, in
// buffers of setjmp, in vector registers, also at odd addresses. Each word that is an
// address in the engine's code is taken for a copy, if the address is
//
//   - a trampoline's: it becomes the address that its activation returns to;
//   - one at which only RIP differs from the guest's (stance.exact). Contexts are
//     interrupted only at such addresses. It becomes its home;
//   - any other, in the first word of an interrupt's frame, which is followed by CS,
//     RFLAGS, RSP and SS (SDM Vol. 3, figure 6-8), or among words that stacks and
//     saved contexts have: see isContext. For the kernel's code a snapshot does not
//     ask for these.
//
// A number of the guest's own that happens to be such an address is changed, too. It
// cannot be distinguished; for the kernel's code, and for programs above 4 GiB, it
// takes a number that no program computes. Trampolines that are the guest's own text
// (returns.borrow) are return addresses of its own calls elsewhere, so these count at
// the places of their activations, or as far into a page, and in frames alone. If
// only RSP has to be corrected too, it is, in the frame. If more has to be, the
// context only runs for a moment, in a handler of an exception or of an NMI: machines
// let no other interrupt occur there (Engine.Settle). Memory checks whether such a
// handler runs; if not, the frame, or the return address of a call in a stage, is a
// remnant, and the word becomes the probed address.

// Words of a frame that the processor pushes.
const (
	ctxRIP = iota
	ctxCS
	ctxFlags
	ctxRSP
	ctxSS
	ctxWords

	ctxBytes = 8 * ctxWords
)

// guestAddrOf returns the guest's address that corresponds to an address in the
// engine's code.
func (k *core) guestAddrOf(v guest.GVA) guest.GVA {
	s, r := k.stanceOf(v)
	switch {
	case r == nil:
		return v
	case s.home != 0:
		return s.home
	}
	return r.home(v)
}

// returnWord returns the return address that a trampoline's address at that place
// replaces. It returns false if the trampoline belongs to another place or to no
// activation.
func (k *core) returnWord(v guest.GVA, place uint64) (guest.GVA, bool) {
	t, i := k.trampoline(v)
	if t == nil {
		return v, false
	}
	free := t.word(i, instState).Load()&phaseMask == phaseFree
	near := (place^t.word(i, instPlace).Load())%guest.PageSize == 0
	switch {
	case t.lent != nil && (free || !near):
		return v, false
	case !free && t.word(i, instNext).Load() == 0: // the code was not called, or the call is not followed yet
		return 0, near
	}
	return t.home(v), true
}

// guestWord returns the guest's address that corresponds to an address of the
// engine's code, wherever the guest holds it. It returns false for other addresses,
// and for those that mean something only in a frame.
func (k *core) guestWord(v guest.GVA) (guest.GVA, bool) {
	s, r := k.stanceOf(v)
	switch r := r.(type) {
	case nil:
		return v, false
	case *instances:
		if r.lent != nil {
			return v, false
		}
	case *detour:
		if r.board(v) {
			return v, false
		}
	}
	if t, i := k.trampoline(v); t != nil {
		return t.home(v), t.word(i, instNext).Load() != 0
	}
	return k.guestAddrOf(v), s.exact()
}

// board reports whether an address is in the middle of a board of the detour's, where no context can be.
func (d *detour) board(at guest.GVA) bool { return at != d.addr && (at < d.start || at >= d.end) }

// Memory makes p, a copy of the guest's memory at pa, as it would be without the
// engine; RunUnpatched has already removed the engine's bytes from text. Words across
// two pieces of memory stay, but frames at multiples of 8. More returns the copy of
// the memory at an address after it, or nil. Errors are *InsideError, unless the
// guest has ended. Engine.Withdraw has it change the guest's memory itself.
func (c *Clean) Memory(pa guest.GPA, p []byte, more func(guest.GPA) []byte) error {
	g := c.g
	in := c.windows()
	for off := 0; off+8 <= len(p); off += 8 {
		v := le.Uint64(p[off:])
		if v-in[0].Lo >= in[0].N && v-in[1].Lo >= in[1].N {
			continue
		}
		at := guest.GVA(v)
		s, r := g.stanceOf(at)
		if d, ok := r.(*detour); r == nil || ok && d.board(at) {
			continue
		}
		if home, ok := g.returnWord(at, uint64(pa)+uint64(off)); ok {
			if c.live == changeCopy || c.live == changeReturns {
				le.PutUint64(p[off:], uint64(home))
			}
			continue
		}
		if c.live == changeReturns {
			continue // it is inside
		}
		f := frame{pa: pa + guest.GPA(off), s: s, r: r}
		for i := range f.words {
			b := p[min(len(p), off+8*i):]
			if len(b) < 8 {
				b = more(f.pa + guest.GPA(8*i))
			}
			if len(b) >= 8 {
				f.words[i] = b[:8]
			}
		}
		user, _ := g.code.Owns(at)
		if t, ok := r.(*instances); ok && t.lent != nil || (user || c.live != changeCopy) && !s.exact() && !calls(r, at) && !g.isContext(p, off) {
			f.lone = true
		}
		if err := c.cleanFrame(&f); err != nil {
			return err
		}
	}
	if c.live == changeCopy || c.live == changeReturns {
		guest.ScanUneven(p, in[0], in[1], func(off int, v uint64) {
			if home, ok := g.guestWord(guest.GVA(v)); ok {
				le.PutUint64(p[off:], uint64(home))
			}
		})
	}
	return nil
}

// contextReach is how far from a saved code address isContext looks for other words
// of its context, in bytes.
const contextReach = 256

// isContext reports whether the word at off of p is among words typical of a stack or
// a saved context: an address of code, flags of code with interrupts on, or, where
// the word is the last x87 instruction of an FXSAVE area, MXCSR (SDM Vol. 1, table
// 10-2).
func (k *core) isContext(p []byte, off int) bool {
	const (
		mxcsrAt  = 16 // after FIP
		masksAll = 0x1f80
	)
	if off+mxcsrAt+8 <= len(p) {
		if w := uint32(le.Uint64(p[off+mxcsrAt:])); w&masksAll == masksAll && w>>16 == 0 {
			return true
		}
	}
	for at := max(0, off-contextReach); at+8 <= min(len(p), off+contextReach); at += 8 {
		w := le.Uint64(p[at:])
		if at == off || w == le.Uint64(p[off:]) {
			continue
		}
		if w&neverFlags == 0 && w&(x86.Flag1|x86.FlagIF) == x86.Flag1|x86.FlagIF || k.target.Symbols().IsText(guest.GVA(w)) || k.code.ResidentAt(guest.GVA(w)) != nil {
			return true
		}
	}
	return false
}

// calls reports whether a call of a stage returns to an address of r: only such a
// call stores that address anywhere.
func calls(r resident, at guest.GVA) bool {
	var x stances
	var off guest.GVA
	switch r := r.(type) {
	case *detour:
		x, off = r.stances, at-r.start
	case *instances:
		x, off = r.stances, at-r.tramps
	}
	return slices.ContainsFunc(x, func(s stanceAt) bool { return guest.GVA(s.off) == off && s.what == 0 })
}

// neverFlags are bits that RFLAGS never has set (SDM Vol. 1, figure 3-8), and VM,
// which 64-bit mode does not have.
const neverFlags = 1<<3 | 1<<5 | 1<<15 | 1<<17 | ^uint64(1<<22-1)

// frame may be an interrupt's frame: its first word is an address of the engine's
// code.
type frame struct {
	pa    guest.GPA
	words [ctxWords][]byte // in place; nil: not there
	s     stance
	r     resident
	lone  bool // if it is not a frame, it is not an address either
}

func (f *frame) get(i int) uint64 {
	if f.words[i] == nil {
		return 0
	}
	return le.Uint64(f.words[i])
}

// isFrame reports whether it can be the frame of an interrupt of code of that
// privilege: selectors have 16 bits, the code's is not a null selector and is in the
// GDT, and the RPL of both is the privilege (SDM Vol. 3, 5.5 and 5.8.3: SS has that
// of CS in 64-bit mode, also where it is null). With page tables of 5 levels a stack
// may be at an address of 57 bits; Linux's are, in kernels that have such tables.
func (f *frame) isFrame(user bool) bool {
	const local = 1 << 2 // TI
	cs, flags, ss := f.get(ctxCS), f.get(ctxFlags), f.get(ctxSS)
	cpl := uint64(0)
	if user {
		cpl = 3
	}
	return cs&^3 != 0 && cs&(3|local) == cpl && cs>>16 == 0 && ss&3 == cpl && ss>>16 == 0 &&
		flags&x86.Flag1 != 0 && flags&neverFlags == 0 && guest.GVA(f.get(ctxRSP)).CanonicalWide()
}

// misplaced reports whether something that looks like the frame of an interrupt of
// kernel code, at that address, is in the very stack that it names, but not where the
// processor would have put it: right below the interrupted RSP, at a multiple of 16
// (SDM Vol. 3, 6.14.2). Remains of calls can look like that.
func (c *Clean) misplaced(f *frame, at uint64) bool {
	sp := f.get(ctxRSP)
	return at != sp&^15-ctxBytes && c.sameStack(at, sp)
}

// cut reports whether it may be a frame that continues on another page, and so
// anywhere in physical memory.
func (f *frame) cut(user bool) bool {
	left := int(guest.PageSize-f.pa%guest.PageSize) / 8
	if left >= ctxWords {
		return false
	}
	x := *f
	for i, w := range [...]uint64{ctxFlags: x86.Flag1, ctxCS: guest.SelKernelCode, ctxSS: guest.SelKernelData, ctxRSP: 0} {
		if user && i == ctxCS {
			w = guest.SelUserCode
		}
		if i >= left {
			x.words[i] = le.AppendUint64(nil, w)
		}
	}
	return x.isFrame(user)
}

// cleanFrame gives a frame, or a lone word, the guest's own values.
func (c *Clean) cleanFrame(f *frame) error {
	g, at := c.g, guest.GVA(f.get(ctxRIP))
	put := func(i int, v uint64) {
		if c.live != changeNothing {
			le.PutUint64(f.words[i], v)
		}
	}
	user, _ := g.code.Owns(at)
	if !f.isFrame(user) {
		if f.lone {
			return nil
		}
		if f.s.below != 0 && f.cut(user) {
			if err := c.noteInside(-1, at); err != nil || c.live != changeCopy {
				return err
			}
		}
		put(ctxRIP, uint64(g.guestAddrOf(at)))
		return nil
	}
	if user && c.faulted(f, at) {
		if err := c.noteInside(-1, at); err != nil || c.live != changeCopy {
			return err
		}
	}
	// The trap of TF that the code of a return has swallowed is still pending: the
	// frame does not show it.
	if t, ok := f.r.(*instances); ok && t.shared() && f.get(ctxFlags)&x86.FlagTF != 0 && c.alive(f, user) {
		if err := c.noteInside(-1, at); err != nil || c.live != changeCopy {
			return err
		}
	}
	home := f.s.home
	if f.s.plain() && home == 0 {
		home = c.returnTarget(f, user)
	}
	if f.s.plain() && home != 0 {
		put(ctxRIP, uint64(home))
		put(ctxRSP, f.get(ctxRSP)+uint64(f.s.below))
		if f.s.masked != nil {
			put(ctxFlags, f.get(ctxFlags)|c.maskedFlags(f.s.masked))
		}
		return nil
	}
	// A task that steps itself is scheduled out in a stage as anywhere else, and gets
	// signals there: its stack does not show it.
	if c.alive(f, user) || f.get(ctxFlags)&x86.FlagTF != 0 {
		if err := c.noteInside(-1, at); err != nil || c.live != changeCopy {
			return err
		}
	}
	put(ctxRIP, uint64(g.guestAddrOf(at)))
	return nil
}

// maskedFlags returns the flags that a step of sl has cleared.
func (c *Clean) maskedFlags(sl *slot) uint64 {
	for i := range c.g.cpus {
		for _, s := range []*step{&c.g.cpus[i].step, &c.g.cpus[i].under} {
			if s.active && s.slot == sl {
				return s.flags
			}
		}
	}
	return uint64(sl.flags.Load()) & x86.FlagIF
}

// returnTarget returns where a frame in the code of a return resumes: at the return
// address in the record whose number is below the RSP that the guest has then, or at
// the return address there. The kernel's stacks are mapped in all page tables; a user
// stack has to be in one of the page tables that vCPUs use, or the target is unknown.
func (c *Clean) returnTarget(f *frame, user bool) guest.GVA {
	t, ok := f.r.(*instances)
	if !ok {
		return 0
	}
	if i, ok := t.recordOf(guest.GVA(f.get(ctxRIP))); ok && f.s.again {
		return c.g.Home(t.tramp(i))
	}
	var b [8]byte
	place := guest.GVA(f.get(ctxRSP) + uint64(f.s.below) - 8)
	roots := []guest.GPA{0}
	for i := range c.g.cpus {
		roots = append(roots, c.w.CPU(i).Root)
	}
	for _, root := range roots {
		if c.g.target.ReadMemory(root, place, b[:]) != nil {
			continue
		}
		w := guest.GVA(le.Uint64(b[:]))
		if f.s.again && c.g.target.ReadMemory(root, place-8, b[:]) == nil {
			if i, ok := t.findNumber(le.Uint64(b[:])); ok && t.cameFrom(i, place, root) {
				return c.g.Home(t.tramp(i))
			}
		}
		x, _ := c.g.trampoline(w)
		if f.s.again && x == t || f.s.done && !user {
			return c.g.Home(w)
		}
	}
	return 0
}

// cameFrom reports whether a return that ended right above place, by the page tables at root, may be that of the activation in record i.
func (t *instances) cameFrom(i int, place guest.GVA, root guest.GPA) bool {
	r := t.word(i, instRoot).Load()
	return t.word(i, instState).Load()&phaseMask == phaseLive && uint64(place)-t.word(i, instPlace).Load() <= maxPopped && (!t.user || r == 0 || guest.GPA(r) == root)
}

// Touches reports whether the instruction at rip is one by which a stage, or the code
// of a return, accesses the stack of user code before it changes anything: an
// exception that it raises is not the guest's.
func (c *Clean) Touches(rip guest.GVA) bool {
	switch _, r := c.g.stanceOf(rip); r := r.(type) {
	case *detour:
		return slices.ContainsFunc(r.touches, func(x touch) bool { return rip == r.start+guest.GVA(x.off) })
	case *instances:
		return r.touches(rip)
	}
	return false
}

// faulted reports whether a frame may be that of an exception raised by a stage's own
// accesses to the stack, which a handler will soon forward (guest.PortFault): a
// missing page of the stack, or alignment checks. At the probed address that
// exception would be the guest's own. Handlers of interrupts have such frames too;
// the vCPU leaves either soon.
func (c *Clean) faulted(f *frame, at guest.GVA) bool {
	if !c.Touches(at) {
		return false
	}
	for i := range c.g.cpus {
		s := c.w.CPU(i)
		for sp := s.Regs.RSP; s.CPL == 0 && sp-s.Regs.RSP < handlerDepth; sp = sp&^(guest.PageSize-1) + guest.PageSize {
			pa, ok := c.g.pages.Translate(s.Root, guest.GVA(sp))
			if ok && f.pa >= pa && f.pa-pa < guest.GPA(guest.PageSize-sp%guest.PageSize) {
				return true
			}
		}
	}
	return false
}

// handlerDepth is how far above the RSP of a vCPU that handles an interrupt its frame
// is looked for, in bytes.
const handlerDepth = 32 << 10

// alive reports whether a context may still resume from the frame, as opposed to a
// frame that is a leftover on a stack. In a stage only exceptions and NMIs occur,
// whose handlers finish on the vCPU that they began on. User code that has lost a
// page of its stack may wait for it.
func (c *Clean) alive(f *frame, user bool) bool {
	for i := range c.g.cpus {
		s := c.w.CPU(i)
		if s.CPL == 3 {
			if user && c.sameStack(f.get(ctxRSP), s.Regs.RSP) {
				return false // it runs again
			}
			continue
		}
		if !user && f.s.inside && !maybeAbove(&c.g.cpus[i], s, f.r) {
			continue
		}
		for at := s.Regs.RSP &^ (guest.PageSize - 1); at-s.Regs.RSP+guest.PageSize < handlerDepth; at += guest.PageSize {
			pa, ok := c.g.pages.Translate(s.Root, guest.GVA(at))
			if frame := at + uint64(f.pa-pa); ok && f.pa-pa < guest.PageSize && frame >= s.Regs.RSP && !(user || c.misplaced(f, frame)) {
				return true
			}
		}
	}
	return user
}

// maybeAbove reports whether a vCPU of kernel code whose state is s may be in the
// handler of an exception or NMI that has arrived in a stage of r. In a kernel that
// handles the faults of stages itself (guest.FaultProfile), interrupts are off in both,
// and the task's count is raised in a stage that loads from memory that may not be
// there. So the remnants of frames that each fault leaves on the stack are recognized.
// r is nil for any stage with such loads.
func maybeAbove(c *cpu, s State, r resident) bool {
	p := c.tasks.Load()
	if p == nil || p.Faults == nil {
		return true
	}
	if s.Regs.RFLAGS&x86.FlagIF != 0 {
		return false
	}
	if r != nil && !r.loads() || !c.readTask(p, &c.task, s) {
		return true
	}
	var count [4]byte
	return c.target.ReadMemory(s.Root, c.task.At+guest.GVA(p.Faults.CountOff), count[:]) != nil || count != [4]byte{}
}

// sameStack reports whether two stack pointers of user code are in one stack.
func (c *Clean) sameStack(x, y uint64) bool {
	if p := c.g.tasks.Load(); p != nil && !p.GS && p.StackMask != 0 {
		return (x^y)&p.StackMask == 0
	}
	return x-y+guest.PageSize < 2*guest.PageSize
}

// Register replaces the engine's addresses in a register of a vCPU by the guest's
// own, wherever in it a copy is: see Memory.Registers.
func (c *Clean) Register(reg []byte, ip bool) {
	in := c.windows()
	guest.ScanBytes(reg, in[0], in[1], func(off int, v uint64) {
		home, ok := c.g.guestWord(guest.GVA(v))
		if ip {
			home, ok = c.g.guestAddrOf(guest.GVA(v)), true
		}
		if ok {
			le.PutUint64(reg[off:], uint64(home))
		}
	})
}

// windows are the addresses of the engine's code.
func (c *Clean) windows() (in [2]guest.Window) {
	for i, b := range c.bounds {
		in[i] = guest.Window{Lo: uint64(b.Start), N: uint64(b.End - b.Start)}
	}
	return in
}
