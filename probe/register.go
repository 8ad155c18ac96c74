package probe

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/code"
)

// Probe is a probe that can be registered: a *Kprobe, a *Kretprobe or a *Jprobe.
type Probe interface {
	// registration returns a fresh one, or nil for a nil probe.
	registration(g *registry) *registration
}

// Probes turns a slice of one kind into a slice of any kind, for Engine.Register.
func Probes[P Probe](ps []P) []Probe {
	out := make([]Probe, len(ps))
	for i, p := range ps {
		out[i] = p
	}
	return out
}

// batch is one call of Register, before it has any effect.
type batch struct {
	regs    []*registration
	at      map[*registration]*site
	seen    map[*Kprobe]bool
	fresh   map[guest.GVA]*site // sites to add
	order   []*site             // all sites of the batch, by first use
	index   map[*site]int       // the first probe of the batch on each
	live    map[*site]bool      // sites with an enabled probe of the batch
	short   bool                // memory is exhausted: something could be better
	newSite bool                // no existing site can be used
	listing bool                // nothing is registered: no slots are made, except where their place matters
}

func newBatch(n int) *batch {
	return &batch{
		regs:  make([]*registration, 0, n),
		at:    make(map[*registration]*site, n),
		seen:  make(map[*Kprobe]bool, n),
		fresh: map[guest.GVA]*site{},
		index: map[*site]int{},
		live:  map[*site]bool{},
	}
}

// add adds r, on st.
func (b *batch) add(r *registration, st *site) {
	if r.probe != nil {
		b.seen[r.probe] = true
	}
	b.regs = append(b.regs, r)
	b.at[r] = st
	if r.site == nil {
		r.site = st
	}
}

// Register puts probes of any kinds on the guest, all of them or none. On failure the
// error is an *Error whose Index identifies the rejected probe, with the reason. It
// returns when every vCPU sees the probes, and no handler runs before all are there; the
// text of more than 1,024 sites changes in several stops. Several probes may be at one address; the
// newest is called first. A kprobe or kretprobe on MODULE:SYMBOL whose module is not
// loaded, but may be later (guest.ErrModuleNotFound), is registered too, and waits
// for it: see Info.Pending.
//
// Other errors: ErrInHandler, ErrClosed.
func (e *Engine) Register(ps ...Probe) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if len(ps) == 0 {
		return newError(CodeEmptyBatch, "no probe to register", "")
	}
	b := newBatch(len(ps))
	defer e.places.forgetKnown()
	err := e.admitAll(b, ps)
	if b.short || errors.Is(err, code.ErrNoMemory) {
		// There may be memory that no context can be in any more. The parts of the
		// batch made so far are part of it.
		b.end()
		switch freed, stopped := e.collector.run(); {
		case stopped != nil:
			err = stopped
		case freed != 0 || err == nil:
			b = newBatch(len(ps))
			err = e.admitAll(b, ps)
		}
	}
	if err == nil {
		err = e.install(b)
	}
	if err != nil {
		b.end()
		var no *Error
		if errors.As(err, &no) && no.Code == CodeTextChanged {
			_ = e.text.reconcile(e.text.differingSites()) // under probes that are already there, if they changed; logged
		}
		return err
	}
	for _, r := range b.regs {
		if t := r.kind.table(); t != nil {
			t.rp.probe.MaxActive = t.rp.max
			if t.reaped() {
				e.returns.startReaper()
			}
		}
	}
	e.awaited.count(b.regs, 1)
	e.awaitMilestones()
	return nil
}

// end discards the parts of a batch that will not be installed.
func (b *batch) end() {
	for _, r := range b.regs {
		r.kind.end()
	}
}

// admitAll admits the requested probes, and then the hidden probes that they need: an
// error about a hidden probe has the index of the probe that needs it.
func (g *registry) admitAll(b *batch, ps []Probe) error {
	refused := func(i int, err *Error) error {
		err.Index = i
		return err
	}
	for i, p := range ps {
		var r *registration
		if p != nil {
			r = p.registration(g)
		}
		if r == nil {
			return refused(i, newError(CodeBothOrNeither, "no probe", ""))
		}
		if err := g.admit(b, r); err != nil {
			return refused(i, err)
		}
		if err := g.prepareReturn(b, r); err != nil {
			return refused(i, err)
		}
	}
	for i := range ps {
		if err := b.regs[i].kind.addCompanions(g, b, b.regs[i]); err != nil {
			return refused(i, err)
		}
	}
	return nil
}

// prepareReturn gives r, which the batch has admitted and which does not wait for its
// module, its table for calls, if its kind follows calls.
func (g *registry) prepareReturn(b *batch, r *registration) *Error {
	if b.at[r].gone {
		return nil
	}
	t, err := r.kind.prepare(&g.returns, b.at[r])
	if err != nil || t == nil {
		return err
	}
	r.kind.follow(t)
	b.short = b.short || t.short
	return nil
}

