package probe

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/code"
	"github.com/guestprobe/guestprobe/probe/flow"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// DefaultOptimizeDelay is how long sites wait to be optimized, together with
// what else comes in that time: the kernel's 5 jiffies at 250 Hz.
const DefaultOptimizeDelay = 20 * time.Millisecond

// laterFactor is how many delays it takes until what the guest may change is
// looked at again.
const laterFactor = 25

// passSites is how many sites one stop of the world optimizes: a stop holds
// every vCPU, so many short ones are better than a long one.
const passSites = 128

// Why a site is not optimized, besides the reasons of package flow.
const (
	notPostHandler = "post_handler"     // a probe there has a post or fault handler
	notNeighbour   = "probe_in_region"  // another probe is armed in the region
	notMirrorEnd   = "mirror_end"       // mirrors of jprobes end there
	notSpace       = "address_space"    // a probe there is for one address space, and the target has several
	notSharedText  = "shared_text"      // the guest does not say that its user text is mapped once and for all
	notNoPlace     = "no_place"         // no address has the int3s that the displacement needs
	notMemory      = "no_detour_memory" // executable memory is used up
	notReach       = "out_of_reach"     // an operand of a displaced instruction
	notMapped      = "not_mapped"       // an address space in use lacks the detour
	notTextChanged = "text_changed"     // the region is not what the image says
	notWaiting     = "waiting"          // for the next pass
	notOff         = "optimization_off" // the global knob
	notDisarmed    = "not_armed"        // disabled, or everything is disarmed
	notUnknown     = "no_function"      // the function is not known
	notOnThisHost  = "host"             // the target cannot place detours
)

// passing are the refusals that may not hold any more when something has changed
// around the site: it is looked at again then.
var passing = map[string]bool{notSharedText: true, notNoPlace: true, notMemory: true, notMapped: true, notTextChanged: true}

// optimizer is the part of the engine that replaces int3s by jumps. Everything
// here is guarded by Engine.mu, except where it says otherwise.
type optimizer struct {
	placer  Detours // nil: the target has none
	detours map[detourKey]*detour
	delay   time.Duration
	off     bool           // the knob; written with view held as well
	timer   *time.Timer    // to the next pass; nil: none is due
	slow    bool           // timer is for later only
	reaper  *time.Timer    // see reapLater
	waiting map[*site]bool // written with view held as well
	later   map[*site]bool // refused for what the guest may yet change; written with view held as well
	funcs   *Functions     // of the image; nil: not asked for yet
	stats   OptimizerStats // written with view held as well
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
// returns after switching off, no site has a jump; after switching on, all that
// may be optimized wait for the next pass. Errors are ErrInHandler, ErrClosed and
// those of the target.
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
		for _, st := range e.sites {
			e.review(w, st, &lost)
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
	return e.pass()
}

// kick sees to it that a pass will run. Callers hold mu.
func (e *Engine) kick() {
	o := &e.opt
	soon := len(o.waiting) > 0
	if o.delay < 0 || e.closing || !soon && len(o.later) == 0 {
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
		if e.lock() != nil {
			return
		}
		defer e.mu.Unlock()
		o.timer = nil
		if err := e.pass(); err != nil && !errors.Is(err, ErrClosed) {
			e.log.Error("probes could not be optimized", "err", err)
		}
		e.kick()
	})
}

// review brings the site's jump in line with what is on it now: it goes at once
// when something stands against it, and the site waits for the next pass when
// nothing does. The world is stopped and view is held. Text that could not be
// restored is logged and added to lost.
func (e *Engine) review(w World, st *site, lost *[]error) {
	d := st.jump.Load()
	why := e.obstacle(st)
	if d != nil && (why != "" || !slices.Equal(d.run, e.stages(st))) {
		e.unoptimize(w, st, lost)
		d = nil
	}
	delete(e.opt.waiting, st)
	delete(e.opt.later, st)
	if st.refused != nil && passing[st.refused.Reason] {
		st.refused = nil
	}
	st.blocked = ""
	switch {
	case d != nil || st.refused != nil:
	case why != "":
		st.blocked = why
	default:
		e.opt.waiting[st] = true
		st.blocked = notWaiting
	}
}

// around reviews the sites whose regions st lies in, or that lie in the region of
// st. The world is stopped.
func (e *Engine) around(w World, st *site, lost *[]error) {
	for k := guest.GVA(1); k < flow.MaxRegion; k++ {
		if x := e.sites[st.addr-k]; x != nil {
			e.review(w, x, lost)
		}
	}
}

