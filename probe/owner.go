package probe

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// owner is the task in whose stack an activation is.
type owner struct {
	stack atomic.Uint64 // lowest address of the stack; 0: no task's, or there is no profile
	pid   atomic.Uint32
}

// note remembers whose stack the vCPU is on, at the beginning of an activation.
func (o *owner) note(c *cpu, s State, prof *guest.Profile) {
	o.stack.Store(0)
	if prof == nil {
		return
	}
	stack := s.Regs.RSP & prof.StackMask
	magic, ok := c.readWord(s, stack+uint64(prof.MagicOff))
	if !ok || uint64(magic) != prof.StackMagic {
		return
	}
	c.mem.root, c.mem.cpl = s.Root, s.CPL
	if c.mem.Read(stack+uint64(prof.PIDOff), c.word[:4]) != nil {
		return
	}
	o.pid.Store(le.Uint32(c.word[:]))
	o.stack.Store(stack)
}

// ownerGone reports whether the task of an activation is known to be gone: its stack
// is no task's any more, or another one's (guest.Profile). What cannot be read
// decides nothing. buf has room for a word.
func (k *core) ownerGone(o *owner, prof *guest.Profile, root guest.GPA, buf []byte) bool {
	stack := o.stack.Load()
	if stack == 0 || prof == nil {
		return false
	}
	if k.target.ReadMemory(root, guest.GVA(stack+uint64(prof.MagicOff)), buf[:8]) != nil {
		return false
	}
	if le.Uint64(buf) != prof.StackMagic {
		return true
	}
	return k.target.ReadMemory(root, guest.GVA(stack+uint64(prof.PIDOff)), buf[:4]) == nil && le.Uint32(buf) != o.pid.Load()
}

// unwindBatch bounds the instances that unwind looks at. It reads no guest
// memory.
const unwindBatch = 64

// unwind gives back instances of p whose activations the vCPU's task has left
// behind without returning: they are in the stack that the vCPU is on, at CPL0,
// below RSP. A kernel's stacks are used from their tops down only
// (guest.Profile), so a place below the stack pointer of the task itself holds
// nothing. The stacks of user code may be parted into several.
func (p *pool) unwind(s State) {
	if p.prof == nil || s.CPL != 0 || p.used.Load() == 0 {
		return
	}
	stack := s.Regs.RSP & p.prof.StackMask
	if stack == 0 {
		return
	}
	for range min(unwindBatch, len(p.inst)) {
		in := p.inst[(p.unwound.Add(1)-1)%uint32(len(p.inst))]
		st := in.state.Load()
		if st&phaseMask != phaseLive || in.owner.stack.Load() != stack || in.slot.Load() >= s.Regs.RSP || in.user {
			continue
		}
		// What an address space has in its lower half is its own.
		if int64(stack) >= 0 && guest.GPA(in.root.Load()) != s.Root {
			continue
		}
		if in.reserve(number(st)) {
			p.ret.abandoned.Add(1)
			p.put(in)
		}
	}
}

// Undecided reports whether the last look at the kretprobes' activations (Info,
// List) has met some of which it needs Reclaim to say whether they can return.
func (e *Engine) Undecided() bool {
	e.view.RLock()
	defer e.view.RUnlock()
	for _, p := range e.pools() {
		if p.undecided.Load() {
			return true
		}
	}
	return false
}

// Reclaim stops the world and gives back the instances of all activations that
// can be seen, then, to have been left in another way than by a return. Info and
// List do the same as far as it can be done while the guest runs, and hits
// that find no free instance. Errors: ErrInHandler, ErrClosed, and the stop's.
func (e *Engine) Reclaim() error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	return e.reclaim()
}

// reclaim is Reclaim for callers that hold mu.
func (k *control) reclaim() error {
	return k.stop(func(w World) error {
		var buf [8]byte
		for _, p := range k.pools() {
			if g := p.ret.stage.Load(); g != nil {
				g.reclaim(&k.core, w, buf[:])
			}
			if p.used.Load() == 0 {
				p.undecided.Store(false)
				continue
			}
			k.sweep(p, 0, len(p.inst), buf[:])
			for _, in := range p.inst {
				st := in.state.Load()
				if st&phaseMask == phaseLive && k.fate(in, p.prof, 0, buf[:]) == fateOpen && !k.interrupted(in, 0, buf[:]) && in.reserve(number(st)) {
					p.ret.abandoned.Add(1)
					p.put(in)
				}
			}
			p.undecided.Store(false)
		}
		return nil
	})
}

// pools returns the pools of all registered kretprobes. Callers hold Engine.view
// or Engine.mu.
func (k *core) pools() []*pool {
	var out []*pool
	for _, st := range k.sites.All() {
		for _, r := range *st.chain.Load() {
			if r.ret != nil && r.ret.pool != nil {
				out = append(out, r.ret.pool)
			}
		}
	}
	return out
}
