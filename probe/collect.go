package probe

import (
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/code"
)

// collector takes executable memory back, and what its code refers to, when nobody can
// be in it any more. It knows nothing of the guest: it is a conservative garbage
// collector. In a stopped world a resident that no probe uses is free unless
//
//   - a general or vector register of a vCPU, or 8 bytes anywhere in what the guest can write, hold
//     an address in it: a context that goes on there has its RIP in one of these; or
//   - something that is not free refers to it: a detour to the kretprobes whose entries
//     run in it, a record of an activation under way to what is next on its place; or
//   - the host is about to send a vCPU there: see roots.
//
// What the same look finds of the trampolines of kretprobes says which of their records
// can be used for other return addresses (unbind).
//
// What a guest has put where this does not look (swapped to a disk, encrypted in a
// jump buffer) is not found. Its memory is filled with int3s and used again as late as
// possible.
//
// The world is stopped for as long as it takes to read the guest's memory. So it is done
// when as much was made as half of what was left the last time, and at least minGarbage;
// and for at most a hundredth of the time.
// It is guarded by Engine.mu.
type collector struct {
	*control
	places *places
	opt    *optimizer

	left   int       // bytes, by the last collection
	next   time.Time // not before
	unused []unused
	stats  CollectorStats // for listings
}

// minGarbage is how much is made at least between two collections, in bytes.
const minGarbage = 64 << 10

// collectShare is the least time between two collections, in times of the last one.
const collectShare = 100

// CollectorStats tell how much executable memory the engine has, and what was taken
// back of it.
type CollectorStats struct {
	Used    int           // bytes that are not free
	Passes  uint64        // stops of the world that looked for more
	Freed   uint64        // bytes that were taken back
	Longest time.Duration // the longest pass
}

// CollectorStats may be called from any goroutine.
func (e *Engine) CollectorStats() CollectorStats {
	e.view.RLock()
	defer e.view.RUnlock()
	s := e.collector.stats
	s.Used = e.code.Used()
	return s
}

// unused is what waits for stages not to be in the guest any more.
type unused struct {
	stages []*Stage
	f      func()
}

// WhenUnused calls f when no code in the guest has any of stages, nor ever will: at once
// or, by a goroutine that changes probes, behind a collection. No registered probe may have
// them. f must not call the engine. Errors are ErrInHandler and ErrClosed; then f is not
// called.
func (e *Engine) WhenUnused(f func(), stages ...*Stage) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	g := &e.collector
	g.unused = append(g.unused, unused{stages, f})
	g.flush()
	return nil
}

// Collect takes back what can be, at once. The engine does so by itself as it makes
// more: this is for who needs other memory that WhenUnused gives back. Errors are
// ErrInHandler, ErrClosed and those of the target.
func (e *Engine) Collect() error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	_, err := e.collector.run()
	return err
}

// run is Collect for callers that hold mu. It returns how many bytes were taken back.
func (g *collector) run() (freed int, err error) {
	defer g.flush()
	before := g.code.Used()
	err = g.stop(func(w World) error {
		g.collect(w)
		return nil
	})
	return before - g.code.Used(), err
}

// runIfDue collects for tables that want it, unless that was done a moment ago.
func (g *collector) runIfDue() error {
	if time.Now().Before(g.next) {
		return nil
	}
	_, err := g.run()
	return err
}

// flush calls what has waited for stages that are unused by now.
func (g *collector) flush() {
	left := g.unused[:0]
	for _, u := range g.unused {
		used := false
		for _, x := range u.stages {
			used = used || x.uses != 0
		}
		if used {
			left = append(left, u)
		} else {
			u.f()
		}
	}
	clear(g.unused[len(left):])
	g.unused = left
	if len(left) == 0 {
		g.unused = nil
	}
}

// collectIfDue collects when it is worth a look. The world is stopped.
func (g *collector) collectIfDue(w World) {
	if g.code.Used() >= g.left+max(minGarbage, g.left/2) && !time.Now().Before(g.next) {
		g.collect(w)
	}
}

// collect takes back the residents that nobody can be in. The world is stopped, and
// view is held.
func (g *collector) collect(w World) {
	for i := range g.cpus {
		if g.cpus[i].depth != 0 {
			return // a handler waits for something, and its hit goes on from a place that it alone knows
		}
	}
	start := time.Now()
	m := g.mark(w)
	before := g.code.Used()
	g.detach(m)
	for r := range g.code.Residents() {
		if !m.kept[r] {
			g.remove(r)
		}
	}
	took := time.Since(start)
	g.left, g.next = g.code.Used(), start.Add(collectShare*took)
	s := &g.stats
	s.Passes++
	s.Freed += uint64(before - g.left)
	s.Longest = max(s.Longest, took)
}

// detach makes records that are kept lead where they do without tables that are not.
func (g *collector) detach(m *marking) {
	for r := range g.code.Residents() {
		t, ok := r.(*instances)
		if !ok || !m.kept[r] {
			continue
		}
		for i := range t.n {
			next := guest.GVA(t.word(i, instNext).Load())
			if below, _ := g.trampoline(next); below != nil && !m.kept[below] {
				t.setNext(i, g.resolveReturn(next))
			}
		}
	}
}

// remove takes all that r has.
func (g *collector) remove(r resident) {
	r.drop(g)
	if err := g.code.Remove(r); err != nil {
		g.log.Error("executable memory could not be overwritten", "err", err)
	}
}

// forget takes back everything: the guest was reset.
func (g *collector) forget() {
	for r := range g.code.Residents() {
		r.drop(g)
	}
	g.code.Forget()
	g.left = 0
}

// marking is what a collection has found to be in use.
type marking struct {
	core  *core
	kept  map[resident]bool
	looks map[*instances]*sighting // of tables that want it
}

