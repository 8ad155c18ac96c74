package bpf

import (
	"sync/atomic"
	"unsafe"
)

// word64 returns the 64-bit word at b[off:]. Outside b, or not aligned, it
// panics: callers compute off from a map's geometry, never from its contents.
//
// SAFETY: the slice expression proves that the 8 bytes lie in b, whose memory
// the caller keeps; alignment is tested, so the pointer is valid for atomics.
func word64(b []byte, off int) *uint64 {
	p := unsafe.Pointer(unsafe.SliceData(b[off : off+8]))
	if uintptr(p)&7 != 0 {
		panic("BUG: 64-bit word of a map is not aligned")
	}
	return (*uint64)(p)
}

// word32 is word64 for 32 bits.
//
// SAFETY: as for word64.
func word32(b []byte, off int) *uint32 {
	p := unsafe.Pointer(unsafe.SliceData(b[off : off+4]))
	if uintptr(p)&3 != 0 {
		panic("BUG: 32-bit word of a map is not aligned")
	}
	return (*uint32)(p)
}

// aligned reports whether b starts at a multiple of n in the host's memory.
//
// SAFETY: the address is only compared.
func aligned(b []byte, n uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&(n-1) == 0
}

// alignedBytes returns n zeroed bytes that start at a multiple of 64.
//
// SAFETY: the address is only compared; Go does not move heap allocations.
func alignedBytes(n int) []byte {
	b := make([]byte, n+63)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & 63
	return b[skip : skip+n : skip+n]
}

func load64(b []byte, off int) uint64     { return atomic.LoadUint64(word64(b, off)) }
func store64(b []byte, off int, v uint64) { atomic.StoreUint64(word64(b, off), v) }
func add64(b []byte, off int, v uint64) uint64 {
	return atomic.AddUint64(word64(b, off), v)
}
func cas32(b []byte, old, v uint32) bool {
	return atomic.CompareAndSwapUint32(word32(b, 0), old, v)
}
func store32(b []byte, v uint32) { atomic.StoreUint32(word32(b, 0), v) }
func cas64(b []byte, off int, old, v uint64) bool {
	return atomic.CompareAndSwapUint64(word64(b, off), old, v)
}
