package probe

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// retprobe is the kind of kretprobes, with the data that kprobes do not have.
type retprobe struct {
	ordinary

	reg     *registration
	probe   *Kretprobe
	max     int
	current atomic.Pointer[instances] // nil while the code is gone; changes only while the world is stopped
	early   atomic.Pointer[instances] // the one before, with borrowed trampolines: calls return through it, none begins
	cells   []retCell                 // the host's counts
	base    []retBase                 // the counts of shared tables that are gone

	leaves []*registration // of a kretprobe without trampolines

	abandoned atomic.Uint64
	underWay  atomic.Uint64 // when it was unregistered

	// again: the function has returned twice. From then on a record is reused only
	// for the same activation as its last one, which only the host can ensure.
	again atomic.Bool
}

// retCell holds the counts of one kretprobe on one vCPU.
type retCell struct {
	returns atomic.Uint64
	_       [56]byte
}

// describe implements kind.
func (rp *retprobe) describe(i *Info) {
	i.Type = 'r'
	i.MaxActive = rp.max
	for _, t := range rp.tables() {
		i.NoStage = t.noStage
		var buf [8]byte
		t.sweep(0, t.n, t.shared(), buf[:])
		i.InUse, i.HighWater = i.InUse+t.activeCount(), max(i.HighWater, t.highMark())
	}
	if rp.again.Load() {
		i.NoStage = "the function returns twice"
	}
}

// guestStage implements kind: after the others, which must see the real return
// address.
func (rp *retprobe) guestStage(*registration) (s *Stage, last bool) {
	if t := rp.table(); t != nil && t.shared() && !rp.again.Load() {
		return t.entry, true
	}
	return nil, false
}

// table implements kind.
func (rp *retprobe) table() *instances { return rp.current.Load() }

// follow implements kind.
func (rp *retprobe) follow(t *instances) { rp.current.Store(t) }

// tables implements kind: the one for new calls is the last.
func (rp *retprobe) tables() (all []*instances) {
	for _, t := range [...]*instances{rp.early.Load(), rp.table()} {
		if t != nil {
			all = append(all, t)
		}
	}
	return all
}

// retBase are the counts of one vCPU in tables that are gone.
type retBase struct{ handled, filtered, missed, returns atomic.Uint64 }

// traits implements kind.
func (rp *retprobe) traits() traits { return listed | counted | returning }

// place implements kind.
func (rp *retprobe) place(at guest.GVA) { rp.probe.ReturnStage.tellPlaced(at) }

// guestCounts implements kind.
func (rp *retprobe) guestCounts(_ *registration, cpu int) (handled, filtered, missed uint64) {
	handled, filtered, missed, _ = rp.countsInGuest(cpu)
	return handled, filtered, missed
}

// countReturns implements kind. The ends of activations are read before their beginnings.
func (rp *retprobe) countReturns(byCPU []Stats) (abandoned, underWay uint64) {
	abandoned, underWay = rp.abandoned.Load(), rp.underWay.Load()
	for i := range byCPU {
		_, _, _, n := rp.countsInGuest(i)
		byCPU[i].Returns = n + rp.cells[i].returns.Load()
	}
	return abandoned, underWay
}

// countsInGuest returns the counts of a vCPU in the guest.
func (rp *retprobe) countsInGuest(cpu int) (handled, filtered, missed, returns uint64) {
	b := &rp.base[cpu]
	handled, filtered, missed, returns = b.handled.Load(), b.filtered.Load(), b.missed.Load(), b.returns.Load()
	if t := rp.table(); t != nil && t.shared() {
		h, f, m := t.counts(cpu)
		handled, filtered, missed, returns = handled+h, filtered+f, missed+m, returns+t.cell(cpu, cellReturns).Load()
	}
	return handled, filtered, missed, returns
}

// outstandingCalls returns how many calls were counted as handled and neither as
// returned nor as abandoned. The world is stopped. A guest that writes to its counts
// can make the number appear negative.
func (rp *retprobe) outstandingCalls() uint64 {
	s := rp.reg.totals(make([]Stats, len(rp.cells)))
	return uint64(max(0, int64(s.Handled-s.Returns-s.Abandoned-s.UnderWay)))
}

// close implements kind. Calls that can be recognized as abandoned are abandoned; all
// others are under way.
func (rp *retprobe) close(w World) {
	for _, t := range rp.tables() {
		var buf [8]byte
		t.reclaim(w, buf[:])
	}
	rp.underWay.Store(rp.outstandingCalls())
	rp.end()
}

// abandon implements kind: calls that are outstanding are abandoned.
func (rp *retprobe) abandon() {
	rp.abandoned.Add(rp.outstandingCalls())
	rp.end()
}

// end implements kind: outstanding calls return without a handler.
func (rp *retprobe) end() {
	if rp.table() == nil {
		return
	}
	for i := range rp.base {
		b := &rp.base[i]
		h, f, m, r := rp.countsInGuest(i)
		b.handled.Store(h)
		b.filtered.Store(f)
		b.missed.Store(m)
		b.returns.Store(r)
	}
	for _, t := range rp.tables() {
		t.words[wordRun].Store(0)
		t.dead.Store(true)
	}
	rp.follow(nil)
	rp.early.Store(nil)
}
