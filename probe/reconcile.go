package probe

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// The text is the guest's, and it may write there: it patches itself (text_poke, jump
// labels), loads other code, or is overwritten by mistake. The engine's bytes are
// compared with what it has put there at every change of a site, every laterFactor
// delays in between, and when a trap says that something is different. The comparison
// is by byte: bytes that are still the engine's are removed, and the guest's writes
// stay. A jump whose tail has changed becomes an int3 again; a site whose own
// instruction has changed is not armed (Info.Changed) until the image's bytes are
// back.

// patchedText returns the expected text at st while st is armed, and the text before:
// the region of its jump, or its instruction.
func (s *site) patchedText() (now, before []byte) {
	if d := s.detour(); d != nil {
		jump := d.jump()
		return append(jump[:], s.text[x86.JmpLen:]...), s.text
	}
	return append([]byte{x86.Int3}, s.bytes()[1:]...), s.bytes()
}

// holds reports whether the guest's text at st is want. Text that cannot be read
// counts as equal.
func (k *control) holds(st *site, want []byte) bool {
	got := make([]byte, len(want))
	return k.target.ReadMemory(0, st.addr, got) != nil || bytes.Equal(got, want)
}

// freed reports whether the memory of st is no longer text: the guest has freed it,
// and bytes there belong to another owner even if they look like the engine's.
func (k *control) freed(st *site) bool {
	if kernel, ok := k.target.Symbols().(Kernel); ok && !st.user {
		return kernel.FreedText(st.addr)
	}
	return !k.target.Symbols().IsText(st.addr)
}

// withdraw replaces the engine's bytes at st by others. Where the guest has written
// something else, that stays, and is reported. The world is stopped.
func (k *control) withdraw(w World, st *site, ours, instead []byte) error {
	if k.freed(st) {
		return nil
	}
	err := w.PatchText(st.addr, ours, instead)
	var m *guest.TextMismatchError
	if !errors.As(err, &m) {
		return err
	}
	rest := slices.Clone(m.Got)
	for i, b := range ours {
		if rest[i] == b {
			rest[i] = instead[i]
		}
	}
	return errors.Join(err, w.PatchText(st.addr, m.Got, rest))
}

// reconcile brings st in line with the guest's changes to its text. The world is
// stopped.
func (o *optimizer) reconcile(w World, st *site, lost *[]error) {
	if st.changed {
		st.changed = !o.holds(st, st.bytes())
	}
	if !st.armed.Load() {
		return
	}
	if now, _ := st.patchedText(); !o.holds(st, now) {
		o.unoptimize(w, st, lost)
		if err := o.abandon(w, st); err != nil {
			o.reportChanged(textError(st, err), lost)
		}
	}
}

// abandon disarms st, which has no jump, if its int3 or its instruction is not there
// any more. The world is stopped.
func (o *optimizer) abandon(w World, st *site) error {
	now, before := st.patchedText()
	if !st.armed.Load() || o.holds(st, now) {
		return nil
	}
	err := o.withdraw(w, st, now, before)
	st.armed.Store(false)
	st.changed = !o.holds(st, before)
	return err
}

// differingSites returns the sites whose text differs from the expected text, and
// changed ones whose text is back.
func (t *text) differingSites() []*site {
	var out []*site
	for _, st := range t.sites.All() {
		now, before := st.patchedText()
		switch armed := st.armed.Load(); {
		case armed && !t.holds(st, now), st.changed && t.holds(st, before):
			out = append(out, st)
		case !armed && t.wanted(st) && !t.freed(st) && t.holds(st, before):
			out = append(out, st) // its text had been replaced when the jump was to be removed
		}
	}
	return out
}

// reconcile updates sites whose text the guest has changed. Callers hold mu.
func (t *text) reconcile(sites []*site) error {
	if len(sites) == 0 {
		return nil
	}
	var lost []error
	err := t.stop(func(w World) error {
		for _, st := range sites { // one site that cannot be armed must not keep others from being armed
			if _, err := t.updateArming(w, []*site{st}, &lost); err != nil {
				lost = append(lost, err)
			}
		}
		return nil
	})
	return errors.Join(append(lost, err)...)
}

// watchText schedules regular looks at the text, for as long as it has probes.
func (t *text) watchText() {
	if t.timer != nil || t.opt.delay < 0 || t.closing {
		return
	}
	t.timer = time.AfterFunc(t.opt.delay*laterFactor, func() { t.checkText(false) })
}

// checkText reconciles text that has changed. A guest that patches an instruction has
// an int3 at its first byte for a moment, which might be mistaken for the engine's:
// unless there is a jump, or the caller asked for it now, checkText leaves such a
// place until the next time.
func (t *text) checkText(now bool) {
	if t.lock() != nil {
		return
	}
	defer t.mu.Unlock()
	t.alarm.Store(false)
	due := t.differingSites()
	suspects := map[*site]bool{}
	if !now {
		t.timer = nil
		due = slices.DeleteFunc(due, func(st *site) bool {
			suspects[st] = st.detour() == nil
			return suspects[st] && !t.suspects[st]
		})
		t.suspects = suspects
		if t.sites.Len() != 0 {
			t.watchText()
		}
	}
	_ = t.reconcile(due) // the error was logged
}
