package kvm

import (
	"encoding/binary"
	"os"
)

// Bits of an entry of /proc/self/pagemap (the kernel's admin-guide/mm/pagemap.rst).
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61 // or of memory that processes share
)

// TouchedMemory calls f with each run of whole pages of mem, memory of
// AllocMemory without a Base, that were accessed. All others are zeros, and
// reading them would cost the host a fault each. Pages that the host has swapped
// out are included. If the host does not know, f gets all of mem. No vCPU may
// run during the call.
func TouchedMemory(mem []byte, f func([]byte)) {
	pagesWith(mem, func(_ int, entry uint64) bool { return entry&(pagePresent|pageSwapped) != 0 }, func(from, to int) { f(mem[from:to]) })
}

// pagesWith calls f with the beginning and the end, in bytes, of each run of
// whole pages of mem for which is returns true. is gets the number of the page
// and its entry in the host's page map. If the host does not have the map, f
// gets all of mem.
func pagesWith(mem []byte, is func(page int, entry uint64) bool, f func(from, to int)) {
	file, err := os.Open("/proc/self/pagemap")
	if err != nil {
		f(0, len(mem))
		return
	}
	defer file.Close()
	const entry = 8
	page := os.Getpagesize()
	first := int64(addressOf(mem)) / int64(page) * entry
	buf := make([]byte, 8<<10*entry)
	from := -1 // where a run begins
	for at := 0; at < len(mem); {
		n := min(len(buf), (len(mem)-at+page-1)/page*entry)
		if _, err := file.ReadAt(buf[:n], first+int64(at/page*entry)); err != nil {
			if from < 0 {
				from = at
			}
			break
		}
		for i := 0; i < n; i, at = i+entry, at+page {
			switch in := is(at/page, binary.NativeEndian.Uint64(buf[i:])); {
			case in && from < 0:
				from = at
			case !in && from >= 0:
				f(from, at)
				from = -1
			}
		}
	}
	if from >= 0 {
		f(from, len(mem))
	}
}
