package guest

import "encoding/binary"

// Window is a range of values: those from Lo on, N of them.
type Window struct{ Lo, N uint64 }

// Scan calls found with each 8-byte word at a multiple of 8 of b, which is guest
// memory, that is in one of two windows. The guest may be changing the words: each is
// read in one access.
func Scan(b []byte, x, y Window, found func(v uint64)) {
	words := AtomicWords(b)
	for i := range words {
		if v := words[i].Load(); v-x.Lo < x.N || v-y.Lo < y.N {
			found(v)
		}
	}
}

// Replace puts what with returns in the place of each word that Scan would find in b, which nobody else
// has.
func Replace(b []byte, x, y Window, with func(v uint64) uint64) {
	for ; len(b) >= 8; b = b[8:] {
		if v := binary.LittleEndian.Uint64(b); v-x.Lo < x.N || v-y.Lo < y.N {
			binary.LittleEndian.PutUint64(b, with(v))
		}
	}
}
