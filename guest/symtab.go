package guest

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
)

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// SymbolTable finds symbols by name and by address. It does not change, and may be used
// from any thread.
type SymbolTable struct {
	all    []Symbol // ascending by address, then best first
	byName map[string][]int32
	cover  []coverRange // ascending, disjoint: the symbol for each address

	findParts sync.Once
	parts     map[string][]string // see Parts

	findMangled sync.Once
	mangled     []int32 // see mangledSymbols
}

// coverRange says that sym is the symbol for the addresses from start to end, not
// included.
type coverRange struct {
	start, end GVA
	sym        int32
}

// NewSymbolTable takes over syms, in any order. room returns the number of bytes from
// a symbol to the ends of its segment, which ends every symbol, and of its section,
// which ends a symbol of size 0, as the next symbol does. A symbol outside of
// segments covers no address; one outside of sections keeps size 0.
func NewSymbolTable(syms []Symbol, room func(s *Symbol) (segment, section uint64)) *SymbolTable {
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
	t := &SymbolTable{all: syms, byName: make(map[string][]int32, len(syms))}
	inferred, order := make([]bool, len(syms)), make([]int32, 0, len(syms))
	next := len(syms) // first symbol at a greater address
	for i := len(syms) - 1; i >= 0; i-- {
		s := &syms[i]
		if i+1 < len(syms) && syms[i+1].Addr != s.Addr {
			next = i + 1
		}
		inferred[i] = s.Size == 0
		segment, section := room(s)
		if segment == 0 {
			continue
		}
		if inferred[i] {
			if s.Size = min(segment, section); next < len(syms) {
				s.Size = min(s.Size, uint64(syms[next].Addr-s.Addr))
			}
		} else {
			s.Size = min(s.Size, segment)
		}
		if s.Size != 0 {
			order = append(order, int32(i))
		}
	}
	for i := range syms {
		t.byName[syms[i].Name] = append(t.byName[syms[i].Name], int32(i))
	}
	t.buildCover(order, inferred)
	return t
}

// betterName orders symbols at one address: which one to show.
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

// buildCover divides the address space into ranges with one symbol each. Of the
// symbols in order whose extent contains an address it prefers one with a size from
// the file to one with an inferred size (a label inside an assembly function does not
// hide the function), then the innermost, then the smallest, then the better name.
func (t *SymbolTable) buildCover(order []int32, inferred []bool) {
	slices.SortFunc(order, // best first
		func(x, y int32) int {
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

	// Sweep over the starts and ends. The heap holds the ranks of the symbols that
	// have started; those that have ended are removed when they reach the top.
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
func (t *SymbolTable) Symbols() []Symbol { return t.all }

// lookupExact is Lookup without advice and without names as a source has them, which
// need a search of all symbols.
func (t *SymbolTable) lookupExact(name string) (Symbol, error) {
	if len(t.byName[name]) == 0 {
		return Symbol{}, fmt.Errorf("look up %q: %w", name, ErrSymbolNotFound)
	}
	return t.Lookup(name)
}

// Lookup returns the symbol of that name. If several have it, functions take
// precedence over data, and all must be at one address; otherwise the error is an
// *AmbiguousSymbolError. If no symbol has the name, it may be a name in C++ or Rust
// source that only one function or variable has. Otherwise the error wraps
// ErrSymbolNotFound.
func (t *SymbolTable) Lookup(name string) (Symbol, error) {
	found := t.byName[name]
	if len(found) == 0 {
		if s, ok := t.lookupSource(name); ok {
			return s, nil
		}
		if advice := t.advice(name); advice != "" {
			return Symbol{}, &MissingSymbolError{Name: name, Advice: advice}
		}
		return Symbol{}, fmt.Errorf("look up %q: %w", name, ErrSymbolNotFound)
	}
	best := []int32{} // the symbols of the best kind, ascending by address
	for _, i := range found {
		if t.all[i].Kind == SymFunc {
			best = append(best, i)
		}
	}
	if len(best) == 0 {
		best = found
	}
	if first, last := t.all[best[0]], t.all[best[len(best)-1]]; first.Addr == last.Addr {
		return first, nil
	}
	e := &AmbiguousSymbolError{Name: name}
	for _, i := range best {
		e.Addrs = append(e.Addrs, t.all[i].Addr)
	}
	e.Addrs = slices.Compact(e.Addrs)
	return Symbol{}, e
}

// Find returns the symbol whose extent contains addr: the innermost one with a size
// in the file, or else the one before addr, up to the next symbol. It allocates
// nothing.
func (t *SymbolTable) Find(addr GVA) (Symbol, bool) {
	c := t.cover
	i := sort.Search(len(c), func(i int) bool { return c[i].end > addr })
	if i == len(c) || c[i].start > addr {
		return Symbol{}, false
	}
	return t.all[c[i].sym], true
}

// Match returns the symbols whose whole name matches pattern (see Glob),
// ascending by address.
func (t *SymbolTable) Match(pattern string) []Symbol {
	var out []Symbol
	for i := range t.all {
		if Glob(pattern, t.all[i].Name) {
			out = append(out, t.all[i])
		}
	}
	return out
}
