package probe

import (
	"fmt"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// cr3Addr are the bits of CR3 that hold the address of the top-level page table
// (SDM Vol. 3, table 4-12); the others are flags or the PCID.
const cr3Addr = 0x000f_ffff_ffff_f000

// spaceCell counts on one vCPU, in a cache line of its own.
type spaceCell struct {
	n atomic.Uint64
	_ [56]byte
}

// checkSpace refuses a Space that cannot be one.
func (e *Engine) checkSpace(p *Kprobe) *Error {
	switch {
	case p == nil || p.Space == 0:
		return nil
	case p.Space&^cr3Addr != 0:
		return newError(CodeBadSpace, fmt.Sprintf("%v is not the address of a top-level page table", p.Space), "a multiple of 4096 below 2^52, as in CR3")
	case e.oneSpace:
		return newError(CodeBadSpace, "this target has one address space", "")
	}
	return nil
}

// elsewhere reports, and counts, that the vCPU is in another address space than
// the one that r is for.
func (r *registration) elsewhere(c *cpu, s State) bool {
	p := r.probe
	if p.Space == 0 || s.Root&cr3Addr == p.Space {
		return false
	}
	count(&p.elsewhere[c.id].n)
	return true
}

// sameCode reports whether the int3 at rip, where st is, is that of st: another
// address space can have other code there. The kernel's text is the same in all
// of them.
func (e *Engine) sameCode(s State, st *site, rip guest.GVA) bool {
	if !st.user || st.pa == 0 {
		return true
	}
	pa, ok := e.pages.Translate(s.Root, rip)
	return !ok || pa == st.pa
}

// aliased returns the site whose int3 is at rip because its page is mapped there,
// too, or nil.
func (e *Engine) aliased(t *table, s State, rip guest.GVA) *site {
	if t.phys == nil || e.InSlot(rip) {
		return nil
	}
	pa, ok := e.pages.Translate(s.Root, rip)
	if !ok {
		return nil
	}
	return t.phys.find(guest.GVA(pa))
}

// executeAt is execute for an instruction that the guest has come to at the
// address at.
func (e *Engine) executeAt(c *cpu, s State, st *site, chain chain, missed, watch bool, at guest.GVA) Verdict {
	if at == st.addr {
		return e.execute(c, s, st, chain, missed, watch)
	}
	c.alias = at
	v := e.execute(c, s, st, chain, missed, watch)
	c.alias = 0
	return v
}

// slotServes reports whether the slots of st can be used for this hit. They are
// relocated for the site's own address, and return there; and another address
// space need not have them.
func (e *Engine) slotServes(c *cpu, s State, st *site) bool {
	if c.alias != 0 {
		return false
	}
	if !st.user {
		return true
	}
	for _, sl := range []*slot{st.stepped.Load(), st.boosted.Load()} {
		if sl != nil {
			_, ok := e.pages.Translate(s.Root, sl.addr)
			return ok
		}
	}
	return true
}

// SiteAt returns the address and the first byte of the probed instruction whose
// int3 the page tables at root map at addr, and whether there is one. It may be
// called from any thread.
func (e *Engine) SiteAt(root guest.GPA, addr guest.GVA) (home guest.GVA, orig byte, ok bool) {
	t := e.table.Load()
	s := State{Root: root}
	st := t.find(addr)
	if st == nil || !e.sameCode(s, st, addr) {
		st = e.aliased(t, s, addr)
	}
	if st == nil {
		return 0, 0, false
	}
	return st.addr, st.orig[0], true
}
