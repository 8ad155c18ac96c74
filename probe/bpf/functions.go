package bpf

import "sort"

// functions are the functions of a program: the first begins at slot 0, the others at
// the targets of local calls and at addresses that are taken; each ends where the
// next one begins.
type functions struct {
	starts []int // ascending
	end    int   // slots of the program
}

// findFunctions collects the functions of a program whose calls are in range.
func findFunctions(prog slots) *functions {
	f := &functions{end: len(prog)}
	seen := map[int]bool{0: true}
	for pc, i := range prog {
		if i != nil && refersToFunction(i) {
			seen[target(i, pc)] = true
		}
	}
	for s := range seen {
		f.starts = append(f.starts, s)
	}
	sort.Ints(f.starts)
	return f
}

// indexOf returns the index of the function that slot pc belongs to.
func (f *functions) indexOf(pc int) int { return sort.SearchInts(f.starts, pc+1) - 1 }

// bounds returns the slots [lo, hi) of function i.
func (f *functions) bounds(i int) (lo, hi int) {
	if i+1 < len(f.starts) {
		return f.starts[i], f.starts[i+1]
	}
	return f.starts[i], f.end
}

// size returns the slots of the function that begins at start.
func (f *functions) size(start int) int {
	lo, hi := f.bounds(f.indexOf(start))
	return hi - lo
}
