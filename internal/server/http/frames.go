package http

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/source"
)

// namer names the addresses of stacks, by the guest's present symbols and, if
// available, its debug information.
type namer struct {
	img  guest.View
	info *debuginfo.Info // nil: no debug information
	by   uint64          // its slide
}

func newNamer(g Guest) namer {
	n := namer{img: g.Image()}
	if info, err := g.Source(); err == nil {
		if by, err := source.Slide(info, n.img); err == nil {
			n.info, n.by = info, by
		}
	}
	return n
}

// end returns why the callers of the last frame are not known, or "" if it has
// none.
func (n namer) end(frames []guest.Frame) string {
	if len(frames) == 0 {
		return ""
	}
	at := frames[len(frames)-1].RuleAddr()
	sym, ok := n.img.Find(at)
	if !ok || sym.User || sym.Size == 0 {
		return ""
	}
	if _, ok := n.img.FrameRule(at); ok {
		return ""
	}
	if img, ok := n.img.(*guest.Image); ok && img.Entry >= sym.Addr && uint64(img.Entry-sym.Addr) < sym.Size {
		return "" // the guest begins there: it has no callers
	}
	return fmt.Sprintf("callers of %s are not known: its code has no call frame information (.eh_frame), and no frame pointer leads on", sym.Name)
}

// frames describes a stack, innermost first. Its addresses are return addresses.
// With exact, the first one is the address of the next instruction instead.
func (n namer) frames(pcs []guest.GVA, exact bool) []api.Frame {
	var out []api.Frame
	for i, pc := range pcs {
		out = append(out, n.frame(pc, exact && i == 0)...)
	}
	return out
}

// frame describes the functions at one address of a stack: first those that are
// inlined there, then the one that contains them.
func (n namer) frame(pc guest.GVA, exact bool) []api.Frame {
	var out []api.Frame
	at := pc - 1 // the call: it may be the last instruction of its function (lib/vsprintf.c, %pB)
	if exact {
		at = pc
	}
	var inlines []debuginfo.Frame
	if n.info != nil {
		inlines = n.info.Frames(uint64(at) - n.by)
	}
	f := api.Frame{Addr: api.Hex(pc), User: pc>>63 == 0}
	if sym, ok := n.img.Find(at); ok {
		f.User = sym.User
		f.Symbol = fmt.Sprintf("%s+%#x/%#x", sym.Name, uint64(pc-sym.Addr), sym.Size)
		f.Name = guest.SourceName(sym.Name, false)
		if at == sym.Addr && len(inlines) > 0 {
			inlines = inlines[len(inlines)-1:] // its inlined functions have not been entered yet
		}
	}
	for _, x := range inlines {
		of := f
		if x.Inlined {
			of.Symbol, of.Inlined = x.Function, true
		}
		if x.File != "" {
			of.Source = fmt.Sprintf("%s:%d", x.File, x.Line)
		}
		out = append(out, of)
	}
	if len(inlines) == 0 || inlines[len(inlines)-1].Inlined {
		out = append(out, f)
	}
	return out
}
