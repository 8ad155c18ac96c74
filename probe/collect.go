package probe

import (
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/code"
)

// collector frees executable memory, and everything its code refers to, once no
// context can be in it. It knows nothing of the guest: it is a conservative garbage
// collector. In a stopped world a resident that no probe uses is free unless
//
//   - a general or vector register of a vCPU, or 8 bytes anywhere in memory that the
//     guest can write, hold an address in it: a context that resumes there has its
//     RIP in one of these; or
//   - something that is not free refers to it: a detour to the kretprobes whose
//     entries run in it, a record of an activation under way to the next one of its
//     place; or
//   - the host is about to send a vCPU there: see roots.
//
// The same scan also finds trampolines of kretprobes, and so determines which of
// their records can be used for other return addresses (unbind).
//
// The scan does not see addresses that the guest has swapped to a disk or encrypted
// in a jump buffer. So freed memory is filled with int3s and reused as late as
// possible.
//
// The world is stopped while the guest's memory is read. So a collection runs only
// when at least minGarbage was allocated, and at least half of what the last one
// left; and collections take at most a hundredth of the time. It is guarded by
// Engine.mu.
type collector struct {
	*control
	places *places
	opt    *optimizer

	left   int       // bytes left by the last collection
	next   time.Time // the earliest time of the next collection
	unused []unused
	stats  CollectorStats // for listings
}

// minGarbage is the least number of bytes allocated between two collections.
const minGarbage = 64 << 10

// collectShare is the least interval between two collections, as a multiple of the
// duration of the last one.
const collectShare = 100

// CollectorStats says how much executable memory the engine has, and how much of it
// was freed.
type CollectorStats struct {
	Used    int           // bytes in use
	Passes  uint64        // collections, each a stop of the world
	Freed   uint64        // bytes that were freed
	Longest time.Duration // the longest pass
}

// CollectorStats may be called from any goroutine.
func (e *Engine) CollectorStats() CollectorStats {
	e.view.RLock()
	defer e.view.RUnlock()
	s := e.collector.stats
	s.Used = e.code.UsedBytes()
	return s
}

// unused is a function that waits until no code in the guest has its stages.
type unused struct {
	stages []*Stage
	f      func()
}

// NotifyUnused calls f when no code in the guest has any of stages, nor ever will:
// either at once or after a collection, from a goroutine that changes probes. No
// registered probe may have them. f must not call the engine. Errors are ErrInHandler
// and ErrClosed; then f is not called.
func (e *Engine) NotifyUnused(f func(), stages ...*Stage) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	// Others that wait are looked at after a collection: very many may wait.
	if u := (unused{stages, f}); u.inUse() {
		e.collector.unused = append(e.collector.unused, u)
	} else {
		f()
	}
	return nil
}

// inUse reports whether code in the guest has some of the stages.
func (u *unused) inUse() bool {
	return slices.ContainsFunc(u.stages, func(x *Stage) bool { return x.uses != 0 })
}

// Collect frees all memory that can be freed now. The engine collects on its own as
// it allocates; this is for callers that need the memory released by NotifyUnused.
// Errors are ErrInHandler, ErrClosed and any error of the target.
func (e *Engine) Collect() error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	_, err := e.collector.run()
	return err
}

// run is Collect for callers that hold mu. It returns the number of bytes freed.
func (g *collector) run() (freed int, err error) {
	defer g.flush()
	before := g.code.UsedBytes()
	err = g.stop(func(w World) error {
		g.collect(w)
		return nil
	})
	return before - g.code.UsedBytes(), err
}

// runIfDue collects for tables that want it, unless that was done very recently.
func (g *collector) runIfDue() error {
	if time.Now().Before(g.next) {
		return nil
	}
	_, err := g.run()
	return err
}

