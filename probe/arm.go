package probe

import (
	"errors"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// text keeps the guest's text in line with the probes on its sites. Its methods are
// called with the world stopped.
type text struct {
	*control
	opt *optimizer

	timer    *time.Timer    // until the next look at the guest's text; nil: none is due
	suspects map[*site]bool // sites that the last look has deferred to the next one
}

// arm writes the int3 of st or, where the host delivers no breakpoint, its jump.
// Before it changes the first byte it compares the whole instruction with the one
// that was analyzed.
func (t *text) arm(w World, st *site) *Error {
	if t.freed(st) {
		return newError(CodeNotText, fmt.Sprintf("%s is not code any more", st.symbol), "")
	}
	old := st.bytes()
	patched := append([]byte{x86.Int3}, old[1:]...)
	if err := w.PatchText(st.addr, old, patched); err != nil {
		return textError(st, err)
	}
	t.place(st)
	st.armed.Store(true)
	t.show(st, nil)
	t.watchText()
	if !t.opt.jumpsOnly(st) {
		return nil
	}
	err := t.opt.replaceJump(w, st)
	if err != nil {
		var lost []error
		t.disarm(w, st, &lost)
	}
	return err
}

// disarm removes the int3 and the jump of st. If the guest has written something else
// there, that stays, because the text is the guest's; disarm logs it and adds it to
// lost. Nothing is written either if the memory is no longer text. In every case the
// site is disarmed afterwards.
func (t *text) disarm(w World, st *site, lost *[]error) {
	t.opt.unoptimize(w, st, lost)
	if !st.armed.Swap(false) || t.freed(st) {
		return // the guest has changed it
	}
	if err := w.PatchText(st.addr, []byte{x86.Int3}, st.bytes()[:1]); err != nil {
		t.opt.reportChanged(textError(st, err), lost)
	}
}

// updateArming arms or disarms each of the sites as wanted. If a site cannot be
// armed, all are restored, and the error names the site. Text that could not be
// restored is logged and added to lost.
func (t *text) updateArming(w World, sites []*site, lost *[]error) (*site, *Error) {
	defer func() {
		for _, st := range sites {
			t.opt.review(w, st, lost)
			t.opt.reviewAround(w, st, lost)
		}
	}()
	var done []*site
	for _, st := range sites {
		t.opt.reconcile(w, st, lost)
		want := t.wanted(st)
		switch {
		case want == st.armed.Load():
			if t.opt.jumpsOnly(st) {
				err := t.opt.replaceJump(w, st)
				if err != nil && len(t.opt.stages(st)) < len(st.detour().run) {
					// A handler that was removed must not run: better that no handler
					// runs.
					t.opt.reportChanged(err, lost)
					t.disarm(w, st, lost)
				} else if err != nil {
					return t.restore(w, done, st, err, lost)
				}
			}
			continue
		case !want:
			t.disarm(w, st, lost)
		default:
			t.opt.makeRoom(w, st, lost)
			if err := t.arm(w, st); err != nil {
				return t.restore(w, done, st, err, lost)
			}
		}
		done = append(done, st)
	}
	return nil, nil
}

// restore puts the sites of done back as they were, because st could not be armed.
func (t *text) restore(w World, done []*site, st *site, err *Error, lost *[]error) (*site, *Error) {
	for _, u := range done {
		if u.armed.Load() {
			t.disarm(w, u, lost)
		} else if err := t.arm(w, u); err != nil {
			*lost = append(*lost, err)
		}
	}
	return st, err
}

// textError says why the text at st could not be changed.
func textError(st *site, err error) *Error {
	x := newError(CodeTarget, "the guest's text could not be written", fmt.Sprintf("at %v", st.addr))
	var m *guest.TextMismatchError
	if errors.As(err, &m) {
		x = newError(CodeTextChanged, "the guest's text is not what its image says", "")
		if len(m.Got) > 0 && m.Got[0] == x86.Int3 && m.Want[0] != x86.Int3 && m.Addr == st.addr {
			x = newError(CodeForeignInt3, "a breakpoint that is not ours is there", "")
		}
	}
	var pf *guest.PageFaultError
	if errors.As(err, &pf) {
		x = newError(CodeUnreadable, "the guest's text is not mapped", "")
	}
	x.Cause = err
	return x
}
