package probe

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// Functions analyzes the functions of an image: where instructions begin, which bytes
// are data, and which instructions a jump may displace. It caches the results. It
// belongs to one goroutine at a time.
type Functions struct {
	syms  Symbols
	index *flow.Index // of all; nil: not built yet
	funcs map[funcKey]*flow.Func
	known map[placeKey]known // see boundary

	// For a Kernel: the pieces of code covered, and the analysis of each.
	pieces []guest.Piece
	looks  map[any]*flow.Index
	scans  func(guest.ID) *flow.Scans // Options.Scans

	entry straightEntry
}

// funcKey identifies an analysis: a file's functions may get their names later.
type funcKey struct {
	addr guest.GVA
	size uint64
}

// placeKey identifies an address in a function.
type placeKey struct {
	funcKey
	addr guest.GVA
}

// known is what an analysis has shown about a place.
type known uint8

const (
	knownBoundary known = 1 << iota // an instruction begins there
	knownBranched                   // a branch leads there
	knownSilent                     // no known branch leads there
)

// maxKnown bounds the places about which something is known. They take some 30 bytes each, and are
// forgotten after a registration.
const maxKnown = 1 << 16

// learn records what an analysis has shown about a place. A request with a pattern checks each
// place and registers all of them afterwards: by then the analysis of the first function is not
// cached any more.
func (fs *Functions) learn(key placeKey, k known) {
	if fs.known == nil || len(fs.known) >= maxKnown {
		fs.known = map[placeKey]known{}
	}
	fs.known[key] |= k
}

// boundary is Boundary for an address in the function that sym names, or the reason why that has no
// analysis.
func (fs *Functions) boundary(sym guest.Symbol, addr guest.GVA) (err *Error, why string) {
	fs.refresh()
	key := placeKey{funcKey{sym.Addr, sym.Size}, addr}
	if fs.known[key]&knownBoundary != 0 {
		return nil, ""
	}
	f, why := fs.Analyze(sym)
	if f == nil {
		return nil, why
	}
	if err = Boundary(f, sym, addr); err == nil {
		fs.learn(key, knownBoundary)
	}
	return err, ""
}

// branched reports whether a known branch leads to an address in the function that sym names.
func (fs *Functions) branched(sym guest.Symbol, addr guest.GVA) bool {
	fs.refresh()
	key := placeKey{funcKey{sym.Addr, sym.Size}, addr}
	if k := fs.known[key] & (knownBranched | knownSilent); k != 0 {
		return k == knownBranched
	}
	f, _ := fs.Analyze(sym)
	if f == nil {
		return false
	}
	if f.Branched(int(addr - sym.Addr)) {
		fs.learn(key, knownBranched)
		return true
	}
	fs.learn(key, knownSilent)
	return false
}

// NewFunctions returns the functions of an image. It analyzes code on first use.
func NewFunctions(syms Symbols) *Functions {
	return &Functions{syms: syms, funcs: map[funcKey]*flow.Func{}}
}

// maxFunctions bounds the cached functions, which take some 6 KiB each.
const maxFunctions = 256

// Analyze returns the analysis of the function that sym names, or the reason why it
// has none.
func (fs *Functions) Analyze(sym guest.Symbol) (f *flow.Func, why string) {
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

// Boundary rejects an address in the function that sym names, whose analysis is f, if
// no instruction begins there, or if it is data; nil if an instruction begins there.
// Any thread.
//
// In code that no known path reaches, an instruction begins where the kernel finds
// one, by decoding the function from its first byte (check 14, and EILSEQ with it),
// unless something contradicts it: with data in the code that decoding may jump over
// a branch target.
func Boundary(f *flow.Func, sym guest.Symbol, addr guest.GVA) *Error {
	off := int(addr - sym.Addr)
	where := fmt.Sprintf("%s+%#x", sym.Name, off)
	begins, other := f.Boundary(off)
	if !begins { // decoding the function in a straight line costs as much as its analysis
		if bad, _, undecodable := f.FirstUndecodable(); undecodable && off >= bad {
			return newError(CodeUndecodable, fmt.Sprintf("the code of %s cannot be decoded", sym.Name),
				fmt.Sprintf("no instruction at %s+%#x", sym.Name, bad))
		}
	}
	if other != nil && other.Reached && other.Off < off {
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

// maxPadding is how far past a function's end the next one is looked for.
const maxPadding = 63

// input returns the image's data on one function: its bytes, and the padding after
// it.
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
		in.Patched = func(lo, hi uint64) string { return k.FixedReason(guest.GVA(lo), guest.GVA(hi)) }
		for _, a := range k.Edges(sym.Addr, sym.Addr+guest.GVA(len(in.Code))) {
			in.Edges = append(in.Edges, uint64(a))
		}
	}
	return in
}

// firstSymbol returns the index of the first symbol at or after a.
func firstSymbol(all []guest.Symbol, a guest.GVA) int {
	k, _ := slices.BinarySearchFunc(all, a, func(s guest.Symbol, a guest.GVA) int { return cmp.Compare(s.Addr, a) })
	return k
}

// maxReach bounds the functions that reach looks at.
const maxReach = 64

// reaches reports whether the function at from leads to the one at to, by jumps and
// calls with targets in the instructions, also through other functions.
func (fs *Functions) reaches(from, to guest.GVA) bool {
	todo, seen := []guest.GVA{from}, map[guest.GVA]bool{from: true}
	for k := 0; k < len(todo) && k < maxReach; k++ {
		s, ok := fs.syms.Find(todo[k])
		if !ok {
			continue
		}
		f, _ := fs.Analyze(s)
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

// refresh discards results that may be outdated because pieces of a kernel's code
// have changed.
func (fs *Functions) refresh() {
	k, ok := fs.syms.(Kernel)
	if !ok {
		return
	}
	now := k.Pieces()
	if len(now) == len(fs.pieces) && (len(now) == 0 || &now[0] == &fs.pieces[0]) {
		return
	}
	fs.pieces, fs.index, fs.known = now, nil, nil
	clear(fs.funcs)
}

// indexNewPieces scans all code that was not scanned yet.
func (fs *Functions) indexNewPieces() {
	if fs.refresh(); fs.pieces != nil {
		fs.textIndex()
	}
}

// textIndex returns the index of the whole image's text. Results for a kernel's
// pieces are kept while the pieces exist: only new pieces are analyzed.
func (fs *Functions) textIndex() *flow.Index {
	switch {
	case fs.index != nil:
	case fs.pieces == nil:
		img := fs.syms.(Image)
		fs.index = fs.indexText(guest.Piece{Text: slices.Concat(img.Text(false), img.Text(true))})
	default:
		looks, all := make(map[any]*flow.Index, len(fs.pieces)), make([]*flow.Index, len(fs.pieces))
		for i, p := range fs.pieces {
			if all[i] = fs.looks[p.ID]; all[i] == nil {
				all[i] = fs.indexText(p)
			}
			looks[p.ID] = all[i]
		}
		fs.looks, fs.index = looks, flow.Join(all)
	}
	return fs.index
}
