package probe

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// indexText returns the index of branches of a piece of text.
func (fs *Functions) indexText(p guest.Piece) *flow.Index {
	b := flow.NewBuilder(func(a uint64) bool { return fs.syms.IsText(guest.GVA(a)) })
	if _, ok := fs.syms.(Kernel); ok {
		if t, ok := fs.straightText(p.Text); ok {
			if image, ok := fs.syms.(interface{ ID() guest.ID }); ok && p.Link != nil && fs.scans != nil {
				t.Scans = fs.scans(image.ID())
				t.Link = func(a uint64, b []byte, back bool) { p.Link(guest.GVA(a), b, back) }
			}
			if b.AddText(t) {
				return b.Index()
			}
		}
	}
	fs.addFunctions(b, p.Text)
	return b.Index()
}

// addFunctions adds a text function by function.
func (fs *Functions) addFunctions(b *flow.Builder, text []guest.Range) {
	_, allCode := fs.syms.(Kernel)
	gap := func(lo, hi guest.GVA) {
		switch {
		case lo >= hi:
		case allCode:
			b.Function(flow.Input{Addr: uint64(lo), Code: fs.syms.Code(lo, int(hi-lo)), AllCode: true})
		default:
			b.Gap(uint64(lo), fs.syms.Code(lo, int(hi-lo)))
		}
	}
	all := fs.syms.(Image).Symbols()
	for _, r := range text {
		at := r.Start // everything below was added
		for s := range functionsIn(all, r) {
			gap(at, s.Addr)
			in := fs.input(*s)
			b.Function(in)
			at = max(at, s.Addr+guest.GVA(len(in.Code)))
		}
		gap(at, r.End)
	}
}

// functionsIn returns the functions that begin in a range, in ascending order. Of several at one address it returns the first.
func functionsIn(all []guest.Symbol, r guest.Range) func(yield func(*guest.Symbol) bool) {
	return func(yield func(*guest.Symbol) bool) {
		last := guest.GVA(0)
		for k := firstSymbol(all, r.Start); k < len(all) && all[k].Addr < r.End; k++ {
			s := &all[k]
			if s.Kind != guest.SymFunc || s.Size == 0 || s.Addr == last {
				continue
			}
			last = s.Addr
			if !yield(s) {
				return
			}
		}
	}
}

// straightText returns a kernel's text as a whole. It returns false for text with user code, and for addresses that a kernel cannot have.
func (fs *Functions) straightText(text []guest.Range) (t flow.Text, ok bool) {
	img := fs.syms.(Image)
	if len(text) == 0 {
		return t, false
	}
	all := img.Symbols()
	for _, r := range text {
		for k := firstSymbol(all, r.Start); k < len(all) && all[k].Addr < r.End; k++ {
			if all[k].User {
				return t, false
			}
		}
	}
	block := text[0].Start >> 31
	for _, r := range slices.Concat(text, img.Text(false), img.Text(true)) {
		if block == 0 || r.Start>>31 != block || r.End>>31 != block {
			return t, false
		}
	}
	t.Ranges = spansOf(text)
	t.Spans = func() (spans []flow.Span) { return straightSpans(img.Symbols(), text) }
	t.Read = fs.readText
	t.Text = func(a uint64) bool { return fs.syms.IsText(guest.GVA(a)) }
	return t, true
}

func spansOf(ranges []guest.Range) []flow.Span {
	spans := make([]flow.Span, 0, len(ranges))
	for _, r := range ranges {
		spans = append(spans, flow.Span{Lo: uint64(r.Start), Hi: uint64(r.End)})
	}
	return spans
}

// readText implements flow.Text.Read.
func (fs *Functions) readText(addr uint64, p []byte) bool {
	if into, ok := fs.syms.(interface {
		ReadCode(addr guest.GVA, p []byte) bool
	}); ok && into.ReadCode(guest.GVA(addr), p) {
		return true
	}
	return copy(p, fs.syms.Code(guest.GVA(addr), len(p))) == len(p)
}

// straightSpans returns the spans to decode: functions, truncated to their range of the text, and the gaps between them.
func straightSpans(all []guest.Symbol, text []guest.Range) (spans []flow.Span) {
	add := func(lo, hi guest.GVA) {
		if lo < hi {
			spans = append(spans, flow.Span{Lo: uint64(lo), Hi: uint64(hi)})
		}
	}
	for _, r := range text {
		at := r.Start // everything below was added
		for s := range functionsIn(all, r) {
			add(at, s.Addr)
			end := s.Addr + guest.GVA(min(s.Size, uint64(r.End-s.Addr)))
			add(s.Addr, end)
			at = max(at, end)
		}
		add(at, r.End)
	}
	return spans
}
