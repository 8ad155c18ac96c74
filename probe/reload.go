package probe

import (
	"bytes"
	"errors"

	"github.com/guestprobe/guestprobe/guest"
)

// Reload resets the guest, and puts every probe back: one by symbol where that
// symbol is now, one by address where the same instruction is still there. The
// others are gone: they are listed as such, cannot be enabled, and come back if a
// later reset brings their code back. Counts go on.
//
// The reset itself is the caller's: no vCPU runs any more when it calls save,
// which takes the counts that stand in the guest's memory. Behind it the memory is
// what the guest's image (perhaps another one than before) says, memory from
// AllocExec is forgotten, and no vCPU has run yet; or there is no guest, which it
// reports by false. Nobody else changes probes, or the guest's text, meanwhile.
//
// Errors are those of reset, ErrInHandler, ErrClosed and those of the target.
func (e *Engine) Reload(reset func(save func()) (bool, error)) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	there, err := reset(e.save)
	if there {
		err = errors.Join(err, e.reloaded())
	}
	return err
}

// reloaded is what Reload does when the guest was reset. Callers hold mu.
func (e *Engine) reloaded() error {
	// Newest first at each site, as the chains are; sites by address, so that
	// the layout of slot memory does not depend on chance.
	var regs []*registration
	for _, st := range e.sortedSites() {
		for _, r := range *st.chain.Load() {
			regs = append(regs, r)
		}
	}
	for r := range e.gone {
		regs = append(regs, r)
	}
	e.view.Lock()
	e.forgetCode()
	e.view.Unlock()
	b := e.newBatch(len(regs))
	moved := make(map[*registration]*site, len(regs))
	pools := map[*registration]*pool{}
	lost := map[*registration]*Error{}
	var restaged []*registration
	for _, r := range regs {
		st, err := e.again(b, r)
		if err == nil && r.ret != nil {
			pools[r], err = e.fillPool(r.ret, st)
			if err == nil {
				restaged = append(restaged, r)
			}
		}
		if err != nil {
			lost[r] = err
			continue
		}
		moved[r] = st
	}
	stages := map[*registration]*retStage{}
	for _, r := range restaged {
		e.view.Lock()
		r.ret.stage.Store(nil)
		r.ret.noStage = ""
		e.tryStage(r.ret, moved[r])
		stages[r] = r.ret.stage.Load()
		e.view.Unlock()
	}
	err := e.stop(func(w World) error {
		e.can = [2]Capabilities{e.target.Capabilities(false), e.target.Capabilities(true)}
		for i := range e.cpus {
			e.cpus[i].step = step{}
			e.cpus[i].entered = nil
		}
		e.forgetMirrors()
		e.sites = map[guest.GVA]*site{}
		e.gone = map[*registration]bool{}
		for _, r := range regs {
			if r.ret != nil {
				r.ret.reset(pools[r])
				if g := stages[r]; g != nil {
					r.ret.stage.Store(g)
				}
			}
			if st := moved[r]; st != nil {
				c := append(*st.chain.Load(), r)
				st.chain.Store(&c)
				e.sites[st.addr] = st
				r.site = st
				r.probe.Addr = st.addr
				r.enabled.Store(!r.disabled)
			}
		}
		for _, st := range e.sortedSites() {
			if !e.wanted(st) {
				continue
			}
			if err := e.arm(w, st); err != nil {
				for _, r := range *st.chain.Load() {
					lost[r] = err
				}
				delete(e.sites, st.addr)
			}
		}
		for r := range lost {
			e.bury(r)
		}
		e.publish()
		var none []error
		for _, st := range e.sites {
			e.review(w, st, &none) // changes no text: nothing is optimized yet
		}
		return nil
	})
	for r, why := range lost {
		e.log.Warn("probe is gone after the guest was reset", "probe", r.probe.Name, "addr", r.site.addr, "symbol", r.site.symbol, "err", why)
	}
	return errors.Join(err, e.rewatch())
}

// again checks r as if it were registered anew, and returns its site.
func (e *Engine) again(b *batch, r *registration) (*site, *Error) {
	p := &Kprobe{Addr: r.site.addr}
	if r.bySymbol {
		p = &Kprobe{Symbol: r.probe.Symbol, Offset: r.offset}
	}
	at, err := e.resolve(p)
	if err != nil {
		return nil, err
	}
	if err := e.allowed(at); err != nil {
		return nil, err
	}
	st := b.fresh[at.addr]
	if st == nil {
		if st, err = e.prepare(at); err != nil {
			return nil, err
		}
		b.fresh[at.addr] = st
	}
	if r.hidden && r.probe.Pre == nil { // not that of an execute watch
		st.mirrorEnd.Store(true)
	}
	if !r.bySymbol && (at.addr != r.site.addr || !bytes.Equal(st.bytes(), r.site.bytes())) {
		return nil, newError(CodeGone, "another instruction is there now", "")
	}
	if r.jump != nil && r.jump.mirror != 0 {
		if err := e.findMirror(r.jump, at); err != nil {
			return nil, err
		}
	}
	if (r.ret != nil || r.jump != nil) && !at.entry {
		return nil, newError(CodeNotEntry, "the entry of a function is no longer there", "")
	}
	watch := r.probe.Post != nil || r.probe.Fault != nil
	if watch && st.plan.NoStep {
		return nil, newError(CodeNoPost, "the instruction waits or does not come back: no post or fault handler", "")
	}
	if err := e.needSlots(st, watch); err != nil {
		return nil, err
	}
	return st, nil
}

// bury puts r on a site of its own that is in no table.
func (e *Engine) bury(r *registration) {
	old := r.site
	st := &site{addr: old.addr, n: old.n, orig: old.orig, user: old.user, plan: old.plan, symbol: old.symbol, start: old.start, entry: old.entry, gone: true}
	st.chain.Store(&chain{r})
	r.site = st
	r.enabled.Store(false)
	e.gone[r] = true
}