// makeRoom takes away the jumps that stand where st is to get its int3. The
// world is stopped.
func (e *Engine) makeRoom(w World, st *site, lost *[]error) {
	for k := guest.GVA(1); k < flow.MaxRegion; k++ {
		if x := e.sites[st.addr-k]; x != nil && x.jump.Load() != nil && x.region.Len > int(k) {
			e.unoptimize(w, x, lost)
		}
	}
}

// obstacle returns what stands against optimizing st now, "" for nothing: the
// kernel's conditions (kprobes C.2), and ours.
func (e *Engine) obstacle(st *site) string {
	switch {
	case e.opt.off:
		return notOff
	case e.disarmed, !st.chain.Load().live(), e.closing, st.gone:
		return notDisarmed
	case st.mirrorEnd.Load():
		return notMirrorEnd
	}
	for _, r := range *st.chain.Load() {
		switch p := r.probe; {
		case p.Post != nil || p.Fault != nil:
			return notPostHandler
		case p.Space != 0:
			return notSpace
		}
	}
	if st.region == nil {
		return "" // how far it goes the pass will find out
	}
	for k := 1; k < st.region.Len; k++ {
		x := e.sites[st.addr+guest.GVA(k)]
		if x != nil && (x.armed.Load() || e.wanted(x)) {
			return notNeighbour
		}
	}
	return ""
}

// stages returns the handler stages of the probes on st when all of them can run
// in the guest, and nil when the host must be asked.
func (e *Engine) stages(st *site) []*Stage {
	if e.can[guest.Level(st.user)].NoStage != "" {
		return nil
	}
	var out, returns []*Stage
	for _, r := range *st.chain.Load() {
		if !r.enabled.Load() {
			continue
		}
		switch {
		case r.ret != nil && r.ret.stage.Load() != nil && !r.ret.again.Load():
			// Behind the others, who shall find the real return address.
			returns = append(returns, r.ret.stage.Load().entry)
		case r.probe.Stage == nil, r.ret != nil, r.jump != nil:
			return nil
		default:
			out = append(out, r.probe.Stage)
		}
	}
	if prof, ok := e.opt.placer.StackProfile(st.user); !ok || int64(int32(prof.Mask)) != int64(prof.Mask) {
		return nil // it could not be an immediate operand
	}
	return append(out, returns...)
}

// planned is what a pass has found out about a site: its detour, or why it has
// none, or neither when something stands against it at the moment.
type planned struct {
	st *site
	d  *detour
	no *Unoptimized
}

// plan finds the detour that st is to have. It makes what is missing, and
// changes no text.
func (e *Engine) plan(st *site) planned {
	refuse := func(reason, detail string) planned {
		return planned{st: st, no: &Unoptimized{Reason: reason, Detail: detail}}
	}
	o := &e.opt
	if o.placer == nil {
		return refuse(notOnThisHost, "the target cannot place detours")
	}
	if why := o.placer.OneMapping(st.user); why != "" {
		return refuse(notSharedText, why)
	}
	if st.region == nil {
		sym, ok := e.target.Symbols().Find(st.addr)
		if !ok {
			return refuse(notUnknown, "no function is known there")
		}
		f, why := e.functions().Of(sym)
		if f == nil {
			return refuse(notUnknown, why)
		}
		reg, no := f.Region(int(st.addr-sym.Addr), flow.OursCalls)
		if no != nil {
			return refuse(string(no.Reason), no.String())
		}
		text := e.target.Symbols().Code(st.addr, reg.Len)
		if len(text) < reg.Len {
			return refuse(notUnknown, "the image ends there")
		}
		st.region, st.text = &reg, text
	}
	if e.obstacle(st) != "" {
		return planned{st: st}
	}
	stages := e.stages(st)
	build := e.exitStage(st.user)
	if stages != nil {
		build = e.stageCode(st.addr, st.user)
	}
	d, err := e.detour(*st.region, st.text, st.user, stages, build)
	switch {
	case errors.Is(err, errNoPlace):
		return refuse(notNoPlace, fmt.Sprintf("%v: %v", err, punOf(st.region.Boundaries)))
	case errors.Is(err, code.ErrReach):
		return refuse(notReach, "an operand or target of a displaced instruction")
	case err != nil:
		return refuse(notMemory, err.Error())
	}
	return planned{st: st, d: d}
}

// pass optimizes what waits. Callers hold mu.
func (e *Engine) pass() error {
	o := &e.opt
	e.view.Lock()
	for st := range o.later {
		st.refused, st.blocked = nil, notWaiting
		o.waiting[st] = true
	}
	clear(o.later)
	e.view.Unlock()
	for len(o.waiting) > 0 {
		// By address, so that where detours are does not depend on chance.
		sites := slices.SortedFunc(maps.Keys(o.waiting), func(a, b *site) int { return cmp.Compare(a.addr, b.addr) })
		batch := make([]planned, 0, passSites)
		for _, st := range sites[:min(passSites, len(sites))] {
			batch = append(batch, e.plan(st))
		}
		if err := e.swap(batch); err != nil {
			return err
		}
	}
	return nil
}

