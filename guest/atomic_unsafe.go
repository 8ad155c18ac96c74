package guest

import (
	"sync/atomic"
	"unsafe"
)

// aligned8 reports whether b starts at an 8-byte aligned host address.
func aligned8(b []byte) bool {
	// SAFETY: the pointer is only turned into a number and never used as one again.
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 == 0
}

// AtomicWords returns the 8-byte words of b, which host and guest share, for atomic
// access. b must be 8-byte aligned; a remainder of less than a word is omitted. The
// byte order is the guest's: only amd64 hosts run it.
func AtomicWords(b []byte) []atomic.Uint64 {
	if len(b) < 8 {
		return nil
	}
	if !aligned8(b) {
		panic("BUG: shared memory is not aligned to 8 bytes")
	}
	// SAFETY: b is aligned to 8 bytes and contains all of the words; atomic.Uint64 is
	// one word, and its memory lives as long as b's does.
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}

// word returns a pointer to the 8 bytes of guest memory at pa, or nil if no region
// holds them. The low three bits of pa are ignored.
func word(regions []Region, pa GPA) *uint64 {
	pa &^= 7
	for i := range regions {
		r := &regions[i]
		if off := uint64(pa) - uint64(r.Base); off < uint64(len(r.Bytes)) {
			if r.Fetch != nil && !r.Fetch(off, 8) {
				return nil
			}
			// SAFETY: off is inside Bytes and a multiple of 8, because pa and
			// Base are; Bytes starts 8-byte aligned and is a whole number of
			// pages (Memory.Add), so all 8 bytes are inside and aligned.
			return (*uint64)(unsafe.Pointer(&r.Bytes[off]))
		}
	}
	return nil
}

// loadWord reads the word at pa in one access, as the processor's own page walk does:
// the guest may be writing it. It returns false if no region holds it. The byte order
// is the guest's: only amd64 hosts run it.
func loadWord(regions []Region, pa GPA) (uint64, bool) {
	p := word(regions, pa)
	if p == nil {
		return 0, false
	}
	return atomic.LoadUint64(p), true
}

// storeWord writes the word at pa in one access and reports whether there is
// memory for it.
func storeWord(regions []Region, pa GPA, v uint64) bool {
	p := word(regions, pa)
	if p == nil {
		return false
	}
	atomic.StoreUint64(p, v)
	return true
}

// swapWord replaces the word at pa by v if it is old, and reports whether it did.
func swapWord(regions []Region, pa GPA, old, v uint64) bool {
	p := word(regions, pa)
	return p != nil && atomic.CompareAndSwapUint64(p, old, v)
}