// flush calls the functions that waited for stages that are now unused.
func (g *collector) flush() {
	left := g.unused[:0]
	for _, u := range g.unused {
		if u.inUse() {
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

// collectIfDue collects if it is worthwhile. The world is stopped.
func (g *collector) collectIfDue(w World) {
	if g.code.UsedBytes() >= g.left+max(minGarbage, g.left/2) && !time.Now().Before(g.next) {
		g.collect(w)
	}
}

// collect frees the residents that no context can be in. The world is stopped, and
// view is held.
func (g *collector) collect(w World) {
	for i := range g.cpus {
		if g.cpus[i].depth != 0 {
			return // a handler waits for something, and only it knows where its hit continues
		}
	}
	start := time.Now()
	m := g.mark(w)
	before := g.code.UsedBytes()
	g.detach(m)
	for r := range g.code.Residents() {
		if !m.kept[r] {
			g.remove(r)
		}
	}
	took := time.Since(start)
	g.left, g.next = g.code.UsedBytes(), start.Add(collectShare*took)
	s := &g.stats
	s.Passes++
	s.Freed += uint64(before - g.left)
	s.Longest = max(s.Longest, took)
}

// detach makes records that are kept skip the records of tables that are not.
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

// remove releases everything that r owns.
func (g *collector) remove(r resident) {
	r.drop(g)
	if err := g.code.Remove(r); err != nil {
		g.log.Error("executable memory could not be overwritten", "err", err)
	}
}

// forget frees everything: the guest was reset.
func (g *collector) forget() {
	for r := range g.code.Residents() {
		r.drop(g)
	}
	g.code.Forget()
	g.left = 0
}

// marking is a collection's record of residents in use.
type marking struct {
	core  *core
	kept  map[resident]bool
	looks map[*instances]*sighting // of tables that want it
}

// keep records that r is in use, and with it everything it refers to.
func (m *marking) keep(r resident) {
	if !m.kept[r] {
		m.kept[r] = true
		r.markReferences(m)
	}
}

// keepAt keeps the resident that has the address a, or the byte before it: the
// address after the last instruction.
func (m *marking) keepAt(a guest.GVA) {
	for k, a := range [...]guest.GVA{a, a - 1} {
		r := m.core.code.ResidentAt(a)
		if r == nil {
			continue
		}
		m.keep(r)
		if t, ok := r.(*instances); ok && k == 0 && m.looks[t] != nil {
			m.looks[t].noteAddr(t, a)
		}
	}
}

// mark determines the residents in use. The world is stopped.
func (g *collector) mark(w World) *marking {
	m := &marking{core: &g.core, kept: map[resident]bool{}, looks: map[*instances]*sighting{}}
	g.keepRoots(m)
	if !g.mirroring() { // the scan does not see a mirror's saved stack
		for _, t := range g.tables() {
			if t.wanting() {
				m.looks[t] = &sighting{tramps: make([]bool, t.n)}
			}
		}
	}
	var buf [8]byte
	var ranges [2]code.Range // of the other residents, by level
	for r, all := range g.code.Residents() {
		t, table := r.(*instances)
		if m.kept[r] && (!table || m.looks[t] == nil) {
			continue
		}
		if table && !m.kept[r] {
			if t.reclaim(w, buf[:]); t.activeCount() != 0 {
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
			ranges[i].End++ // the address after the last instruction
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

// referredTramps returns the trampolines that are the next ones of records that may
// still be used or returned to.
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

// keepRoots keeps the residents that probes use, and those where the host will send a
// vCPU.
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

// markReferences implements resident: it marks the tables of kretprobes whose entries
// run there.
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

// markReferences implements resident: it marks the next ones of the places of
// activations under way.
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

// Undecided reports whether the last look at the kretprobes' activations (Info, List)
// has met some for which only Reclaim can determine whether they can return.
func (e *Engine) Undecided() bool {
	e.view.RLock()
	defer e.view.RUnlock()
	for _, t := range e.tables() {
		if t.undecided.Load() {
			return true
		}
	}
	return false
}

// Reclaim stops the world and recycles the instances of all activations that were
// left otherwise than by a return, as far as that can be seen then. Info and List,
// and hits that find no free instance, do the same as far as possible while the guest
// runs. Errors: ErrInHandler, ErrClosed, and errors of the stop.
func (e *Engine) Reclaim() error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if err := e.returns.reclaim(); err != nil {
		return err
	}
	if slices.ContainsFunc(e.tables(), (*instances).wanting) {
		_, err := e.collector.run()
		return err
	}
	return nil
}
