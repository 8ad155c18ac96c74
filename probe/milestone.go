package probe

import "github.com/guestprobe/guestprobe/guest"

// Milestone is something that a guest comes to on its own, and that probes have to know
// of before it goes on.
type Milestone uint8

const (
	// ModuleComes: a module is in the guest's memory none of whose code has run. The target
	// has it known, and calls Engine.TargetChanged.
	ModuleComes Milestone = iota
	// MemoryLeaves: the guest is about to copy its memory away, to be put back perhaps where
	// this engine is not, or to get such a copy in place of it. The target calls
	// Engine.Withdraw.
	MemoryLeaves
	// TextRead: a debugger of the guest's own asks for the bytes of an instruction. The engine gives it the guest's own; the
	// target hears nothing of it.
	TextRead
	// TextWritten: the guest is about to write to its text, while there are probes in text whose writes the target does not see. It
	// calls Engine.WriteText.
	TextWritten

	// NumMilestones is how many there are.
	NumMilestones
)

// Milestones is what a Target adds whose guest is a kernel of which such is known.
type Milestones interface {
	// Milestone returns the functions that the guest calls at m, none where none is known.
	Milestone(m Milestone) []string
	// Passes says that vCPU cpu is at the entry of one of them. It is called on the vCPU's own
	// thread inside a hit. Before the vCPU goes on the target does on another thread what m asks
	// for.
	Passes(cpu int, m Milestone)
}

// awaited are the engine's own probes at milestones. Engine.mu guards them.
type awaited struct {
	probes, ofModules int // registrations, and those by MODULE:SYMBOL
	inModules         int // and these, and those in the text of modules
	at                [NumMilestones][]*registration
}

// wanted reports whether a probe is to be at m.
func (a *awaited) wanted(m Milestone) bool {
	switch m {
	case ModuleComes:
		return a.ofModules > 0
	case TextWritten:
		return a.inModules > 0
	}
	return a.probes > 0
}

// count adds n for each of regs that is not the engine's own.
func (a *awaited) count(regs []*registration, n int) {
	for _, r := range regs {
		if r.kind == kindMilestone || r.kind == kindMirrorEnd {
			continue
		}
		a.probes += n
		if r.where.ofModule() {
			a.ofModules += n
		}
		if r.inModule = r.inModule || n > 0 && (r.where.ofModule() || r.engine.ofModule(r.site)); r.inModule {
			a.inModules += n
		}
	}
}

// awaitMilestones puts probes of the engine's own on the functions by which the guest
// says that it is at a milestone, while there are probes that need it: so those on a module are
// armed before its first instruction runs. Where that cannot be, they are when the target sees
// the module. What that will want to know of the kernel's text is found out now, not while the
// guest waits.
func (e *Engine) awaitMilestones() {
	t, ok := e.target.(Milestones)
	if !ok {
		return
	}
	for m := range NumMilestones {
		if !e.awaited.wanted(m) {
			continue
		}
		at := &e.awaited.at[m]
		for _, r := range *at {
			if e.gone[r] {
				e.view.Lock()
				delete(e.gone, r)
				e.view.Unlock()
				*at = nil
			}
		}
		if m == ModuleComes {
			e.places.functions().indexNewPieces()
		}
		if *at != nil {
			continue
		}
		for _, symbol := range t.Milestone(m) {
			if r := e.await(t, m, symbol); r != nil {
				*at = append(*at, r)
			}
		}
	}
}

// await puts a probe on a function that says that the guest is at m. Callers hold mu.
func (e *Engine) await(t Milestones, m Milestone, symbol string) *registration {
	pre := func(c *Context) int {
		t.Passes(c.CPU, m)
		return 0
	}
	if m == TextRead {
		pre = e.readText
	}
	r := &registration{tally: e.newTally("milestone"), engine: e, kind: kindMilestone, where: where{symbol: symbol}, pre: pre}
	b := newBatch(1)
	var err error
	if no := e.admit(b, r); no != nil {
		err = no
	} else {
		err = e.install(b)
	}
	if err != nil {
		e.log.Info("the guest cannot be awaited where it comes to", "symbol", symbol, "err", err)
		return nil
	}
	return r
}

// unawait adds to those that are taken off the engine's own that the others leave without
// need. The world is stopped.
func (e *Engine) unawait(regs []*registration) []*registration {
	e.awaited.count(regs, -1)
	for m := range NumMilestones {
		if !e.awaited.wanted(m) {
			regs = append(regs, e.awaited.at[m]...)
			e.awaited.at[m] = nil
		}
	}
	return regs
}

// ofModule reports whether st is in the text of a module of the guest's kernel.
func (k *core) ofModule(st *site) bool {
	m, ok := k.target.Symbols().(interface{ Module(guest.GVA) string })
	return ok && !st.user && m.Module(st.addr) != ""
}