// Check does everything Register would do for p, except registering it. It returns
// the Info that p would have, or the rejection. A probe that is registered is
// rejected as such.
func (e *Engine) Check(p Probe) (Info, error) {
	if err := e.lock(); err != nil {
		return Info{}, err
	}
	defer e.mu.Unlock()
	r := p.registration(&e.registry)
	if r == nil {
		return Info{}, newError(CodeBothOrNeither, "no probe", "")
	}
	if err := e.admit(newBatch(1), r); err != nil {
		return Info{}, err
	}
	return e.info(r), nil
}

// CheckListed returns the rejection of p by e, as Engine.Check does, for listings of many places. It makes no slots, so that it does not report if there
// is no memory for them.
func CheckListed(e *Engine, p Probe) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	r := p.registration(&e.registry)
	if r == nil {
		return newError(CodeBothOrNeither, "no probe", "")
	}
	b := newBatch(1)
	b.listing = true
	if err := e.admit(b, r); err != nil {
		return err
	}
	return nil
}

// Resolve determines where p would be registered, and whether that is the entry of
// its function and code of CPL3. It does not check whether p can be registered: see
// Check and Register. If the module of p is not loaded the address is 0.
func (e *Engine) Resolve(p *Kprobe) (addr guest.GVA, user, entry bool, err error) {
	if err := e.lock(); err != nil {
		return 0, false, false, err
	}
	defer e.mu.Unlock()
	w := where{p.Symbol, p.Offset, p.Addr}
	at, refused := e.places.resolve(w)
	switch {
	case refused != nil && e.places.absent(w):
		return 0, false, w.offset == 0, nil
	case refused != nil:
		return 0, false, false, refused
	}
	return at.reportedAddr(), at.sym.User, at.entry, nil
}

// admit decides whether and how r can be at its place, and adds it to the batch: the
// checks of the kernel in its order (kprobes A.1), and ours, for probes of every
// kind, at a registration and after a reset alike. A registration that has a site had
// it before the reset.
func (g *registry) admit(b *batch, r *registration) *Error {
	// Check 5 before 1 to 4, because a registered probe by symbol has an address too;
	// the errno is the same.
	if p := r.probe; p != nil && (p.reg != nil && p.reg != r || b.seen[p]) {
		return newError(CodeRegistered, "the probe is registered already", "")
	}
	if err := g.checkSpace(r.space); err != nil {
		return err
	}
	at, err := g.places.resolve(r.where)
	switch {
	case err != nil && r.site == nil && g.places.pending(r):
		b.add(r, r.newGoneSite())
		return nil
	case err != nil:
		return err
	}
	if err := r.kind.check(r, &g.places, at); err != nil {
		return err
	}
	at.plain = at.entry && g.places.functions().IsPlainEntry(at.sym, at.addr)
	if err := g.places.checkAllowed(at); err != nil {
		return err
	}
	st := g.sites.Find(at.addr)
	if st == nil || b.newSite {
		if st = b.fresh[at.addr]; st == nil {
			if st, err = g.places.prepare(at); err != nil {
				return err
			}
		}
	} else if err := g.places.checkUnchanged(st); err != nil {
		return err
	}
	if old := r.site; old != nil && r.where.symbol == "" && (st.addr != old.addr || !bytes.Equal(st.bytes(), old.bytes())) {
		return newError(CodeGone, "another instruction is there now", "")
	}
	if !b.listing || g.opt.jumpsOnly(st) || st.plan().Inst.RIPRelative() {
		if err := g.prepareHit(r, st); err != nil {
			return err
		}
	}
	if g.sites.Find(at.addr) != st {
		b.fresh[at.addr] = st
	}
	if r.is(mirrorEnds) {
		st.mirrorEnd.Store(true)
	}
	if _, ok := b.index[st]; !ok {
		b.index[st] = len(b.regs)
		b.order = append(b.order, st)
	}
	if !r.disabled {
		b.live[st] = true
	}
	b.add(r, st)
	if r.entry != at.entry { // listings may read it
		r.entry = at.entry
	}
	return nil
}

// prepareHit makes the slots and other data that a hit of r on st needs, or says why
// it cannot.
func (g *registry) prepareHit(r *registration, st *site) *Error {
	if g.opt.jumpsOnly(st) {
		return g.opt.admit(r, st)
	}
	if r.watched() && st.plan().NoStep {
		return newError(CodeNoPost, "the instruction waits or does not come back: no post or fault handler", "")
	}
	return g.places.needSlots(st, r.watched())
}

// checkSpace rejects an invalid Space.
func (k *core) checkSpace(space guest.GPA) *Error {
	switch {
	case space == 0:
		return nil
	case space&^cr3Addr != 0:
		return newError(CodeBadSpace, fmt.Sprintf("%v is not the address of a top-level page table", space), "a multiple of 4096 below 2^52, as in CR3")
	case k.oneSpace:
		return newError(CodeBadSpace, "this target has one address space", "")
	}
	return nil
}

// install makes the batch visible to the vCPUs, in the kernel's order: slots are
// there already, then the sites, then the int3s. Callers hold mu.
func (g *registry) install(b *batch) error {
	var live []*site
	for _, st := range b.order {
		if b.live[st] {
			live = append(live, st)
		}
	}
	ahead, bad, err := g.armAhead(live)
	if err != nil {
		var own *Error
		if errors.As(err, &own) && bad != nil {
			own.Index = b.index[bad]
		}
		return err
	}
	if err = g.installNow(b); err != nil {
		g.disarmAhead(ahead)
	}
	return err
}

