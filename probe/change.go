package probe

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// TargetChanged has everything that is known of the target asked anew, and each site
// looked at again: what its host can do, which text the guest rewrites, its functions. A
// target calls it when a running guest has come to another phase. What can be better then
// is: slots, jumps; and where the engine has memory from now on (Capabilities.NoExec), probes
// that are gone are put back if they can be, as by Reload, and kretprobes get trampolines of its own. Probes whose text is none any more are gone, with nothing written
// there: that memory is another's. Counts go on. Errors are ErrInHandler, ErrClosed, those of the target,
// and those about slots that could not be made; then the instructions are stepped in
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
		// A module that came again before it was known that it had gone has its text anew.
		err = errors.Join(e.text.reconcile(e.text.differingSites()), e.readmit(was), e.returns.move())
		e.awaitMilestones()
	}
	return errors.Join(append(errs, err)...)
}

// dropGoneSite gives up st, whose text is gone. The world is stopped.
func (e *Engine) dropGoneSite(st *site) {
	e.opt.set(st, noJump)
	st.armed.Store(false)
	e.dropSite(st)
	e.shown.Delete(st.addr)
	for _, r := range *st.chain.Load() {
		e.log.Warn("probe is gone with the text it was on", "probe", r.name, "addr", st.addr, "symbol", st.symbol)
		if r.ret != nil { // a reset finds only the tables of sites, and takes the memory from all
			r.ret.abandon()
		}
		e.moveToGoneSite(r)
	}
}

// setOriginal makes now what is probed at st, and reports whether it can be run. The world is
// stopped.
func (e *Engine) setOriginal(st *site, now *original) bool {
	was, boosted, stepped := st.orig.Load(), st.boosted.Load(), st.stepped.Load()
	if now == was {
		return true
	}
	st.orig.Store(now)
	st.boosted.Store(nil)
	st.stepped.Store(nil)
	for _, r := range *st.chain.Load() {
		if r.watched() && now.plan.NoStep || now.plan.Kind != x86.Refuse && e.places.needSlots(st, r.watched()) != nil {
			st.orig.Store(was)
			st.boosted.Store(boosted)
			st.stepped.Store(stepped)
			return false
		}
	}
	return true
}

// originalAfterWrite returns what is probed at st when the guest has written b at addr, and nil when
// that cannot be.
func (e *Engine) originalAfterWrite(st *site, addr guest.GVA, b []byte) *original {
	was := st.orig.Load()
	off := st.addr - addr // of the site in b
	var text [x86.MaxLen]byte
	n := len(text)
	for n > 0 && e.target.ReadMemory(0, st.addr, text[:n]) != nil {
		n-- // up to where the text ends
	}
	e.Unpatch(st.addr, text[:n])
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
		return was // or what it was: updateArming sees whether it is again
	case e.opt.jumpsOnly(st), was.bytes[0] != x86.Int3 && (off != 0 || e.isTail(addr, b)):
		return nil
	}
	now := &original{n: 1, bytes: text}
	if text[0] != x86.Int3 {
		now.plan = e.places.planOf(st.addr, text[:n], st.user)
		now.n = now.plan.Inst.Len
		if now.plan.Kind == x86.Refuse || now.plan.Kind == x86.InPlace && !e.can[guest.Level(st.user)].InPlace {
			return nil
		}
	}
	clear(now.bytes[now.n:])
	return now
}

// isTail reports whether b at addr is the rest of an instruction of which the guest has
// made the first byte an int3: that stands before it in the same function. Where it is
// one that stands there anyway, a write is taken for a tail that is none; but not that of
// an int3.
func (e *Engine) isTail(addr guest.GVA, b []byte) bool {
	before := make([]byte, 1)
	if len(b) == 1 && b[0] == x86.Int3 || e.target.ReadMemory(0, addr-1, before) != nil {
		return false
	}
	e.Unpatch(addr-1, before)
	a, there := e.target.Symbols().Find(addr - 1)
	s, _ := e.target.Symbols().Find(addr)
	return before[0] == x86.Int3 && there && a.Addr == s.Addr
}

// forgetFunctions forgets what was found out of the functions in [lo, hi).
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
