package machine

import (
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
)

// phasePoll is how often a booting guest's progress is checked, and modulePoll
// how often the modules of a booted one are checked. They do not affect
// correctness: sites wait that long for their jumps, and modules' names are
// unknown until then.
const (
	phasePoll  = 10 * time.Millisecond
	modulePoll = 100 * time.Millisecond
)

// lastWordsTime is how long the log waits until the message of a panic is on the
// console.
const lastWordsTime = 10 * time.Second

// onStop checks how far the guest has booted, and gives the engine its memory as
// soon as possible. If another kernel has started, memory that belonged to this
// one must not be touched any more; onStop returns that error once.
// Precondition: the world is stopped.
func (g *linuxGuest) onStop(m *Machine) error {
	if g.settled {
		if g.recheck {
			g.recheck = false
			g.confirmSlide(m)
		}
		return g.abandonIfReplaced(m)
	}
	// From then on the kernel's other threads run, so it has cleared the mapping
	// after its image.
	view := g.seen.Load()
	view.Refresh()
	if s, _ := view.System(); s < linux.StateScheduling {
		return nil
	}
	g.settled = true
	if !g.confirmSlide(m) {
		return nil
	}
	if text := g.textPages(); m.host.KVM.Readonly && text.Size != 0 {
		if err := m.protectText(text); err != nil {
			m.log.Warn("the kernel's text cannot be made read-only: what the kernel changes of it is not followed", "err", err)
		}
	}
	if err := g.engine.attach(m.booted.Load().space); err != nil {
		text := "no memory of the engine's in the guest: " + err.Error()
		g.refused.Store(&text)
		m.log.Warn("no jumps: the engine has no memory in the guest", "err", err)
		return nil
	}
	b := *m.booted.Load()
	b.home = g.engine.home
	m.booted.Store(&b)
	m.log.Info("the engine has its memory in the guest", "code", g.engine.execAt, "data", g.engine.dataAt)
	return nil
}

// confirmSlide checks the slide. If it is wrong, the engine gets no memory.
func (g *linuxGuest) confirmSlide(m *Machine) bool {
	err := g.checkSlide(m)
	if err != nil {
		text := err.Error()
		g.refused.Store(&text)
		m.log.Error("the kernel is not where it was put", "err", err)
	}
	return err == nil
}

// textPages returns where the kernel's text is, without the text for booting.
func (g *linuxGuest) textPages() guest.MemoryRange {
	lo, err := g.view().Lookup("_stext")
	if err != nil {
		return guest.MemoryRange{}
	}
	hi, err := g.view().Lookup("_etext")
	if err != nil || hi.Addr <= lo.Addr {
		return guest.MemoryRange{}
	}
	const page = guest.PageSize - 1
	from := (lo.Addr + page) &^ page
	return guest.MemoryRange{Base: g.engine.home.PA + guest.GPA(from-g.engine.home.Start), Size: uint64((hi.Addr+page)&^page - from)}
}

// noExecReason implements payload.
func (g *linuxGuest) noExecReason(user bool) string {
	switch why := g.refused.Load(); {
	case user:
		return "user code of a Linux guest has no room for the engine's"
	case why != nil:
		return *why
	case !g.engine.mapped():
		return errNotMapped.Error()
	}
	return ""
}

// noFaultReason implements payload: exceptions go to the guest's kernel, which has to
// resume its own faults at other places (guest.FaultProfile).
func (g *linuxGuest) noFaultReason(user bool) string {
	p, err := g.view().Profile()
	switch {
	case user:
		return "exceptions of a Linux guest go to its kernel"
	case err != nil:
		return err.Error()
	case p.Faults == nil:
		return "how the guest's kernel resumes a fault of its own is not known"
	}
	return ""
}

// runBeside follows the kernel's boot, and later its modules. It notifies the
// engine of each relevant change, and keeps probes in files up to date.
func (g *linuxGuest) runBeside(m *Machine, stop <-chan struct{}) {
	clock := time.NewTicker(phasePoll)
	defer clock.Stop()
	view := g.seen.Load()
	last := linux.StateBooting
	leaving, panicked := false, time.Time{}
	for {
		select {
		case <-stop:
			return
		case <-clock.C:
		}
		if !g.told && view.Panicked() {
			if panicked.IsZero() {
				panicked = time.Now()
			}
			if words := g.panicText(m); words != "" || time.Since(panicked) > lastWordsTime {
				m.log.Error("the guest's kernel has panicked", "message", words)
				g.told = true
				m.tellChange()
			}
		}
		if leaving = leaving || view.Leaving() || g.told; leaving {
			g.checkKernel(m)
		}
		if g.left.Load() {
			return
		}
		changed := false
		if last < linux.StateFreeing {
			view.Refresh()
			s, known := view.System()
			if !known {
				return
			}
			changed, last = s != last, s
			if s >= linux.StateFreeing {
				clock.Reset(modulePoll)
			}
		} else {
			changed = g.refreshModules(m)
			if err := g.files.Load().refresh(); err != nil {
				m.log.Warn("probes in files of the guest", "err", err)
			}
		}
		if changed {
			m.tellEngine()
		}
	}
}
