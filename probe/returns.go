package probe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"syscall"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/code"
)

// returns makes the tables of kretprobes, and recycles records whose activations will
// never return. It is guarded by Engine.mu.
type returns struct {
	*control
	opt    *optimizer
	look   func() error          // the collector's: for tables that want it
	reaper *time.Timer           // nil: no kretprobe has trampolines
	missed map[*instances]uint64 // calls, when the reaper last looked
}

// errNotShared is the reason why a kretprobe stays on the host.
var errNotShared = errors.New("this guest has no memory that host and guest share")

// prepare implements kind: if the probe's handlers can run in the guest, the guest
// shares the table.
func (rp *retprobe) prepare(x *returns, st *site) (*instances, *Error) {
	var why error
	if rp.probe.ReturnStage != nil {
		t := newInstances(&x.core, rp, st)
		if why = x.share(t); why == nil {
			return t, nil
		}
	}
	t := newInstances(&x.core, rp, st)
	if x.usesLeaves(st.user) {
		t.left = true
		t.setMemory(make([]byte, t.size()))
		return t, nil
	}
	if why != nil {
		t.noStage = why.Error()
		t.short = errors.Is(why, syscall.ENOMEM) || errors.Is(why, code.ErrNoMemory)
	}
	t.setMemory(make([]byte, t.size()))
	if x.can[guest.Level(t.user)].NoExec == "" {
		x.show(t)
	}
	if err := x.put(t); err != nil {
		if t.shown != nil {
			x.opt.placer.FreeShared(t.shownAt)
		}
		detail := fmt.Sprintf("%d instances", t.n)
		if x.can[guest.Level(t.user)].NoExec != "" {
			detail += fmt.Sprintf("; before the engine has memory in the guest there are %d trampolines for all return probes: attach the others once the guest's kernel has started", len(x.padding(t.user)))
		}
		e := newError(CodeNoInstances, "no memory for the trampolines", detail)
		e.Cause = err
		return nil, e
	}
	return t, nil
}

// share gives t memory that the guest shares, and its code.
func (x *returns) share(t *instances) error {
	if can := x.can[guest.Level(t.user)]; can.NoStage != "" || can.NoExec != "" {
		return errors.New(cmp.Or(can.NoStage, can.NoExec))
	}
	if x.opt.placer == nil {
		return errNotShared
	}
	if n := t.stack(); n > MaxStageStack {
		return fmt.Errorf("its handlers need %d bytes of the interrupted stack, and %d may be", n, MaxStageStack)
	}
	prof, why := x.opt.profile(t.user, t.stages()...)
	if why != "" {
		return errors.New(why)
	}
	if p := t.tasks; p != nil && (p.GS != prof.GS || p.StackMask != prof.StackMask || p.StackMagic != prof.StackMagic || p.MagicOff != prof.MagicOff) {
		t.tasks = nil // it is about other stacks
	}
	t.prof, t.cpus = prof, len(x.cpus)
	t.n = 1 << bits.Len(uint(t.n-1)) // the guest's code uses it as a mask
	if uint64(t.n)*uint64(t.stride) > math.MaxInt32/2 {
		return errors.New("its instances take too much memory")
	}
	base, b, err := x.opt.placer.AllocShared(t.size(), t.user)
	if err != nil {
		return err
	}
	t.base = base
	t.setMemory(b)
	if err := x.put(t); err != nil {
		x.opt.placer.FreeShared(base)
		return err
	}
	t.fill()
	t.entry = t.entryStage()
	for _, s := range t.stages() {
		s.uses++
	}
	return nil
}

// put makes the code of t.
func (x *returns) put(t *instances) error {
	if why := x.can[guest.Level(t.user)].NoExec; why != "" {
		return x.borrow(t, why)
	}
	exit, err := x.opt.exitStage(t.user)(0, nil)
	if err != nil {
		return err
	}
	return x.code.Put(t.site, t.user, t, func(at guest.GVA) ([]byte, error) { return t.assemble(at, exit.code), nil })
}

// borrow gives t trampolines before there is memory for any: int3s that the guest's
// kernel has in its text, after returns and between functions, that are never
// executed. They remain the guest's own, and are not written. why is the reason for
// the lack of memory.
func (x *returns) borrow(t *instances, why string) error {
	var b [1]byte
	for _, a := range x.padding(t.user) {
		if x.code.ResidentAt(a) == nil && x.target.ReadMemory(0, a, b[:]) == nil && b[0] == x86.Int3 {
			if t.lent = append(t.lent, a); len(t.lent) == t.n {
				x.code.Lend(t.lent, t)
				return nil
			}
		}
	}
	t.lent = nil
	return fmt.Errorf("%w, and the guest has too few int3s that are never executed: %s", code.ErrNoMemory, why)
}

// padding returns the places that borrow can use.
func (k *core) padding(user bool) []guest.GVA {
	if kernel, ok := k.target.Symbols().(Kernel); ok && !user && k.can[0].NoBreakpoint == "" {
		return kernel.Padding()
	}
	return nil
}

