package kvm

import (
	"bytes"
	"errors"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// pieces yields what a table has, ascending.
func pieces(of map[int][]byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for _, at := range slices.Sorted(maps.Keys(of)) {
			if !yield(at, of[at]) {
				return
			}
		}
	}
}

// TestBase writes to memory at random, where its base has bytes and where it has none, near them and far: each time it comes back as
// it was, what is told is how many pages were written, and the base's pages are among those touched. Then it is zeros again.
func TestBase(t *testing.T) {
	page := os.Getpagesize()
	const pages = 9_000 // more than are asked for at a time
	mem, err := AllocMemory(pages * page)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := FreeMemory(mem); err != nil {
			t.Error(err)
		}
	}()
	rnd := rand.New(rand.NewPCG(3, 4))
	of := map[int][]byte{}
	for at := 5; at < pages; at += 1 + rnd.IntN(2*baseGap)*rnd.IntN(2)*4 {
		of[at*page] = bytes.Repeat([]byte{byte(1 + rnd.IntN(255))}, page)
	}
	of[(pages-1)*page] = bytes.Repeat([]byte{7}, page)
	want := make([]byte, len(mem))
	for at, b := range of {
		copy(want[at:], b)
	}
	mem[0], mem[3*page] = 1, 1 // what was there before is gone
	b, err := NewBase(mem, pieces(of))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Madvise(mem, unix.MADV_NOHUGEPAGE); err != nil {
		t.Logf("huge pages: %v", err)
	}
	for round := range 5 {
		touched := map[int]bool{}
		b.ForEachTouched(func(p []byte) {
			at := int(addressOf(p) - addressOf(mem))
			for i := 0; i < len(p); i += page {
				touched[at+i] = true
			}
		})
		for at := range of {
			if !touched[at] {
				t.Fatalf("round %d: the page at %#x is not among those touched", round, at)
			}
		}
		if !bytes.Equal(mem, want) {
			t.Fatalf("round %d: it is not what it was", round)
		}
		if err := ignoreCount(b.Restore()); err != nil { // the zeros that were read above
			t.Fatal(err)
		}
		written := map[int]bool{0: true, pages - 1: true}
		for range 500 {
			at := rnd.IntN(pages)
			written[at] = true
		}
		for at := range written {
			mem[at*page+rnd.IntN(page)]++
		}
		if n, err := b.Restore(); n != len(written) || err != nil {
			t.Fatalf("round %d: %d pages were written, want %d, %v", round, n, len(written), err)
		}
	}
	if err := ZeroMemory(mem); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem, make([]byte, len(mem))) {
		t.Error("not all of it is zeros")
	}
	for name, bad := range map[string]map[int][]byte{
		"behind the end": {pages * page: make([]byte, page)},
		"over the end":   {(pages - 1) * page: make([]byte, 2*page)},
		"half a page":    {0: make([]byte, page/2)},
		"between pages":  {100: make([]byte, page)},
		"overlap":        {0: make([]byte, 2*page), page: make([]byte, page)},
	} {
		if _, err := NewBase(mem, pieces(bad)); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", name, err)
		}
	}
}

func ignoreCount(_ int, err error) error { return err }
