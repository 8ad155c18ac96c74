package daemon

import (
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/script"
)

// Func implements script.Target.
func (t scriptTarget) Func(name string) *types.FuncProto {
	img, known := t.st.guest.Image(), t.st.guest.Types()
	sym, err := img.Lookup(name)
	if err != nil || known == nil {
		return nil
	}
	return known.Func(event.ModuleOf(img, sym.Addr), name)
}

// Types implements script.Target.
func (t scriptTarget) Types() script.Types {
	known, _ := t.st.guest.Types().(script.Types)
	return known
}
