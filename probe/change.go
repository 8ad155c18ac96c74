package probe

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// TargetChanged asks the target again for everything the engine knows about it, and
// looks at each site again: the host's capabilities, the text that the guest
// rewrites, its functions. A target calls it when a running guest has reached another
// phase. Slots and jumps may improve. Where the engine has memory from now on
// (Capabilities.NoExec), probes that are gone are put back if possible, as by Reload,
// and kretprobes get trampolines of their own. Probes whose memory is no longer text
// are gone, and nothing is written there, because that memory has another owner.
// Counts continue. Errors are ErrInHandler, ErrClosed, any error of the target, and
// errors about slots that could not be made; those instructions are then stepped in
// place as before.
func (e *Engine) TargetChanged() error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	e.readProfile()
	e.noteStacks()
	var errs []error
	was := e.can
	err := e.stop(func(w World) error {
		e.can = [2]Capabilities{e.target.Capabilities(false), e.target.Capabilities(true)}
		e.walks.Load().clear()
		for _, st := range e.sortedSites() {
			if e.freed(st) || e.moved(st) {
				e.dropGoneSite(st)
				continue
			}
			for _, r := range *st.chain.Load() {
				if err := e.places.needSlots(st, r.watched()); err != nil {
					errs = append(errs, err)
				}
			}
			if st.detour() == nil {
				st.region, st.text = nil, nil
				e.opt.set(st, noJump)
			}
			e.opt.review(w, st, &errs)
		}
		return nil
	})
	if err == nil {
		// A module that was loaded again before the engine noticed its unload has new
		// text.
		err = errors.Join(e.text.reconcile(e.text.differingSites()), e.readmit(was), e.returns.move())
		e.awaitMilestones()
	}
	return errors.Join(append(errs, err)...)
}

// dropGoneSite drops st, whose text is gone. The world is stopped.
func (g *registry) dropGoneSite(st *site) {
	g.opt.set(st, noJump)
	st.armed.Store(false)
	g.dropSite(st)
	g.shown.Delete(st.addr)
	for _, r := range *st.chain.Load() {
		g.log.Warn("probe is gone with the text it was on", "probe", r.name, "addr", st.addr, "symbol", st.symbol)
		r.kind.abandon() // a reset sees only the tables of sites, and takes the memory from all
		g.moveToGoneSite(r)
	}
}

// setOriginal makes now the instruction probed at st, and reports whether it can be
// run. The world is stopped.
func (g *registry) setOriginal(st *site, now *original) bool {
	was, boosted, stepped := st.orig.Load(), st.boosted.Load(), st.stepped.Load()
	if now == was {
		return true
	}
	st.orig.Store(now)
	st.boosted.Store(nil)
	st.stepped.Store(nil)
	for _, r := range *st.chain.Load() {
		if r.watched() && now.plan.NoStep || now.plan.Kind != x86.Refuse && g.places.needSlots(st, r.watched()) != nil {
			st.orig.Store(was)
			st.boosted.Store(boosted)
			st.stepped.Store(stepped)
			return false
		}
	}
	return true
}

// originalAfterWrite returns the instruction probed at st after the guest has written
// b at addr, or nil if it cannot be probed.
func (g *registry) originalAfterWrite(st *site, addr guest.GVA, b []byte) *original {
	was := st.orig.Load()
	off := st.addr - addr // of the site in b
	var text [x86.MaxLen]byte
	n := len(text)
	for n > 0 && g.target.ReadMemory(0, st.addr, text[:n]) != nil {
		n-- // up to where the text ends
	}
	g.Unpatch(st.addr, text[:n])
	copy(text[:], was.bytes[:was.n])
	same := true
	for i := range n {
		k := off + guest.GVA(i)
		if k >= guest.GVA(len(b)) {
			continue
		}
		same = same && (i >= int(was.n) || text[i] == b[k])
		text[i] = b[k]
	}
	switch {
	case same, st.changed:
		return was // or the old one: updateArming checks whether it is there again
	case g.opt.jumpsOnly(st), was.bytes[0] != x86.Int3 && (off != 0 || g.isTail(addr, b)):
		return nil
	}
	now := &original{n: 1, bytes: text}
	if text[0] != x86.Int3 {
		now.plan = g.places.planOf(st.addr, text[:n], st.user)
		now.n = now.plan.Inst.Len
		if now.plan.Kind == x86.Refuse || now.plan.Kind == x86.InPlace && !g.can[guest.Level(st.user)].InPlace {
			return nil
		}
	}
	clear(now.bytes[now.n:])
	return now
}

// isTail reports whether b at addr is the rest of an instruction whose first byte the
// guest has replaced by an int3: that int3 is before addr in the same function. If an
// int3 belongs there anyway, a write may be mistaken for a tail, but the write of an
// int3 never is.
func (g *registry) isTail(addr guest.GVA, b []byte) bool {
	before := make([]byte, 1)
	if len(b) == 1 && b[0] == x86.Int3 || g.target.ReadMemory(0, addr-1, before) != nil {
		return false
	}
	g.Unpatch(addr-1, before)
	a, there := g.target.Symbols().Find(addr - 1)
	s, _ := g.target.Symbols().Find(addr)
	return before[0] == x86.Int3 && there && a.Addr == s.Addr
}

// forgetFunctions discards the results of analyzing the functions in [lo, hi).
func (p *places) forgetFunctions(lo, hi guest.GVA) {
	if p.funcs == nil {
		return
	}
	for a := lo; a < hi; a++ {
		if sym, ok := p.target.Symbols().Find(a); ok {
			delete(p.funcs.funcs, funcKey{sym.Addr, sym.Size})
		}
	}
}

// Reconcile compares the guest's text with the engine's bytes in it now, instead of
// when the next comparison is due. Where the guest has changed the text it removes
// the engine's bytes: see Info.Changed. Each such place is an error; other errors are
// ErrInHandler, ErrClosed and any error of the target.
func (e *Engine) Reconcile() error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	return e.text.reconcile(e.text.differingSites())
}
