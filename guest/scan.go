package guest

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
