package http

import (
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/script"
)

// Func implements script.Target: by the image's types, or else by debug information.
func (t scriptTarget) Func(name string) (proto *types.FuncProto, why string) {
	img, known := t.st.guest.Image(), t.st.guest.Types()
	if known == nil {
		if source, err := t.st.guest.Source(); err == nil {
			return source.Func(name), source.Convention(name)
		}
		return nil, ""
	}
	sym, err := img.Lookup(name)
	if err != nil {
		return nil, ""
	}
	return known.Func(event.ModuleOf(img, sym.Addr), name), ""
}

// Types implements script.Target, likewise.
func (t scriptTarget) Types() script.Types {
	if known, ok := t.st.guest.Types().(script.Types); ok {
		return known
	}
	if source, err := t.st.guest.Source(); err == nil {
		return source
	}
	return nil
}
