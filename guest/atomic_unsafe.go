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

// loadEntry reads the aligned 8-byte little-endian value of the page-table
// entry at pa in one access, as the processor's own walk does: the guest may
// be writing it. It reports false when no region holds it. The low three bits
// of pa are ignored.
func loadEntry(regions []Region, pa GPA) (uint64, bool) {
	pa &^= 7
	for i := range regions {
		r := &regions[i]
		if off := uint64(pa) - uint64(r.Base); off < uint64(len(r.Bytes)) {
			// SAFETY: off is inside Bytes and a multiple of 8, because pa and
			// Base are; Bytes starts 8-byte aligned and is a whole number of
			// pages (Memory.Add), so all 8 bytes are inside and aligned.
			return atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.Bytes[off]))), true
		}
	}
	return 0, false
}
