package probe

import (
	"github.com/guestprobe/guestprobe/guest"
)

// cr3Addr are the bits of CR3 that hold the address of the top-level page table
// (SDM Vol. 3, table 4-12); the others are flags or the PCID.
const cr3Addr = 0x000f_ffff_ffff_f000

// countElsewhere reports, and counts, that the vCPU is in another address space than
// the registration's.
func (r *registration) countElsewhere(c *cpu, s State) bool {
	if r.space == 0 || s.Root == r.space || c.spaces != nil && c.spaces.SameSpace(s.Root, r.space) {
		return false
	}
	count(&r.cells[c.id].elsewhere)
	return true
}

// executeAt is execute for an instruction that the guest executes at the address at.
func (c *cpu) executeAt(s State, st *site, chain chain, missed, watch bool, at guest.GVA) Verdict {
	if at == st.addr {
		return c.execute(s, st, chain, missed, watch)
	}
	c.alias = at
	v := c.execute(s, st, chain, missed, watch)
	c.alias = 0
	return v
}

// slotServes reports whether the slots of st can be used for this hit. They are
// relocated for the site's own address, and return there; and another address space
// may lack them.
func (c *cpu) slotServes(s State, st *site) bool {
	if c.alias != 0 {
		return false
	}
	if !st.user {
		return true
	}
	for _, sl := range []*slot{st.stepped.Load(), st.boosted.Load()} {
		if sl != nil {
			_, ok := c.pages.Translate(s.Root, sl.addr)
			return ok
		}
	}
	return true
}
