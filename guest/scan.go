package guest

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// Window is a range of values: N of them, from Lo on.
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

// replace replaces each word that Scan would find in b by the result of with; no
// other code may use b.
func replace(b []byte, x, y Window, with func(v uint64) uint64) {
	for ; len(b) >= 8; b = b[8:] {
		if v := binary.LittleEndian.Uint64(b); v-x.Lo < x.N || v-y.Lo < y.N {
			binary.LittleEndian.PutUint64(b, with(v))
		}
	}
}

// ScanBytes calls found with the offset of each 8 bytes of b, which is short and
// owned by the caller, that form a number in one of two windows. found may change
// them.
func ScanBytes(b []byte, x, y Window, found func(off int, v uint64)) {
	for off := 0; off+8 <= len(b); off++ {
		if v := binary.LittleEndian.Uint64(b[off:]); v-x.Lo < x.N || v-y.Lo < y.N {
			found(off, v)
		}
	}
}

// ScanUneven calls found with the offset of each 8 bytes of b at an offset that is
// not a multiple of 8 that form, in this byte order, a number in one of two windows.
// It searches for the bytes that all numbers of a window have in common, so narrow
// windows are fast. The guest may be changing b.
func ScanUneven(b []byte, x, y Window, found func(off int, v uint64)) {
	for i, w := range [...]Window{x, y} {
		if w.N == 0 || i == 1 && w == x {
			continue
		}
		var lo [8]byte
		binary.LittleEndian.PutUint64(lo[:], w.Lo)
		skip := (bits.Len64(w.Lo^(w.Lo+w.N-1)) + 7) / 8 // bytes that differ within the window
		for off := 0; off+8 <= len(b); off++ {
			if skip < 8 {
				n := bytes.Index(b[off+skip:], lo[skip:])
				if n < 0 {
					break
				}
				off += n
			}
			if v := binary.LittleEndian.Uint64(b[off:]); off%8 != 0 && v-w.Lo < w.N {
				found(off, v)
			}
		}
	}
}
