package probe

import "github.com/guestprobe/guestprobe/guest"

// Milestone is a point that a guest reaches on its own, and that probes have to know
// of before it continues.
type Milestone uint8

const (
	// ModuleComes: a module is in the guest's memory, and none of its code has run.
	// The target notes the module, and calls Engine.TargetChanged.
	ModuleComes Milestone = iota
	// MemoryLeaves: the guest is about to save its memory, to be restored perhaps
	// without this engine, or to get such a copy in place of it. The target calls
	// Engine.Withdraw.
	MemoryLeaves
	// TextRead: a debugger of the guest's own reads the bytes of an instruction. The
	// engine returns the guest's own; it does not call the target.
	TextRead
	// TextWritten: the guest is about to write to its text, while there are probes in
	// text that it can write unseen by the target. The target calls Engine.WriteText.
	TextWritten

	// NumMilestones is the number of milestones.
	NumMilestones
)

// Milestones is an optional interface of a Target whose guest is a kernel with known
// milestones.
type Milestones interface {
	// Milestone returns the functions that the guest calls at m, nil if none is
	// known.
	Milestone(m Milestone) []string
	// NotePass says that vCPU cpu is at the entry of one of them. It is called on the
	// vCPU's own thread inside a hit. Before the vCPU resumes, the target does what m
	// requires on another thread.
	NotePass(cpu int, m Milestone)
}

// awaited is the engine's own probes at milestones. Engine.mu guards them.
type awaited struct {
	probes, ofModules int // registrations, and the ones by MODULE:SYMBOL among them
	inModules         int // those, and registrations in the text of modules
	at                [NumMilestones][]*registration
}

// wanted reports whether m needs a probe.
func (a *awaited) wanted(m Milestone) bool {
	switch m {
	case ModuleComes:
		return a.ofModules > 0
	case TextWritten:
		return a.inModules > 0
	}
	return a.probes > 0
}

// count adds n for each of regs whose kind is counted.
func (a *awaited) count(regs []*registration, n int) {
	for _, r := range regs {
		if !r.is(counted) {
			continue
		}
		a.probes += n
		if r.where.ofModule() {
			a.ofModules += n
		}
		if r.inModule = r.inModule || n > 0 && (r.where.ofModule() || r.owner.ofModule(r.site)); r.inModule {
			a.inModules += n
		}
	}
}

// awaitMilestones puts probes of the engine's own on the functions that the guest
// calls at a milestone, while there are probes that need it: so probes on a module
// are armed before its first instruction runs. If that is impossible, they are armed
// when the target sees the module. The analysis of the kernel's text that this needs
// is done now, not while the guest waits.
func (g *registry) awaitMilestones() {
	t, ok := g.target.(Milestones)
	if !ok {
		return
	}
	for m := range NumMilestones {
		if !g.awaited.wanted(m) {
			continue
		}
		at := &g.awaited.at[m]
		for _, r := range *at {
			if g.gone[r] {
				g.view.Lock()
				delete(g.gone, r)
				g.view.Unlock()
				*at = nil
			}
		}
		if m == ModuleComes {
			g.places.functions().indexNewPieces()
		}
		if *at != nil {
			continue
		}
		for _, symbol := range t.Milestone(m) {
			if r := g.await(t, m, symbol); r != nil {
				*at = append(*at, r)
			}
		}
	}
}

// await puts a probe on a function that the guest calls at m. Callers hold mu.
func (g *registry) await(t Milestones, m Milestone, symbol string) *registration {
	pre := func(c *Context) int {
		t.NotePass(c.CPU, m)
		return 0
	}
	if m == TextRead {
		pre = g.readText
	}
	r := &registration{tally: g.newTally("milestone"), owner: g, kind: milestoneStop{}, where: where{symbol: symbol}, pre: pre}
	b := newBatch(1)
	var err error
	if no := g.admit(b, r); no != nil {
		err = no
	} else {
		err = g.install(b)
	}
	if err != nil {
		g.log.Info("the guest cannot be awaited where it comes to", "symbol", symbol, "err", err)
		return nil
	}
	return r
}

// unawait adds to the probes being removed the engine's own probes that are no longer
// needed. The world is stopped.
func (g *registry) unawait(regs []*registration) []*registration {
	g.awaited.count(regs, -1)
	for m := range NumMilestones {
		if !g.awaited.wanted(m) {
			regs = append(regs, g.awaited.at[m]...)
			g.awaited.at[m] = nil
		}
	}
	return regs
}

// ofModule reports whether st is in the text of a module of the guest's kernel.
func (k *core) ofModule(st *site) bool {
	m, ok := k.target.Symbols().(interface{ Module(guest.GVA) string })
	return ok && !st.user && m.Module(st.addr) != ""
}
