package probe

import (
	"errors"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// DefaultOptimizeDelay is how long sites wait to be optimized, together with
// what else comes in that time: the kernel's 5 jiffies at 250 Hz.
const DefaultOptimizeDelay = 20 * time.Millisecond

// laterFactor is how many delays it takes until what the guest may change is
// looked at again.
const laterFactor = 25

// maxRegion is the most bytes that a jump displaces.
const maxRegion = x86.JmpLen - 1 + x86.MaxLen

// optimizer replaces int3s by jumps. Everything here is guarded by Engine.mu; what
// listings read is written with view held as well.
type optimizer struct {
	*control
	places *places
	placer Detours // nil: the target has none
	delay  time.Duration

	off     bool        // the knob; for listings
	timer   *time.Timer // to the next pass; nil: none is due
	slow    bool        // timer is for later only
	passing bool        // a pass is under way
	detours map[detourKey]*detour
	pinned  []*detour      // text that the guest has changed may lead there
	waiting map[*site]bool // the sites in that state; for listings
	later   map[*site]bool // likewise
	stats   OptimizerStats // for listings
}

func newOptimizer(k *control, p *places, delay time.Duration) *optimizer {
	if delay == 0 {
		delay = DefaultOptimizeDelay
	}
	o := &optimizer{control: k, places: p, delay: delay}
	o.placer, _ = k.target.(Detours)
	o.forget()
	return o
}

// forget drops everything that depends on the guest's memory.
func (o *optimizer) forget() {
	o.detours, o.pinned = map[detourKey]*detour{}, nil
	o.waiting, o.later = map[*site]bool{}, map[*site]bool{}
	o.stats.Unoptimized += uint64(o.stats.Now)
	o.stats.Now = 0
}

// OptimizerStats tell what the optimizer has done since the engine was made.
type OptimizerStats struct {
	Passes      uint64        // stops of the world that optimized
	Optimized   uint64        // sites that got their jump
	Unoptimized uint64        // sites that lost it again, or went away with it
	Now         int           // sites that are optimized
	Waiting     int           // sites that the next pass will look at
	Stopped     time.Duration // of all passes: from asking the vCPUs to stop until they ran again
	LongestStop time.Duration // of these the longest
}

// OptimizerStats may be called from any goroutine.
func (e *Engine) OptimizerStats() OptimizerStats {
	e.view.RLock()
	defer e.view.RUnlock()
	s := e.opt.stats
	s.Waiting = len(e.opt.waiting)
	return s
}

// Optimization reports whether sites are optimized at all: what SetOptimization
// said last, true at first. Any goroutine.
func (e *Engine) Optimization() bool {
	e.view.RLock()
	defer e.view.RUnlock()
	return !e.opt.off
}

// SetOptimization is the kernel's sysctl debug.kprobes-optimization. When it
// returns after switching off, no site has a jump that could be an int3; after
// switching on, all that may be optimized wait for the next pass. Errors are
// ErrInHandler, ErrClosed and those of the target.
func (e *Engine) SetOptimization(on bool) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if e.opt.off == !on {
		return nil
	}
	var lost []error
	err := e.stop(func(w World) error {
		e.opt.off = !on
		for _, st := range e.sites.All() {
			e.opt.review(w, st, &lost)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return errors.Join(lost...)
}

// Optimize runs the optimizer now, instead of after the delay, and returns when
// no site waits: each is optimized or has a reason why not (Info.Unoptimized).
// Errors are ErrInHandler, ErrClosed and those of the target.
func (e *Engine) Optimize() error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	return e.opt.pass()
}

// kick sees to it that a pass will run. Callers hold mu.
func (o *optimizer) kick() {
	soon := len(o.waiting) > 0
	if o.passing || o.delay < 0 || o.closing || !soon && len(o.later) == 0 {
		return
	}
	if o.timer != nil && (!soon || !o.slow || !o.timer.Stop()) {
		return // it comes early enough, or is about to
	}
	delay := o.delay
	if !soon {
		delay *= laterFactor
	}
	o.slow = !soon
	o.timer = time.AfterFunc(delay, func() {
		if o.lock() != nil {
			return
		}
		defer o.mu.Unlock()
		o.timer = nil
		if err := o.pass(); err != nil && !errors.Is(err, ErrClosed) {
			o.log.Error("probes could not be optimized", "err", err)
		}
	})
}

// review brings the site's jump in line with what is on it now: it goes at once
// when something stands against it, and the site waits for the next pass when
// nothing does. The world is stopped. Text that could not be restored is logged
// and added to lost.
func (o *optimizer) review(w World, st *site, lost *[]error) {
	if o.jumpsOnly(st) {
		if err := o.replaceJump(w, st); err != nil {
			o.reportChanged(err, lost)
		}
		return
	}
	why := o.obstacle(st)
	if d := st.detour(); d != nil && (why != "" || !slices.Equal(d.run, o.stages(st))) {
		o.unoptimize(w, st, lost)
	}
	switch now := st.jump.Load(); {
	case now.state == jumpPlaced, now.state == jumpRefused && !passing[now.why.Reason]:
	case why != "":
		o.setBlocked(st, why)
	default:
		o.setWaiting(st)
	}
}

// reviewAround reviews the sites whose regions st lies in. The world is stopped.
func (o *optimizer) reviewAround(w World, st *site, lost *[]error) {
	for k := guest.GVA(1); k < maxRegion; k++ {
		if x := o.sites.Find(st.addr - k); x != nil {
			o.review(w, x, lost)
		}
	}
}

// makeRoom takes away the jumps that stand where st is to get its int3. The world is
// stopped.
func (o *optimizer) makeRoom(w World, st *site, lost *[]error) {
	if o.jumpsOnly(st) {
		return // replaceJump finds out
	}
	for k := guest.GVA(1); k < maxRegion; k++ {
		if x := o.sites.Find(st.addr - k); x != nil && x.detour() != nil && x.region.Len > int(k) {
			o.unoptimize(w, x, lost)
		}
	}
}

// obstacle returns what stands against optimizing st now, "" for nothing: the
// kernel's conditions (kprobes C.2), and ours.
func (o *optimizer) obstacle(st *site) string {
	switch {
	case o.off && !o.jumpsOnly(st):
		return notOff
	case o.disarmed, !st.chain.Load().live(), o.closing, st.gone:
		return notDisarmed
	case st.changed:
		return notTextChanged
	case st.mirrorEnd.Load():
		return notMirrorEnd
	}
	for _, r := range *st.chain.Load() {
		switch {
		case r.watched():
			return notPostHandler
		case r.space != 0:
			return notSpace
		}
	}
	if st.region == nil {
		return "" // how far it goes the pass will find out
	}
	for k := 1; k < st.region.Len; k++ {
		x := o.sites.Find(st.addr + guest.GVA(k))
		if x != nil && (x.armed.Load() || o.wanted(x)) {
			return notNeighbour
		}
	}
	return ""
}

// stages returns the handler stages of the probes on st when all of them can run
// in the guest, and nil when the host must be asked.
func (o *optimizer) stages(st *site) []*Stage {
	if _, ok := st.reportedAddr(); !ok || o.can[guest.Level(st.user)].NoStage != "" {
		return nil
	}
	var out, returns []*Stage
	for _, r := range *st.chain.Load() {
		if !r.enabled.Load() {
			continue
		}
		switch t := r.table(); {
		case t != nil && t.shared() && !r.ret.again.Load():
			// Behind the others, who shall find the real return address.
			returns = append(returns, t.entry)
		case r.stage == nil, r.stage.Stack > MaxStageStack, r.ret != nil, r.jprobe != nil:
			return nil
		default:
			out = append(out, r.stage)
		}
	}
	out = append(out, returns...)
	if _, why := o.profile(st.user, out...); why != "" {
		return nil
	}
	return out
}

// profile returns how stages at code of that privilege find their vCPU, or why these
// cannot run.
func (o *optimizer) profile(user bool, stages ...*Stage) (p guest.Profile, why string) {
	p, ok := o.placer.Profile(user)
	switch {
	case !ok, !p.GS && int64(int32(p.StackMask)) != int64(p.StackMask): // it could not be an immediate operand
		return p, "the guest has no profile that says which vCPU code runs on"
	case o.can[guest.Level(user)].NoFault == "":
		return p, ""
	}
	faults := func(x *Stage) bool { return len(x.Fixups) != 0 }
	if !p.GS || slices.ContainsFunc(stages, faults) { // the stack that tells may be none
		return p, o.can[guest.Level(user)].NoFault
	}
	return p, ""
}
