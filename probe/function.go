package probe

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// Functions analyzes the functions of an image: where instructions begin, what
// is data, and what a jump may displace. It remembers what it has found out. It
// belongs to one goroutine at a time.
type Functions struct {
	syms  Symbols
	index *flow.Index // of all; nil: not asked for yet
	funcs map[funcKey]*flow.Func

	// Of a Kernel: the pieces that this is about, and what was found out of each.
	pieces []guest.Piece
	looks  map[any]*flow.Index
}

// funcKey is what a function was analyzed as: of a file's, names may come later.
type funcKey struct {
	addr guest.GVA
	size uint64
}

// NewFunctions returns the functions of an image. It looks at the code when it
// is first asked about it.
func NewFunctions(syms Symbols) *Functions {
	return &Functions{syms: syms, funcs: map[funcKey]*flow.Func{}}
}

// maxFunctions bounds the functions that are remembered, which take some 6 KiB each.
const maxFunctions = 256

// Of returns the analysis of the function that sym names, or why there is none.
func (fs *Functions) Of(sym guest.Symbol) (f *flow.Func, why string) {
	fs.refresh()
	key := funcKey{sym.Addr, sym.Size}
	if f := fs.funcs[key]; f != nil {
		return f, ""
	}
	in := fs.input(sym)
	if len(in.Code) == 0 {
		return nil, fmt.Sprintf("%s has no code in the image", sym.Name)
	}
	if _, ok := fs.syms.(Image); ok {
		in.Known = fs.textIndex
	}
	in.Text = func(a uint64) bool { return fs.syms.IsText(guest.GVA(a)) }
	if img, ok := fs.syms.(Image); ok {
		in.Object = func(lo, hi uint64) string { return img.Data(guest.GVA(lo), guest.GVA(hi)) }
	}
	f = flow.Analyze(in)
	if len(fs.funcs) >= maxFunctions {
		clear(fs.funcs)
	}
	fs.funcs[key] = f
	return f, ""
}

// Boundary refuses an address in the function that sym names, and of which f is the
// analysis, when no instruction begins there, or data is; nil: one does. Any thread.
//
// Where no known path leads to, an instruction begins where the kernel finds one,
// by decoding the function from its first byte (check 14, and EILSEQ with it), and
// nothing says otherwise: with data in the code that account may jump over a place
// where a branch leads.
func Boundary(f *flow.Func, sym guest.Symbol, addr guest.GVA) *Error {
	off := int(addr - sym.Addr)
	where := fmt.Sprintf("%s+%#x", sym.Name, off)
	begins, other := f.Boundary(off)
	bad, _, undecodable := f.Undecodable()
	switch {
	case !begins && undecodable && off >= bad:
		return newError(CodeUndecodable, fmt.Sprintf("the code of %s cannot be decoded", sym.Name),
			fmt.Sprintf("no instruction at %s+%#x", sym.Name, bad))
	case other != nil && other.Reached && other.Off < off:
		return newError(CodeNotBoundary, where+" is inside an instruction", "")
	}
	if what := f.Data(off, 1); what != "" {
		return newError(CodeData, where+" is data, not code", what)
	}
	switch {
	case begins && other != nil:
		return newError(CodeNotBoundary, where+" is perhaps inside an instruction, or data",
			fmt.Sprintf("no known path leads there, and the instruction at %s+%#x overlaps it, where branches, symbols or known paths lead", sym.Name, other.Off))
	case !begins:
		return newError(CodeNotBoundary, where+" is inside an instruction", "")
	}
	return nil
}

// maxPadding is how far behind a function's end the next one is looked for.
const maxPadding = 63

