package machine

import "testing"

// TestSemaphoreShare checks how much is subtracted from a process's copy of a semaphore: what was added, even if the guest's own tracers count too.
func TestSemaphoreShare(t *testing.T) {
	known, other := place{0x1000, 0x404000}, place{0x2000, 0x404000}
	for _, c := range []struct {
		name     string
		s        semaphore
		at       place
		n, first uint16
		want     uint16
	}{
		{"a copy of before the first probe", semaphore{want: 2}, other, 0, 0, 0},
		{"one that a tracer of the guest's counted in before", semaphore{want: 2}, other, 2, 0, 0},
		{"one that a tracer of the guest's counts in", semaphore{want: 2, most: 2, traced: true}, other, 2, 0, 0},
		{"a copy of the page cache's", semaphore{want: 2, was: 2, most: 2}, other, 2, 0, 2},
		{"one of before a change", semaphore{want: 1, was: 1, most: 2}, other, 2, 0, 2},
		{"one of a file that begins with another number", semaphore{want: 2, was: 2, most: 2}, other, 7, 5, 2},
		{"beside a tracer", semaphore{want: 2, was: 2, most: 2, traced: true}, other, 3, 0, 2},
		{"more than there ever was", semaphore{want: 2, was: 2, most: 2}, other, 9, 0, 2},
		{"a known one", semaphore{want: 0, was: 2, most: 2, copies: map[place]uint16{known: 2}}, known, 2, 0, 2},
		{"a known one that was in the swap", semaphore{want: 0, was: 0, most: 3, copies: map[place]uint16{known: 3}}, known, 4, 0, 3},
		{"a known one beside a tracer", semaphore{want: 0, was: 1, most: 1, copies: map[place]uint16{known: 1}}, known, 5, 0, 1},
		{"one that the program has cleared", semaphore{want: 0, was: 2, most: 2, copies: map[place]uint16{known: 2}}, known, 0, 0, 0},
		{"one below the file's", semaphore{want: 0, was: 2, most: 2, copies: map[place]uint16{known: 2}}, known, 3, 5, 0},
		{"the largest number", semaphore{want: 1, was: 1, most: 1}, other, 0xffff, 0, 1},
	} {
		if got := c.s.share(c.at, c.n, c.first); got != c.want {
			t.Errorf("%s: %d of %d, want %d", c.name, got, c.n, c.want)
		}
	}
}
