package probe

import "slices"

// stopSites is the most sites whose text one stop changes, when probes are registered, unregistered,
// enabled or disabled, or jumps are switched off: a stop holds all vCPUs.
const stopSites = 1024

// updateInStops arms or disarms sites as wanted, in stops of at most stopSites sites each; set is called
// in the first one, before.
func (g *registry) updateInStops(sites []*site, lost *[]error, set func(World)) error {
	for first := true; first || len(sites) > 0; first = false {
		part := sites[:min(len(sites), stopSites)]
		sites = sites[len(part):]
		err := g.stop(func(w World) error {
			if first {
				set(w)
			}
			if _, err := g.text.updateArming(w, part, lost); err != nil {
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// armAhead arms sites that are about to have their first live probe, in stops of their own, unless one
// stop is enough for all; it returns the sites that it has armed. A hit there runs only the
// instruction, until all probes of the request become live in one stop that changes no text. On an
// error nothing is armed; it is about bad unless that is nil. Callers hold mu.
func (g *registry) armAhead(sites []*site) (ahead []*site, bad *site, err error) {
	if g.disarmed || len(sites) <= stopSites {
		return nil, nil, nil
	}
	for part := range slices.Chunk(sites, stopSites) {
		err = g.stop(func(w World) error {
			var lost []error
			for _, st := range part {
				if st.armed.Load() || st.changed || st.gone || g.opt.jumpsOnly(st) {
					continue // it is as it should be, or updateArming decides
				}
				if g.sites.Find(st.addr) == nil {
					g.addSite(st)
				}
				g.opt.makeRoom(w, st, &lost)
				ahead = append(ahead, st)
				if err := g.text.arm(w, st); err != nil {
					bad = st
					return err
				}
			}
			return nil
		})
		if err != nil {
			g.disarmAhead(ahead)
			return nil, bad, err
		}
	}
	return ahead, nil, nil
}

// disarmAhead undoes armAhead after an error, in stops of at most stopSites sites. Text that cannot be
// restored is logged.
func (g *registry) disarmAhead(ahead []*site) {
	for part := range slices.Chunk(ahead, stopSites) {
		err := g.stop(func(w World) error {
			var lost []error
			for _, st := range part {
				if !g.wanted(st) {
					g.text.disarm(w, st, &lost)
				}
				if len(*st.chain.Load()) == 0 && g.sites.Find(st.addr) == st {
					g.dropSite(st)
				}
				g.opt.review(w, st, &lost)
				g.opt.reviewAround(w, st, &lost)
			}
			return nil
		})
		if err != nil {
			g.log.Error("breakpoints of probes that could not be attached are still there", "err", err)
		}
	}
}

// inStops calls f with parts of regs whose sites are at most stopSites each, until it fails.
func inStops(regs []*registration, f func([]*registration) error) error {
	sites, from := map[*site]bool{}, 0
	for i, r := range regs {
		if sites[r.site] = true; len(sites) > stopSites {
			if err := f(regs[from:i]); err != nil {
				return err
			}
			clear(sites)
			sites[r.site], from = true, i
		}
	}
	return f(regs[from:])
}