// tables returns the tables of all registered kretprobes. Callers hold Engine.view or
// Engine.mu.
func (k *core) tables() []*instances {
	var out []*instances
	for _, st := range k.sites.All() {
		for _, r := range *st.chain.Load() {
			out = append(out, r.kind.tables()...)
		}
	}
	return out
}

// move gives kretprobes with borrowed trampolines tables in the engine's memory, if
// there is some by now. Calls under way return through the old ones. Callers hold mu.
func (x *returns) move() error {
	moved := map[*retprobe]*instances{}
	var errs []error
	for _, old := range x.tables() {
		if old.lent == nil || old.rp.table() != old || x.can[guest.Level(old.user)].NoExec != "" {
			continue
		}
		if t, err := old.rp.prepare(x, old.rp.reg.site); err != nil {
			errs = append(errs, err)
		} else {
			moved[old.rp] = t
		}
	}
	if len(moved) == 0 {
		return errors.Join(errs...)
	}
	err := x.stop(func(w World) error {
		for rp, t := range moved {
			rp.early.Store(rp.current.Swap(t))
			x.opt.review(w, rp.reg.site, &errs)
		}
		return nil
	})
	if err == nil && slices.ContainsFunc(slices.Collect(maps.Values(moved)), (*instances).reaped) {
		x.startReaper()
	}
	return errors.Join(append(errs, err)...)
}

// returnMemory returns the bounds of the memory that the kretprobes of st use in the
// guest.
func (st *site) returnMemory() []guest.GVA {
	var out []guest.GVA
	for _, r := range *st.chain.Load() {
		if t := r.kind.table(); t != nil && t.shared() {
			out = append(out, t.tramps, t.end-1, t.base, t.base+guest.GVA(len(t.bytes)-1))
		}
	}
	return out
}

// save reads the counts of all tables, which are lost with a guest that no longer
// runs. Activations that were under way are abandoned.
func (x *returns) save() {
	x.view.Lock()
	defer x.view.Unlock()
	for _, t := range x.tables() {
		t.rp.abandon()
	}
}

// reclaim reclaims the records of all tables, with the world stopped. Callers hold mu.
func (x *returns) reclaim() error {
	return x.stop(func(w World) error {
		var buf [8]byte
		for _, t := range x.tables() {
			t.reclaim(w, buf[:])
		}
		return nil
	})
}

// reapDelay is how often the engine checks whether kretprobes miss calls for want of
// records: records whose activations will never return, or that are kept for a return
// address (moved.go).
const reapDelay = 50 * time.Millisecond

// reaped reports whether the reaper looks at t.
func (t *instances) reaped() bool { return !t.left && t.lent == nil }

// startReaper starts the reaper, which runs while there is a kretprobe with
// trampolines. A hit on the host that finds no free record looks for abandoned ones
// itself, unless the guest takes records too.
func (x *returns) startReaper() {
	if x.reaper != nil || x.opt.delay < 0 {
		return
	}
	x.missed = map[*instances]uint64{}
	x.reaper = time.AfterFunc(reapDelay, func() {
		if x.lock() != nil {
			return
		}
		defer x.mu.Unlock()
		if x.reap() {
			x.reaper.Reset(reapDelay)
		} else {
			x.reaper = nil
		}
	})
}

// reap recycles records where calls were missed since the last time, and moves
// kretprobes whose functions return twice to the host. It reports whether any
// kretprobe has trampolines. Callers hold mu.
func (x *returns) reap() (any bool) {
	short, want := false, false
	var twice []*site
	var buf [8]byte
	missed := map[*instances]uint64{}
	for _, t := range x.tables() {
		if !t.reaped() {
			continue
		}
		any = true
		if !t.shared() {
			want = want || t.wanting()
			continue
		}
		r := t.rp.reg
		if d := r.site.detour(); t.rp.again.Load() && d != nil && d.run != nil {
			twice = append(twice, r.site)
		}
		for i := range r.cells {
			missed[t] += r.stats(i).Missed
		}
		if missed[t] != x.missed[t] {
			t.sweep(0, t.n, true, buf[:])
			short = short || t.undecided.Load()
			if t.words[wordUsed].Load() < uint64(t.max) {
				t.crowded.Store(true)
			}
		}
		want = want || t.wanting()
	}
	x.missed = missed
	if len(twice) != 0 {
		if err := x.moveToHost(twice); err != nil {
			x.log.Warn("kretprobes could not be moved to the host", "err", err)
		}
	}
	if short {
		if err := x.reclaim(); err != nil {
			x.log.Warn("abandoned activations could not be recycled", "err", err)
		}
	}
	if want {
		if err := x.look(); err != nil {
			x.log.Warn("the guest's memory could not be searched for return addresses", "err", err)
		}
	}
	return any
}

// moveToHost moves sites whose kretprobes do not belong in the guest any more to the
// host. Callers hold mu.
func (x *returns) moveToHost(sites []*site) error {
	return x.stop(func(w World) error {
		var lost []error
		for _, st := range sites {
			x.opt.review(w, st, &lost)
		}
		return errors.Join(lost...)
	})
}
