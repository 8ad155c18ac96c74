package probe

import (
	"errors"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
)

// batch is one call of Register, before it has any effect.
type batch struct {
	regs    []*registration
	seen    map[*Kprobe]bool
	fresh   map[guest.GVA]*site // sites to add
	order   []*site             // all sites of the batch, by first use
	index   map[*site]int       // the first probe of the batch on each
	mirrors []*jump             // those of its jprobes
}

func (e *Engine) newBatch(n int) *batch {
	return &batch{
		regs:  make([]*registration, 0, n),
		seen:  make(map[*Kprobe]bool, n),
		fresh: map[guest.GVA]*site{},
		index: map[*site]int{},
	}
}

// Register puts all of ps on the guest, or none: the error is then an *Error
// whose Index says which one was refused, and why. It returns when every vCPU
// sees the probes. Several probes may be at one address; the newest is asked
// first.
//
// Other errors: ErrInHandler, ErrClosed.
func (e *Engine) Register(ps ...*Kprobe) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if len(ps) == 0 {
		return newError(CodeEmptyBatch, "no probe to register", "")
	}
	b := e.newBatch(len(ps))
	for i, p := range ps {
		if err := e.admit(b, p); err != nil {
			err.Index = i
			return err
		}
	}
	return e.install(b)
}

// Check does all that Register would do for p, except registering it: the
// answer is how it would be listed, or the refusal. A probe that is registered
// is refused as such.
func (e *Engine) Check(p *Kprobe) (Info, error) {
	if err := e.lock(); err != nil {
		return Info{}, err
	}
	defer e.mu.Unlock()
	b := e.newBatch(1)
	if err := e.admit(b, p); err != nil {
		return Info{}, err
	}
	return e.info(b.regs[0]), nil
}

// admit checks p and adds it to the batch.
func (e *Engine) admit(b *batch, p *Kprobe) *Error {
	// Check 5 before 1 to 4, because a registered probe by symbol has an address
	// as well; the errno is the same.
	if p != nil && (p.reg != nil || b.seen[p]) {
		return newError(CodeRegistered, "the probe is registered already", "")
	}
	if err := e.checkSpace(p); err != nil {
		return err
	}
	at, err := e.resolve(p)
	if err != nil {
		return err
	}
	if err := e.allowed(at); err != nil {
		return err
	}
	st := e.sites[at.addr]
	if st == nil {
		st = b.fresh[at.addr]
	}
	if st == nil {
		if st, err = e.prepare(at); err != nil {
			return err
		}
		b.fresh[at.addr] = st
	}
	watch := p.Post != nil || p.Fault != nil
	if watch && st.plan.NoStep {
		return newError(CodeNoPost, "the instruction waits or does not come back: no post or fault handler", "")
	}
	if err := e.needSlots(st, watch); err != nil {
		return err
	}
	r := &registration{
		engine:   e,
		probe:    p,
		site:     st,
		cells:    make([]cell, len(e.cpus)),
		bySymbol: p.Symbol != "",
		offset:   p.Offset,
		disabled: p.Disabled,
	}
	b.seen[p] = true
	p.elsewhere = nil
	if p.Space != 0 {
		p.elsewhere = make([]spaceCell, len(e.cpus))
	}
	if _, ok := b.index[st]; !ok {
		b.index[st] = len(b.regs)
		b.order = append(b.order, st)
	}
	b.regs = append(b.regs, r)
	return nil
}

// install makes the batch what the vCPUs see, in the kernel's order: slots are
// there already, then the table, then the int3s.
func (e *Engine) install(b *batch) error {
	return e.stop(func(w World) error {
		old := make([]*chain, len(b.order))
		added := make(map[*site]chain, len(b.order))
		for i, st := range b.order {
			old[i] = st.chain.Load()
		}
		for _, r := range b.regs {
			r.enabled.Store(!r.disabled)
			added[r.site] = append(added[r.site], r)
		}
		for _, st := range b.order {
			c := added[st]
			slices.Reverse(c) // newest first
			c = append(c, *st.chain.Load()...)
			st.chain.Store(&c)
		}
		for a, st := range b.fresh {
			e.sites[a] = st
		}
		e.publish()
		var lost []error
		if bad, err := e.settle(w, b.order, &lost); err != nil {
			for i, st := range b.order {
				st.chain.Store(old[i])
			}
			for a := range b.fresh {
				delete(e.sites, a)
			}
			e.publish()
			err.Index = b.index[bad]
			return err
		}
		for _, r := range b.regs {
			r.probe.reg = r
			r.probe.Addr = r.site.addr
			if !r.bySymbol {
				r.probe.Offset = 0
			}
		}
		return nil
	})
}

// Unregister takes ps off. When it returns, no handler of theirs runs or will
// run, and text without another enabled probe is what it was; a vCPU that
// stands in a slot finishes the instruction there.
//
// A probe that is not registered only has its Addr cleared; the others are
// processed all the same, and the error is an *Error for the first such one.
// Text that the guest itself has changed is left as it is and reported,
// too. On ErrInHandler, ErrClosed, and when the guest cannot be stopped,
// nothing was done.
func (e *Engine) Unregister(ps ...*Kprobe) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	var regs []*registration
	var unknown *Error
	seen := map[*registration]bool{}
	for i, p := range ps {
		r := e.registered(p)
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

// registered returns p's registration with this engine, or nil.
func (e *Engine) registered(p *Kprobe) *registration {
	if p == nil || p.reg == nil || p.reg.engine != e {
		return nil
	}
	return p.reg
}

// remove takes regs off in one stop: original bytes, then the table. The stop
// is also the grace period: no vCPU is in a handler. The error is a *lostText,
// with the work done, or the stop's, with nothing done.
func (e *Engine) remove(regs []*registration) error {
	var lost []error
	err := e.stop(func(w World) error {
		gone := map[*registration]bool{}
		if e.closing {
			e.abortMirrors(w)
		}
		e.dropEnds(regs)
		regs := append(regs, e.ripeEnds()...)
		for _, r := range regs {
			gone[r] = true
			r.enabled.Store(false)
		}
		sites := sitesOf(regs)
		for _, st := range sites {
			c := st.chain.Load().without(func(r *registration) bool { return gone[r] })
			st.chain.Store(&c)
		}
		if _, err := e.settle(w, sites, &lost); err != nil {
			lost = append(lost, err)
		}
		for _, st := range sites {
			if len(*st.chain.Load()) == 0 && e.sites[st.addr] == st {
				delete(e.sites, st.addr)
			}
		}
		e.publish()
		for _, r := range regs {
			r.probe.reg, r.probe.last = nil, r
			delete(e.gone, r)
			if r.ret != nil {
				r.ret.bury(&e.tramps)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return errors.Join(lost...)
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
