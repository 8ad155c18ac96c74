package guest

import "slices"

// FreeSpace is the free part of some space: addresses or offsets that are allocated
// in pieces and freed. The zero value is empty. It is not safe for concurrent use.
type FreeSpace struct {
	// Late makes it cyclic: the search for a piece begins after the last allocated
	// one, so that freed pieces are reused as late as possible. Otherwise it takes
	// the lowest place, so that little of the space is ever touched.
	Late bool

	ranges []freeRange // ascending, never adjacent
	next   uint64      // where the next search begins
}

// freeRange is [from, to).
type freeRange struct{ from, to uint64 }

// Add frees the n bytes at a, none of which may be free.
func (f *FreeSpace) Add(a, n uint64) {
	if n == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(f.ranges, a, func(s freeRange, a uint64) int {
		if s.from < a {
			return -1
		}
		return 1
	})
	s := freeRange{a, a + n}
	lo, hi := i, i
	if i > 0 && f.ranges[i-1].to == s.from {
		lo, s.from = i-1, f.ranges[i-1].from
	}
	if i < len(f.ranges) && f.ranges[i].from == s.to {
		hi, s.to = i+1, f.ranges[i].to
	}
	f.ranges = slices.Replace(f.ranges, lo, hi, s)
}

// Find returns a free range of n bytes at a multiple of align, a power of two, that
// fit accepts; nil accepts all. In each run of free bytes only the first such address
// is offered. False means that there is no such range.
func (f *FreeSpace) Find(n, align uint64, fit func(a uint64) bool) (a uint64, ok bool) {
	if len(f.ranges) == 0 {
		return 0, false
	}
	first, _ := slices.BinarySearchFunc(f.ranges, f.next, func(s freeRange, a uint64) int {
		if s.to <= a {
			return -1
		}
		return 1
	})
	// The range that contains next is examined twice: first from there on.
	for k := range len(f.ranges) + 1 {
		s := f.ranges[(first+k)%len(f.ranges)]
		if k == 0 && s.from < f.next {
			s.from = f.next
		}
		a := (s.from + align - 1) &^ (align - 1)
		if a >= s.from && a <= s.to && s.to-a >= n && (fit == nil || fit(a)) {
			return a, true
		}
	}
	return 0, false
}

// Take allocates the n bytes at a, all of which must be free.
func (f *FreeSpace) Take(a, n uint64) {
	i, _ := slices.BinarySearchFunc(f.ranges, a, func(s freeRange, a uint64) int {
		if s.to <= a {
			return -1
		}
		return 1
	})
	r := f.ranges[i]
	var left []freeRange
	if r.from != a {
		left = append(left, freeRange{r.from, a})
	}
	if r.to != a+n {
		left = append(left, freeRange{a + n, r.to})
	}
	f.ranges = slices.Replace(f.ranges, i, i+1, left...)
	if f.Late {
		f.next = a + n
	}
}

// FreeBytes returns how many bytes are free.
func (f *FreeSpace) FreeBytes() (n uint64) {
	for _, s := range f.ranges {
		n += s.to - s.from
	}
	return n
}

// LargestRun returns the length of the longest run of free bytes.
func (f *FreeSpace) LargestRun() (n uint64) {
	for _, s := range f.ranges {
		n = max(n, s.to-s.from)
	}
	return n
}
