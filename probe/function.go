package probe

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// function returns the analysis of the function that holds st, or why there is
// none. Callers hold mu.
func (e *Engine) function(st *site) (*flow.Func, string) {
	if f := e.opt.funcs[st.start]; f != nil {
		return f, ""
	}
	syms := e.target.Symbols()
	sym, ok := syms.Find(st.addr)
	if !ok {
		return nil, "no function is known there"
	}
	code := functionCode(syms, sym)
	if len(code) == 0 {
		return nil, fmt.Sprintf("%s has no code in the image", sym.Name)
	}
	in := flow.Input{Addr: uint64(sym.Addr), Code: code}
	if x := e.branches(syms); x != nil {
		in.Targets = x.Targets
	}
	if img, ok := syms.(Image); ok {
		in.Read = func(addr uint64, n int) []byte { return img.Constant(guest.GVA(addr), n) }
	}
	f := flow.Analyze(in)
	e.opt.funcs[st.start] = f
	return f, ""
}

// maxPadding is how far behind a function's end the next one is looked for.
const maxPadding = 63

// functionCode returns the bytes of a function and of the padding behind it.
func functionCode(syms Symbols, sym guest.Symbol) []byte {
	n := int(min(sym.Size, flow.MaxCode+1))
	for k := 0; k < maxPadding; k++ {
		at := sym.Addr + guest.GVA(n)
		if _, taken := syms.Find(at); taken || !syms.IsText(at) {
			break
		}
		n++
	}
	return syms.Code(sym.Addr, n)
}

// branches returns the direct branch targets of the whole image, or nil when
// its functions cannot be listed.
func (e *Engine) branches(syms Symbols) *flow.Index {
	if e.opt.index != nil {
		return e.opt.index
	}
	img, ok := syms.(Image)
	if !ok {
		return nil
	}
	var targets []uint64
	for _, s := range img.Symbols() {
		if s.Size != 0 && syms.IsText(s.Addr) {
			targets = flow.AppendTargets(targets, uint64(s.Addr), syms.Code(s.Addr, int(min(s.Size, flow.MaxCode))))
		}
	}
	e.opt.index = flow.NewIndex(targets)
	return e.opt.index
}
