package probe

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest"
)

// Withdraw takes out of the guest what the engine has put there: text is the guest's own
// again, and so are the return addresses on its stacks, whose calls count as abandoned. It is for a
// guest that puts its memory aside, to be there again where no engine serves what is in it, or that
// gets such memory in place of its own. The probes are gone until a reset brings their code back
// (Reload). gone is called with the world still stopped, when everything is out; it is the target's
// to have no text from then on. Errors are ErrInHandler, ErrClosed, those of the target, and about
// text that was lost.
func (e *Engine) Withdraw(gone func()) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	var lost []error
	err := e.stop(func(w World) error {
		e.abortMirrors(w)
		sites := e.sortedSites()
		for _, st := range sites {
			for _, r := range *st.chain.Load() {
				r.enabled.Store(false)
			}
		}
		if _, err := e.text.settle(w, sites, &lost); err != nil {
			lost = append(lost, err)
		}
		var buf [8]byte
		for r := range e.code.Residents() {
			if t, ok := r.(*instances); ok {
				t.unhook(buf[:])
			}
		}
		for _, st := range sites {
			e.leave(st)
		}
		gone()
		return nil
	})
	return errors.Join(append(lost, err)...)
}

// unhook puts the return addresses of all activations back, which are over then. The world
// is stopped.
func (t *instances) unhook(buf []byte) {
	for i := range t.n {
		state := t.word(i, instState).Load()
		if state&phaseMask == phaseFree {
			continue
		}
		m, place := t.core.target, guest.GVA(t.word(i, instPlace).Load())
		if root, ok := t.spaceOf(i, 0); ok && m.ReadMemory(root, place, buf) == nil {
			word := guest.GVA(le.Uint64(buf))
			if ret := t.core.through(word); ret != word {
				le.PutUint64(buf, uint64(ret))
				if err := m.WriteMemory(root, place, buf); err != nil {
					t.core.log.Warn("a return address cannot be put back", "place", place, "err", err)
				}
			}
		}
		t.abandon(i, state, 0)
	}
}
