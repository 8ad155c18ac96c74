package probe

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/code"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// passSites is the number of sites that one stop of the world optimizes: a stop holds
// every vCPU, so several short stops are better than one long stop.
const passSites = 128

// planned is the result of a pass for a site: its detour, or why it has none, or
// neither if there is an obstacle at the moment.
type planned struct {
	st *site
	d  *detour
	no *Unoptimized
}

// findRegion determines the region that a jump at st displaces, or why there can be
// no jump.
func (o *optimizer) findRegion(st *site) *Unoptimized {
	if o.placer == nil {
		return &Unoptimized{Reason: notOnThisHost, Detail: "the target cannot place detours"}
	}
	if why := o.can[guest.Level(st.user)].NoExec; why != "" {
		return &Unoptimized{Reason: notMemory, Detail: why}
	}
	if why := o.placer.OneMapping(st.user); why != "" {
		return &Unoptimized{Reason: notSharedText, Detail: why}
	}
	if st.region != nil {
		return nil
	}
	sym, ok := o.target.Symbols().Find(st.addr)
	if !ok {
		return &Unoptimized{Reason: notUnknown, Detail: "no function is known there"}
	}
	f, why := o.places.functions().Analyze(sym)
	if f == nil {
		return &Unoptimized{Reason: notUnknown, Detail: why}
	}
	reg, no := f.Region(int(st.addr-sym.Addr), flow.OursCalls)
	if no != nil {
		return &Unoptimized{Reason: string(no.Reason), Detail: no.String()}
	}
	text := o.target.Symbols().Code(st.addr, reg.Len)
	if len(text) < reg.Len {
		return &Unoptimized{Reason: notUnknown, Detail: "the image ends there"}
	}
	st.region, st.text = &reg, text
	return nil
}

// planJump finds the detour that st is to have. It makes the parts that are missing,
// and changes no text.
func (o *optimizer) planJump(st *site) planned {
	if no := o.findRegion(st); no != nil {
		return planned{st: st, no: no}
	}
	if o.obstacle(st) != "" {
		return planned{st: st}
	}
	if !bytes.HasPrefix(st.text, st.bytes()) { // the guest has an int3 of its own there, which is hit after ours
		return planned{st: st, no: &Unoptimized{Reason: notTextChanged, Detail: "the guest has changed the instruction"}}
	}
	if !o.jumpsOnly(st) && !o.holds(st, append([]byte{x86.Int3}, st.text[1:]...)) {
		return planned{st: st, no: &Unoptimized{Reason: notTextChanged}}
	}
	d, err := o.buildDetour(st, o.stages(st))
	no := &Unoptimized{Reason: notMemory}
	switch {
	case err == nil:
		return planned{st: st, d: d}
	case errors.Is(err, errNoPlace):
		no = &Unoptimized{Reason: notNoPlace, Detail: fmt.Sprintf("%v: %v", err, punOf(st.region.Boundaries))}
	case errors.Is(err, code.ErrReach):
		no = &Unoptimized{Reason: notReach, Detail: "an operand or target of a displaced instruction"}
	default:
		no.Detail = err.Error()
	}
	return planned{st: st, no: no}
}

// pass optimizes the waiting sites. Callers hold mu.
func (o *optimizer) pass() error {
	o.passing = true
	defer func() {
		o.passing = false
		o.kick()
	}()
	o.view.Lock()
	for st := range maps.Clone(o.later) {
		o.setWaiting(st)
	}
	o.view.Unlock()
	for len(o.waiting) > 0 {
		// By address, so that the addresses of detours are deterministic.
		sites := slices.SortedFunc(maps.Keys(o.waiting), func(a, b *site) int { return cmp.Compare(a.addr, b.addr) })
		for sites := range slices.Chunk(sites, passSites) {
			batch := make([]planned, 0, passSites)
			for _, st := range sites {
				if o.waiting[st] {
					batch = append(batch, o.planJump(st))
				}
			}
			if err := o.swap(batch); err != nil {
				return err
			}
		}
	}
	return nil
}