// installNow is install for sites that are armed, or few enough for one stop.
func (g *registry) installNow(b *batch) error {
	return g.stop(func(w World) error {
		old := make([]*chain, len(b.order))
		added := make(map[*site]chain, len(b.order))
		for i, st := range b.order {
			old[i] = st.chain.Load()
		}
		for _, r := range b.regs {
			r.site = b.at[r]
			r.enabled.Store(!r.disabled && !r.site.gone)
			added[r.site] = append(added[r.site], r)
		}
		for _, st := range b.order {
			c := added[st]
			slices.Reverse(c) // newest first
			c = append(c, *st.chain.Load()...)
			st.chain.Store(&c)
		}
		for _, st := range b.fresh {
			g.addSite(st)
		}
		var lost []error
		if bad, err := g.text.updateArming(w, b.order, &lost); err != nil {
			for i, st := range b.order {
				st.chain.Store(old[i])
				g.opt.review(w, st, &lost)
			}
			for _, st := range b.fresh {
				if !st.armed.Load() { // else disarmAhead does it
					g.dropSite(st)
				}
			}
			for _, r := range b.regs {
				if g.gone[r] {
					g.moveToGoneSite(r)
				}
			}
			err.Index = b.index[bad]
			return err
		}
		for _, r := range b.regs {
			if p := r.probe; p != nil {
				p.reg = r
				p.Addr = r.reportedAddr()
				if r.where.symbol == "" {
					p.Offset = 0
				}
			}
			if delete(g.gone, r); r.site.gone {
				g.gone[r] = true
			} else {
				r.tellPlaced()
			}
		}
		return nil
	})
}

// Unregister removes ps. When it returns, no handler of theirs runs or will run, and
// text without another enabled probe is restored; a vCPU in a slot finishes the
// instruction there.
//
// A probe that is not registered only has its Addr cleared; the others are still
// processed, and the error is an *Error for the first such probe. Text that the guest
// itself has changed is left as it is, and reported too. On ErrInHandler, ErrClosed,
// and if the guest cannot be stopped, nothing was done.
func (e *Engine) Unregister(ps ...*Kprobe) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	var regs []*registration
	var unknown *Error
	seen := map[*registration]bool{}
	for i, p := range ps {
		r := e.registrationOf(p)
		if r != nil && !seen[r] {
			seen[r] = true
			regs = append(regs, r)
			continue
		}
		if unknown == nil {
			unknown = newError(CodeNotRegistered, "the probe is not registered", "")
			unknown.Index = i
		}
		if p != nil && r == nil {
			p.Addr = 0
		}
	}
	if len(regs) != 0 {
		if err := errors.Join(e.remove(regs), e.awaitEnds()); err != nil {
			return err
		}
	}
	if unknown != nil {
		return unknown
	}
	return nil
}

// registrationOf returns p's registration with this engine, or nil.
func (g *registry) registrationOf(p *Kprobe) *registration {
	if p == nil || p.reg == nil || p.reg.owner != g {
		return nil
	}
	return p.reg
}

// remove removes regs, in stops of at most stopSites sites each: original bytes, then
// the sites. A stop is also the grace period: no vCPU is in a handler. The error is
// about text that was lost, with the work done, or an error of a stop, which and the later
// ones then did nothing. Callers hold mu.
func (g *registry) remove(regs []*registration) error {
	var lost []error
	err := inStops(regs, func(regs []*registration) error { return g.removeNow(regs, &lost) })
	g.collector.flush()
	if err != nil {
		return err
	}
	return errors.Join(lost...)
}

// removeNow is remove in one stop.
func (g *registry) removeNow(regs []*registration, lost *[]error) error {
	return g.stop(func(w World) error {
		gone := map[*registration]bool{}
		if g.closing {
			g.abortMirrors(w)
		}
		regs := g.unawait(g.withCompanions(regs))
		for _, r := range regs {
			gone[r] = true
			r.enabled.Store(false)
		}
		sites := sitesOf(regs)
		for _, st := range sites {
			c := st.chain.Load().drop(func(r *registration) bool { return gone[r] })
			st.chain.Store(&c)
		}
		if _, err := g.text.updateArming(w, sites, lost); err != nil {
			*lost = append(*lost, err)
		}
		for _, st := range sites {
			if len(*st.chain.Load()) == 0 && g.sites.Find(st.addr) == st {
				g.dropSite(st)
			}
		}
		for _, r := range regs {
			if p := r.probe; p != nil {
				p.reg, p.last = nil, r
			}
			delete(g.gone, r)
			r.kind.close(w)
		}
		g.collector.collectIfDue(w)
		return nil
	})
}

// sitesOf returns the sites of regs, each once.
func sitesOf(regs []*registration) []*site {
	var out []*site
	seen := map[*site]bool{}
	for _, r := range regs {
		if !seen[r.site] {
			seen[r.site] = true
			out = append(out, r.site)
		}
	}
	return out
}