// swap puts the jumps of batch into the text, in one stop, unless there is
// none to put.
func (e *Engine) swap(batch []planned) error {
	o := &e.opt
	jumps := 0
	e.view.Lock()
	for _, p := range batch {
		delete(o.waiting, p.st) // whatever comes of it, or a target that fails would be asked all the time
		if p.d != nil {
			jumps++
		}
	}
	e.view.Unlock()
	settled := false
	settle := func(w World) error {
		settled = true
		for _, p := range batch {
			p.st.refused = p.no
			p.st.blocked = ""
			if p.no != nil && p.no.Reason == notSharedText {
				o.later[p.st] = true
			}
			switch {
			case p.no != nil:
			case p.d == nil:
				p.st.blocked = e.obstacle(p.st)
			default:
				p.st.refused = e.optimize(w, p.st, p.d)
			}
		}
		return nil
	}
	if jumps == 0 {
		e.view.Lock()
		defer e.view.Unlock()
		return settle(nil)
	}
	start := time.Now()
	if err := e.stop(settle); err != nil {
		if !settled {
			// The target could not be stopped now, but may be another time.
			e.view.Lock()
			for _, p := range batch {
				o.later[p.st] = true
			}
			e.view.Unlock()
			e.kick()
		}
		return err
	}
	took := time.Since(start)
	e.view.Lock()
	defer e.view.Unlock()
	o.stats.Passes++
	o.stats.Stopped += took
	o.stats.LongestStop = max(o.stats.LongestStop, took)
	return nil
}

// optimize replaces the int3 of st by its jump. The world is stopped. The whole
// region is compared with what was analysed before anything changes.
func (e *Engine) optimize(w World, st *site, d *detour) *Unoptimized {
	for i := range e.cpus {
		root := w.CPU(i).Root
		for _, a := range append(st.returnMemory(), d.addr, d.entry, d.end-1) {
			home, _ := e.pages.Translate(0, a)
			if pa, ok := e.pages.Translate(root, a); !ok || pa != home {
				return &Unoptimized{Reason: notMapped, Detail: fmt.Sprintf("the page tables at %v have no detour at %v", root, a)}
			}
		}
	}
	old := append([]byte{insn.Int3}, st.text[1:]...)
	jump := d.jump()
	patched := append(jump[:], st.text[insn.JmpLen:]...)
	if err := w.PatchText(st.addr, old, patched); err != nil {
		return &Unoptimized{Reason: notTextChanged, Detail: err.Error()}
	}
	st.jump.Store(d)
	st.blocked = ""
	e.reapLater(st)
	e.opt.stats.Optimized++
	e.opt.stats.Now++
	return nil
}

// unoptimize puts the int3 of st back, and the bytes that the jump has overwritten.
// The world is stopped. When the guest has changed one of those, all stay.
func (e *Engine) unoptimize(w World, st *site, lost *[]error) {
	d := st.jump.Load()
	if d == nil {
		return
	}
	st.jump.Store(nil)
	e.opt.stats.Unoptimized++
	e.opt.stats.Now--
	jump := d.jump()
	patched := append([]byte{insn.Int3}, st.text[1:insn.JmpLen]...)
	if err := w.PatchText(st.addr, jump[:], patched); err != nil {
		err := textError(st, err)
		e.log.Error("guest text was changed under a probe and is left as it is", "err", err)
		*lost = append(*lost, err)
	}
}

// Unoptimized is why a site is not optimized.
type Unoptimized struct {
	Reason string // machine-readable: of flow.Reason, or what stands against it at the moment
	Detail string // for people; may be empty
}

func (e *Engine) initOptimizer(delay time.Duration) {
	o := &e.opt
	if o.delay = delay; delay == 0 {
		o.delay = DefaultOptimizeDelay
	}
	o.placer, _ = e.target.(Detours)
	e.forgetCode()
}

// forgetCode drops everything that depends on the guest's memory and image.
func (e *Engine) forgetCode() {
	o := &e.opt
	e.code.Forget()
	e.slots = map[slotKey]*slot{}
	e.tramps = trampolines{idle: map[retKey][]*retStage{}}
	o.detours = map[detourKey]*detour{}
	o.funcs = nil
	o.waiting, o.later = map[*site]bool{}, map[*site]bool{}
	o.stats.Unoptimized += uint64(o.stats.Now)
	o.stats.Now = 0
}