// swap puts the jumps of batch into the text in one stop. It does not stop the world
// for an empty batch.
func (o *optimizer) swap(batch []planned) error {
	settled := false
	settle := func(w World) error {
		settled = true
		for _, p := range batch {
			if p.d != nil {
				p.no = o.optimize(w, p.st, p.d)
			}
			if p.no != nil {
				o.setRefused(p.st, *p.no)
			} else if p.d == nil {
				o.setBlocked(p.st, o.obstacle(p.st))
			}
		}
		return nil
	}
	if !slices.ContainsFunc(batch, func(p planned) bool { return p.d != nil }) {
		o.view.Lock()
		defer o.view.Unlock()
		return settle(nil)
	}
	start := time.Now()
	err := o.stop(settle)
	took := time.Since(start)
	o.view.Lock()
	defer o.view.Unlock()
	if !settled {
		// The target could not be stopped now, but may be another time.
		for _, p := range batch {
			o.set(p.st, &optimization{state: jumpLater, why: Unoptimized{Reason: notWaiting}})
		}
	}
	if err != nil {
		return err
	}
	o.stats.Passes++
	o.stats.Stopped += took
	o.stats.LongestStop = max(o.stats.LongestStop, took)
	return nil
}

// optimize replaces the int3 of st by its jump, or says why it does not. The world is
// stopped. It compares the whole region with the analyzed code before it changes
// anything.
func (o *optimizer) optimize(w World, st *site, d *detour) *Unoptimized {
	_, kernel := o.target.Symbols().(Kernel)
	for i := range o.cpus {
		s := w.CPU(i)
		root := s.Root
		if _, ok := o.pages.Translate(root, st.addr); !ok || kernel && s.CPL == 3 && !st.user {
			continue // tables of CPL3 under page-table isolation: they do not run this text
		}
		for _, a := range append(st.returnMemory(), d.addr, d.entry, d.end-1) {
			home, _ := o.pages.Translate(0, a)
			if pa, ok := o.pages.Translate(root, a); !ok || pa != home {
				return &Unoptimized{Reason: notMapped, Detail: fmt.Sprintf("the page tables at %v have no detour at %v", root, a)}
			}
		}
	}
	if o.freed(st) {
		return &Unoptimized{Reason: notTextChanged, Detail: "it is no text any more"}
	}
	old := append([]byte{x86.Int3}, st.text[1:]...)
	jump := d.jump()
	patched := append(jump[:], st.text[x86.JmpLen:]...)
	if err := w.PatchText(st.addr, old, patched); err != nil {
		return &Unoptimized{Reason: notTextChanged, Detail: err.Error()}
	}
	d.on.Store(st)
	o.show(st, d)
	o.set(st, &optimization{state: jumpPlaced, detour: d})
	return nil
}

// unoptimize restores the int3 of st, and the bytes that the jump has overwritten.
// The world is stopped. The guest's changes stay, and the site is disarmed if its own
// instruction has changed.
func (o *optimizer) unoptimize(w World, st *site, lost *[]error) {
	d := st.detour()
	if d == nil {
		return
	}
	now, before := st.patchedText()
	o.set(st, noJump)
	back := append([]byte{x86.Int3}, before[1:x86.JmpLen]...)
	if err := o.withdraw(w, st, now[:x86.JmpLen], back); err != nil {
		if o.holds(st, now[:x86.JmpLen]) {
			o.pinned = append(o.pinned, d)
		}
		o.reportChanged(textError(st, err), lost)
		_ = o.abandon(w, st) // it is the same error
	}
}

// reportChanged reports text that the guest has changed under a probe.
func (o *optimizer) reportChanged(err error, lost *[]error) {
	o.log.Error("guest text was changed under a probe and is left as it is", "err", err)
	*lost = append(*lost, err)
}
