package probe

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// wanted reports whether st is to have its int3. A mirror that is under way needs
// that at its end even when everything is disarmed.
func (e *Engine) wanted(st *site) bool {
	return (!e.disarmed || st.mirrorEnd.Load() && e.mirroring()) && st.chain.Load().live()
}

// arm writes the int3 of st. The whole instruction is compared with what was
// analysed before its first byte changes.
func (e *Engine) arm(w World, st *site) *Error {
	text := st.bytes()
	patched := append([]byte{insn.Int3}, text[1:]...)
	if err := w.PatchText(st.addr, text, patched); err != nil {
		return textError(st, err)
	}
	st.armed.Store(true)
	return nil
}

// disarm takes the int3 of st away. When the guest has put something else
// there, it stays: the text is the guest's. Either way, the site is not armed
// any more.
func (e *Engine) disarm(w World, st *site) *Error {
	st.armed.Store(false)
	if err := w.PatchText(st.addr, []byte{insn.Int3}, st.orig[:1]); err != nil {
		return textError(st, err)
	}
	return nil
}

// settle arms or disarms each of the sites as it is wanted. When a site cannot
// be armed, all are put back as they were, and the error says which. Text that
// could not be restored is logged and added to lost.
func (e *Engine) settle(w World, sites []*site, lost *[]error) (*site, *Error) {
	defer func() {
		for _, st := range sites {
			e.review(w, st, lost)
			e.around(w, st, lost)
		}
	}()
	var done []*site
	restore := func(st *site) {
		e.unoptimize(w, st, lost)
		if err := e.disarm(w, st); err != nil {
			e.log.Error("guest text was changed under a probe and is left as it is", "err", err)
			*lost = append(*lost, err)
		}
	}
	for _, st := range sites {
		want := e.wanted(st)
		if want == st.armed.Load() {
			continue
		}
		if want {
			e.makeRoom(w, st, lost)
			if err := e.arm(w, st); err != nil {
				for _, u := range done {
					if u.armed.Load() {
						restore(u)
					} else if err := e.arm(w, u); err != nil {
						*lost = append(*lost, err)
					}
				}
				return st, err
			}
		} else {
			restore(st)
		}
		done = append(done, st)
	}
	return nil, nil
}

// textError says why the text at st could not be changed.
func textError(st *site, err error) *Error {
	x := newError(CodeTarget, "the guest's text could not be written", fmt.Sprintf("at %v", st.addr))
	var m *guest.TextMismatchError
	if errors.As(err, &m) {
		x = newError(CodeTextChanged, "the guest's text is not what its image says", "")
		if len(m.Got) > 0 && m.Got[0] == insn.Int3 && m.Addr == st.addr {
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