// keep notes that r is in use, and with it what it refers to.
func (m *marking) keep(r resident) {
	if !m.kept[r] {
		m.kept[r] = true
		r.markReferences(m)
	}
}

// keepAt keeps who has the address a, or the byte before it: the address behind the last
// instruction.
func (m *marking) keepAt(a guest.GVA) {
	for k, a := range [...]guest.GVA{a, a - 1} {
		r := m.core.code.At(a)
		if r == nil {
			continue
		}
		m.keep(r)
		if t, ok := r.(*instances); ok && k == 0 && m.looks[t] != nil {
			m.looks[t].noteAddr(t, a)
		}
	}
}

// mark finds out what is in use. The world is stopped.
func (g *collector) mark(w World) *marking {
	m := &marking{core: &g.core, kept: map[resident]bool{}, looks: map[*instances]*sighting{}}
	g.keepRoots(m)
	if !g.mirroring() { // a mirror's saved stack is not looked at
		for _, t := range g.tables() {
			if t.wanting() {
				m.looks[t] = &sighting{tramps: make([]bool, t.n)}
			}
		}
	}
	var buf [8]byte
	var ranges [2]code.Range // of the others, by level
	for r, all := range g.code.Residents() {
		t, table := r.(*instances)
		if m.kept[r] && (!table || m.looks[t] == nil) {
			continue
		}
		if table && !m.kept[r] {
			if t.reclaim(w, buf[:]); t.inUse() != 0 {
				m.keep(t)
				continue
			}
		}
		for _, x := range all {
			user, _ := g.code.Owns(x.Start)
			l := &ranges[guest.Level(user)]
			if l.End == 0 {
				*l = x
			}
			l.Start, l.End = min(l.Start, x.Start), max(l.End, x.End)
		}
	}
	if ranges == [2]code.Range{} {
		return m
	}
	for i := range ranges {
		if ranges[i].End != 0 {
			ranges[i].End++ // the address behind the last instruction
		}
	}
	if !w.Words(ranges[:], m.keepAt) {
		for r := range g.code.Residents() {
			m.kept[r] = true
		}
		return m
	}
	referred := g.referredTramps(m)
	for t, x := range m.looks {
		t.unbind(x, func(a guest.GVA) bool { return referred[a] })
	}
	return m
}

// referredTramps returns the trampolines that a record of those leads to that may still be used
// or returned to.
func (g *collector) referredTramps(m *marking) map[guest.GVA]bool {
	out := map[guest.GVA]bool{}
	if len(m.looks) == 0 {
		return out
	}
	for r := range g.code.Residents() {
		t, ok := r.(*instances)
		if !ok {
			continue
		}
		x := m.looks[t]
		for i := range t.n {
			if x != nil && !x.code && !x.tramps[i] && t.word(i, instState).Load()&phaseMask == phaseFree {
				continue // unless another one leads to it
			}
			for a := guest.GVA(t.word(i, instNext).Load()); !out[a]; {
				next, k := g.trampoline(a)
				if next == nil {
					break
				}
				out[a] = true
				a = guest.GVA(next.word(k, instNext).Load())
			}
		}
	}
	return out
}

// mirroring reports whether a mirror is under way.
func (g *collector) mirroring() bool {
	list := g.mirrors.Load()
	if list == nil {
		return false
	}
	for i := range *list {
		if (*list)[i].state.Load() != mirrorFree {
			return true
		}
	}
	return false
}

// keepRoots keeps what probes use, and where the host will send a vCPU.
func (g *collector) keepRoots(m *marking) {
	slots := func(st *site) {
		for _, sl := range []*slot{st.boosted.Load(), st.stepped.Load()} {
			if sl != nil {
				m.keep(sl)
			}
		}
	}
	for _, st := range g.sites.All() {
		slots(st)
		if d := st.detour(); d != nil {
			m.keep(d)
		}
	}
	for _, t := range g.tables() {
		m.keep(t)
	}
	for _, d := range g.opt.pinned {
		m.keep(d)
	}
	for i := range g.cpus {
		for _, s := range []*step{&g.cpus[i].step, &g.cpus[i].under} {
			if s.active && s.slot != nil {
				m.keep(s.slot)
			}
		}
	}
	if list := g.mirrors.Load(); list != nil {
		for i := range *list {
			if x := &(*list)[i]; x.state.Load() != mirrorFree && x.site != nil {
				slots(x.site)
			}
		}
	}
}

// markReferences implements resident.
func (s *slot) markReferences(*marking) {}

// drop implements resident.
func (s *slot) drop(g *collector) { delete(g.places.slots, s.key) }

// markReferences implements resident: to the tables of kretprobes whose entries run there.
func (d *detour) markReferences(m *marking) {
	for _, x := range d.run {
		if x.table != nil {
			m.keep(x.table)
		}
	}
}

// drop implements resident.
func (d *detour) drop(g *collector) {
	if g.opt.detours[d.key] == d {
		delete(g.opt.detours, d.key)
	}
	for _, x := range d.run {
		x.uses--
	}
}

// markReferences implements resident: to what is next on the places of activations that are
// under way.
func (t *instances) markReferences(m *marking) {
	for i := range t.n {
		if t.word(i, instState).Load()&phaseMask != phaseFree {
			m.keepAt(guest.GVA(t.word(i, instNext).Load()))
		}
	}
}

// drop implements resident.
func (t *instances) drop(g *collector) {
	if t.shown != nil {
		g.opt.placer.FreeShared(t.shownAt)
	}
	if !t.shared() {
		return
	}
	for _, x := range t.stages() {
		x.uses--
	}
	g.opt.placer.FreeShared(t.base)
}
