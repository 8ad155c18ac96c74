package guest

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"
)

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// symbolTable finds symbols by name and by address.
type symbolTable struct {
	all    []Symbol // ascending by address, then best first
	byName map[string][]int32
	cover  []coverRange // ascending, disjoint: which symbol answers for an address
}

// coverRange says that the symbol sym is the one to name for the addresses
// from start to end, not included.
type coverRange struct {
	start, end GVA
	sym        int32
}

// build takes over syms. Sizes are made to end with the segment; those that
// the file leaves open reach up to the next symbol or the section's end.
func (t *symbolTable) build(img *Image, syms []Symbol) {
	slices.SortStableFunc(syms, func(a, b Symbol) int {
		switch {
		case a.Addr != b.Addr:
			return cmpAddr(a.Addr, b.Addr)
		case betterName(&a, &b):
			return -1
		case betterName(&b, &a):
			return 1
		}
		return 0
	})
	t.all = syms
	t.byName = make(map[string][]int32, len(syms))
	inferred := make([]bool, len(syms))
	next := len(syms) // first symbol at a greater address
	for i := len(syms) - 1; i >= 0; i-- {
		s := &syms[i]
		if i+1 < len(syms) && syms[i+1].Addr != s.Addr {
			next = i + 1
		}
		inferred[i] = s.Size == 0
		seg := img.segment(s.Addr)
		if seg == nil {
			continue
		}
		limit := seg.MemSize - uint64(s.Addr-seg.VAddr)
		if s.Size != 0 {
			s.Size = min(s.Size, limit)
			continue
		}
		if len(img.Sections) != 0 {
			sec := img.section(s.Addr)
			if sec == nil || sec.Name != s.Section {
				continue // a label at the very end of its section (_etext), or a number that is no address
			}
			limit = min(limit, sec.Size-uint64(s.Addr-sec.Addr))
		}
		if next < len(syms) {
			limit = min(limit, uint64(syms[next].Addr-s.Addr))
		}
		s.Size = limit
	}
	for i := range syms {
		t.byName[syms[i].Name] = append(t.byName[syms[i].Name], int32(i))
	}
	t.buildCover(img, inferred)
}

// betterName orders symbols at one address: which is the one to show.
func betterName(a, b *Symbol) bool {
	if f, g := a.Kind == SymFunc, b.Kind == SymFunc; f != g {
		return f
	}
	if f, g := a.Size != 0, b.Size != 0; f != g {
		return f
	}
	if a.Global != b.Global {
		return a.Global
	}
	if f, g := leadingUnderscores(a.Name), leadingUnderscores(b.Name); f != g {
		return f < g
	}
	if a.Name != b.Name {
		return a.Name < b.Name
	}
	return a.Size < b.Size
}

func leadingUnderscores(s string) int { return len(s) - len(strings.TrimLeft(s, "_")) }

// buildCover cuts the address space into ranges with one answer each: among
// the symbols whose extent holds an address, one whose size the file gives
// before one whose size was inferred (a label inside an assembly function does
// not hide the function), then the innermost, then the smallest, then the
// better name.
func (t *symbolTable) buildCover(img *Image, inferred []bool) {
	order := make([]int32, 0, len(t.all)) // best first
	for i := range t.all {
		if t.all[i].Size != 0 && img.segment(t.all[i].Addr) != nil {
			order = append(order, int32(i))
		}
	}
	slices.SortFunc(order, func(x, y int32) int {
		a, b := &t.all[x], &t.all[y]
		switch {
		case inferred[x] != inferred[y]:
			if inferred[y] {
				return -1
			}
			return 1
		case a.Addr != b.Addr:
			return cmpAddr(b.Addr, a.Addr)
		case a.Size != b.Size:
			return cmpAddr(GVA(a.Size), GVA(b.Size))
		}
		return int(x) - int(y)
	})
	rank := make([]int32, len(t.all))
	for r, i := range order {
		rank[i] = int32(r)
	}

	// Sweep over the starts and ends. The heap holds the ranks of the symbols
	// that have started; those that have ended leave when they come to the top.
	end := func(i int32) GVA { return t.all[i].Addr + GVA(t.all[i].Size) } // no wrap: segments end before the last page
	points := make([]GVA, 0, 2*len(order))
	for _, i := range order {
		points = append(points, t.all[i].Addr, end(i))
	}
	slices.Sort(points)
	points = slices.Compact(points)
	starts := slices.Clone(order)
	slices.Sort(starts) // by address, as t.all is
	var active rankHeap
	for k, p := range points {
		for len(starts) > 0 && t.all[starts[0]].Addr == p {
			heap.Push(&active, rank[starts[0]])
			starts = starts[1:]
		}
		for len(active) > 0 && end(order[active[0]]) <= p {
			heap.Pop(&active)
		}
		if len(active) == 0 {
			continue
		}
		sym, to := order[active[0]], points[k+1] // an active symbol ends at a later point
		if n := len(t.cover); n > 0 && t.cover[n-1].sym == sym && t.cover[n-1].end == p {
			t.cover[n-1].end = to
			continue
		}
		t.cover = append(t.cover, coverRange{p, to, sym})
	}
}

// rankHeap is a min-heap of ranks.
type rankHeap []int32

func (h rankHeap) Len() int           { return len(h) }
func (h rankHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h rankHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *rankHeap) Push(x any) { *h = append(*h, x.(int32)) }

// Pop implements heap.Interface.
func (h *rankHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// Symbols returns all symbols, ascending by address. The slice must not be
// changed.
func (img *Image) Symbols() []Symbol { return img.syms.all }

// Lookup returns the symbol of that name. Where several have it, functions go
// before data, and all must be at one address; otherwise the error is an
// *AmbiguousSymbolError. A name that the image lacks gives an error that wraps
// ErrSymbolNotFound.
func (img *Image) Lookup(name string) (Symbol, error) {
	found := img.syms.byName[name]
	if len(found) == 0 {
		return Symbol{}, fmt.Errorf("look up %q: %w", name, ErrSymbolNotFound)
	}
	best := []int32{} // those of the best kind, ascending by address
	for _, i := range found {
		if img.syms.all[i].Kind == SymFunc {
			best = append(best, i)
		}
	}
	if len(best) == 0 {
		best = found
	}
	if first, last := img.syms.all[best[0]], img.syms.all[best[len(best)-1]]; first.Addr == last.Addr {
		return first, nil
	}
	e := &AmbiguousSymbolError{Name: name}
	for _, i := range best {
		e.Addrs = append(e.Addrs, img.syms.all[i].Addr)
	}
	e.Addrs = slices.Compact(e.Addrs)
	return Symbol{}, e
}

// Find returns the symbol whose extent holds addr: the innermost one that has a
// size in the file, or else the one before addr, up to the next symbol. It
// allocates nothing.
func (img *Image) Find(addr GVA) (Symbol, bool) {
	c := img.syms.cover
	i := sort.Search(len(c), func(i int) bool { return c[i].end > addr })
	if i == len(c) || c[i].start > addr {
		return Symbol{}, false
	}
	return img.syms.all[c[i].sym], true
}

// Match returns the symbols whose whole name matches pattern (see Glob),
// ascending by address.
func (img *Image) Match(pattern string) []Symbol {
	var out []Symbol
	for i := range img.syms.all {
		if Glob(pattern, img.syms.all[i].Name) {
			out = append(out, img.syms.all[i])
		}
	}
	return out
}