// input is what the image says of one function: its bytes, and those of the
// padding behind it.
func (fs *Functions) input(sym guest.Symbol) flow.Input {
	in := flow.Input{Addr: uint64(sym.Addr), Label: sym.Label, Open: true}
	n := int(min(sym.Size, flow.MaxCode+1))
	for range maxPadding {
		at := sym.Addr + guest.GVA(n)
		if _, taken := fs.syms.Find(at); taken || !fs.syms.IsText(at) {
			in.Open = false
			break
		}
		n++
	}
	in.Code = fs.syms.Code(sym.Addr, n)
	if img, ok := fs.syms.(Image); ok {
		all := img.Symbols()
		for k := firstSymbol(all, sym.Addr+1); k < len(all) && all[k].Addr < sym.Addr+guest.GVA(len(in.Code)); k++ {
			in.Symbols = append(in.Symbols, uint64(all[k].Addr))
		}
		in.Read = func(addr uint64, n int) []byte { return img.Constant(guest.GVA(addr), n) }
	}
	if k, ok := fs.syms.(Kernel); ok && !sym.User {
		in.AllCode = true
		in.Exception = func(a uint64) bool { return k.Exception(guest.GVA(a)) }
		in.Patched = func(lo, hi uint64) string { return k.Fixed(guest.GVA(lo), guest.GVA(hi)) }
		for _, a := range k.Edges(sym.Addr, sym.Addr+guest.GVA(len(in.Code))) {
			in.Edges = append(in.Edges, uint64(a))
		}
	}
	return in
}

// firstSymbol returns the index of the first of the symbols at or behind a.
func firstSymbol(all []guest.Symbol, a guest.GVA) int {
	k, _ := slices.BinarySearchFunc(all, a, func(s guest.Symbol, a guest.GVA) int { return cmp.Compare(s.Addr, a) })
	return k
}

// maxReach bounds the functions that reach looks at.
const maxReach = 64

// reaches reports whether the function at from comes to the one at to: by jumps and
// calls whose targets are in the instructions, also through other functions.
func (fs *Functions) reaches(from, to guest.GVA) bool {
	todo, seen := []guest.GVA{from}, map[guest.GVA]bool{from: true}
	for k := 0; k < len(todo) && k < maxReach; k++ {
		s, ok := fs.syms.Find(todo[k])
		if !ok {
			continue
		}
		f, _ := fs.Of(s)
		if f == nil {
			continue
		}
		for _, i := range f.Insts() {
			a, ok := i.Target(f.Addr() + uint64(i.Off))
			if !ok || !i.Reached {
				continue
			}
			if guest.GVA(a) == to {
				return true
			}
			if s, ok := fs.syms.Find(guest.GVA(a)); ok && !seen[s.Addr] {
				seen[s.Addr] = true
				todo = append(todo, s.Addr)
			}
		}
	}
	return false
}

// refresh forgets what may be otherwise since pieces of a kernel's code have changed.
func (fs *Functions) refresh() {
	k, ok := fs.syms.(Kernel)
	if !ok {
		return
	}
	now := k.Pieces()
	if len(now) == len(fs.pieces) && (len(now) == 0 || &now[0] == &fs.pieces[0]) {
		return
	}
	fs.pieces, fs.index = now, nil
	clear(fs.funcs)
}

// indexNewPieces looks at all code that was not looked at yet.
func (fs *Functions) indexNewPieces() {
	if fs.refresh(); fs.pieces != nil {
		fs.textIndex()
	}
}

// textIndex returns what the code of the whole image says of its text. What is known of a
// kernel's pieces is kept while they are there: of one that has come only that is looked at.
func (fs *Functions) textIndex() *flow.Index {
	switch {
	case fs.index != nil:
	case fs.pieces == nil:
		img := fs.syms.(Image)
		fs.index = fs.indexText(slices.Concat(img.Text(false), img.Text(true)))
	default:
		looks, all := make(map[any]*flow.Index, len(fs.pieces)), make([]*flow.Index, len(fs.pieces))
		for i, p := range fs.pieces {
			if all[i] = fs.looks[p.ID]; all[i] == nil {
				all[i] = fs.indexText(p.Text)
			}
			looks[p.ID] = all[i]
		}
		fs.looks, fs.index = looks, flow.Join(all)
	}
	return fs.index
}

// indexText returns what the code in text says of the whole image's.
func (fs *Functions) indexText(text []guest.Range) *flow.Index {
	b := flow.NewBuilder(func(a uint64) bool { return fs.syms.IsText(guest.GVA(a)) })
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
		at, last := r.Start, guest.GVA(0) // up to at all was looked at
		for k := firstSymbol(all, r.Start); k < len(all) && all[k].Addr < r.End; k++ {
			s := all[k]
			if s.Kind != guest.SymFunc || s.Size == 0 || s.Addr == last {
				continue
			}
			last = s.Addr
			gap(at, s.Addr)
			in := fs.input(s)
			b.Function(in)
			at = max(at, s.Addr+guest.GVA(len(in.Code)))
		}
		gap(at, r.End)
	}
	return b.Index()
}
