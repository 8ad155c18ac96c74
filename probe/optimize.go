package probe

import (
	"errors"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// DefaultOptimizeDelay is how long sites wait to be optimized, together with others
// that become ready in that time: the kernel's 5 jiffies at 250 Hz.
const DefaultOptimizeDelay = 20 * time.Millisecond

// laterFactor is how many delays pass until a site whose obstacle the guest may
// remove is examined again.
const laterFactor = 25

// maxRegion is the largest number of bytes that a jump displaces.
const maxRegion = x86.JmpLen - 1 + x86.MaxLen

// optimizer replaces int3s by jumps. Everything here is guarded by Engine.mu; fields
// that listings read are written with view held too.
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
	states  map[optimization]*optimization // see common
	pinned  []*detour                      // changed text of the guest may lead there
	waiting map[*site]bool                 // the sites in that state; for listings
	later   map[*site]bool                 // likewise
	stats   OptimizerStats                 // for listings
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
	o.states = map[optimization]*optimization{}
	o.waiting, o.later = map[*site]bool{}, map[*site]bool{}
	o.stats.Unoptimized += uint64(o.stats.Now)
	o.stats.Now = 0
}

// OptimizerStats says what the optimizer has done since the engine was made.
type OptimizerStats struct {
	Passes      uint64        // stops of the world that optimized
	Optimized   uint64        // sites that got their jump
	Unoptimized uint64        // sites that lost it again, or were removed with it
	Now         int           // sites that are optimized
	Waiting     int           // sites that the next pass will look at
	Stopped     time.Duration // of all passes: from asking the vCPUs to stop until they ran again
	LongestStop time.Duration // of these the longest
}

// kick ensures that a pass will run. Callers hold mu.
func (o *optimizer) kick() {
	soon := len(o.waiting) > 0
	if o.passing || o.delay < 0 || o.closing || !soon && len(o.later) == 0 {
		return
	}
	if o.timer != nil && (!soon || !o.slow || !o.timer.Stop()) {
		return // it is early enough, or about to run
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

// review brings the site's jump in line with the probes on it now: it removes the
// jump if there is an obstacle, and otherwise queues the site for the next pass. The
// world is stopped. Text that could not be restored is logged and added to lost.
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

// reviewAround reviews the sites whose regions contain st. The world is stopped.
func (o *optimizer) reviewAround(w World, st *site, lost *[]error) {
	for k := guest.GVA(1); k < maxRegion; k++ {
		if x := o.sites.Find(st.addr - k); x != nil {
			o.review(w, x, lost)
		}
	}
}

// makeRoom removes the jumps at the place where st is to get its int3. The world is
// stopped.
func (o *optimizer) makeRoom(w World, st *site, lost *[]error) {
	if o.jumpsOnly(st) {
		return // replaceJump decides
	}
	for k := guest.GVA(1); k < maxRegion; k++ {
		if x := o.sites.Find(st.addr - k); x != nil && x.detour() != nil && x.region.Len > int(k) {
			o.unoptimize(w, x, lost)
		}
	}
}

// obstacle returns why st cannot be optimized now, or "" if it can: the kernel's
// conditions (kprobes C.2), and ours.
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
		return "" // the pass will determine the region
	}
	for k := 1; k < st.region.Len; k++ {
		x := o.sites.Find(st.addr + guest.GVA(k))
		if x != nil && (x.armed.Load() || o.wanted(x)) {
			return notNeighbour
		}
	}
	return ""
}

// stages returns the handler stages of the probes on st if all of them can run in the
// guest, and nil if the host is needed.
func (o *optimizer) stages(st *site) []*Stage {
	if _, ok := st.reportedAddr(); !ok || o.can[guest.Level(st.user)].NoStage != "" {
		return nil
	}
	var out, returns []*Stage
	for _, r := range *st.chain.Load() {
		if !r.enabled.Load() {
			continue
		}
		switch s, last := r.kind.guestStage(r); {
		case s == nil:
			return nil
		case last:
			returns = append(returns, s)
		default:
			out = append(out, s)
		}
	}
	out = append(out, returns...)
	if _, why := o.profile(st.user, out...); why != "" || !o.walkable(st, out) {
		return nil
	}
	return out
}

// profile returns how stages at code of that privilege determine their vCPU, or why
// these cannot run.
func (o *optimizer) profile(user bool, stages ...*Stage) (p guest.Profile, why string) {
	p, ok := o.placer.Profile(user)
	switch {
	case !ok, !p.GS && int64(int32(p.StackMask)) != int64(p.StackMask): // it could not be an immediate operand
		return p, "the guest has no profile that says which vCPU code runs on"
	case o.can[guest.Level(user)].NoFault == "":
		return p, ""
	}
	faults := func(x *Stage) bool { return len(x.Fixups) != 0 }
	if !p.GS || slices.ContainsFunc(stages, faults) { // the stack that identifies the vCPU may not exist
		return p, o.can[guest.Level(user)].NoFault
	}
	return p, ""
}
