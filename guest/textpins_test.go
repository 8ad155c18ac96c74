package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// TestTextPins: bytes are restored in the memory in which they were replaced, even if the page tables now map other memory there. Then the page
// is where the tables map it.
func TestTextPins(t *testing.T) {
	const va, other = GVA(0xffe), GPA(0xa000)
	p := sampleTables(t)
	tables := NewAddressSpace(p.mem, 0x1000)
	was, err := tables.Translate(va)
	if err != nil {
		t.Fatal(err)
	}
	table, err := tables.Table(va, 1)
	if err != nil {
		t.Fatal(err)
	}
	entry := p.host[table+GPA(va>>12&511)*8:][:8]
	first := bytes.Clone(entry)
	remap := func() {
		binary.LittleEndian.PutUint64(entry, uint64(other)|binary.LittleEndian.Uint64(first)&(page4K-1))
	}
	byteAt := func(pa GPA) byte { return p.host[pa] }
	there := was.PA - GPA(va&(page4K-1)) // the first frame
	in := GPA(va & (page4K - 1))
	var pins TextPins
	as := tables.WithPins(&pins)
	text := NewText(as)
	patch := func(old, new byte, n int) error {
		return text.Patch(va, bytes.Repeat([]byte{old}, n), bytes.Repeat([]byte{new}, n))
	}
	want := func(what string, a, b byte) {
		t.Helper()
		if x, y := byteAt(there+in), byteAt(other+in); x != a || y != b {
			t.Errorf("%s: the first frame has %#x, the second %#x; want %#x and %#x", what, x, y, a, b)
		}
	}
	orig := byteAt(there + in)
	if byteAt(other+in) != orig {
		t.Fatal("the frames differ")
	}

	for _, n := range []int{1, 4} { // in one page, and across two
		if err := patch(orig, 0xcc, n); err != nil {
			t.Fatal(err)
		}
		remap()
		want("patched, then mapped elsewhere", 0xcc, orig)
		if got := mustRead(t, as, va, 1); got[0] != 0xcc {
			t.Errorf("with its pins it has %#x", got[0])
		}
		if got := mustRead(t, tables, va, 1); got[0] != orig {
			t.Errorf("the guest has %#x", got[0])
		}
		// Restored temporarily, as for a snapshot: the patch is made in the same memory again.
		if err := errors.Join(patch(0xcc, orig, n), patch(orig, 0xcc, n)); err != nil {
			t.Fatal(err)
		}
		want("back for a moment", 0xcc, orig)
		pins.Sweep()
		if err := patch(0xcc, orig, n); err != nil {
			t.Fatal(err)
		}
		want("put back", orig, orig)
		pins.Sweep()
		if err := patch(orig, 0xcc, n); err != nil {
			t.Fatal(err)
		}
		want("patched again", orig, 0xcc)
		if err := patch(0xcc, orig, n); err != nil {
			t.Fatal(err)
		}
		pins.Sweep()
		copy(entry, first)
	}

	// The guest overwrites a byte in the second page: the rest of the patch is
	// reverted in the first frame, and in the second.
	own := []byte{orig, orig, orig, orig}
	patched := []byte{0xcc, orig, 0x12, 0x13}
	if err := text.Patch(va, own, patched); err != nil {
		t.Fatal(err)
	}
	remap()
	last := mustSlice(t, p, tables, va+3)
	last[0] = 0x77
	var mismatch *TextMismatchError
	if err := text.Patch(va, patched, own); !errors.As(err, &mismatch) {
		t.Fatalf("got %v, want a TextMismatchError", err)
	}
	if err := text.Patch(va, mismatch.Got, []byte{orig, orig, orig, 0x77}); err != nil {
		t.Fatal(err)
	}
	want("overwritten in the second page", orig, orig)
	last[0] = orig
	pins.Sweep()
	if err := patch(orig, 0xcc, 1); err != nil {
		t.Fatal(err)
	}
	want("patched again behind that", orig, 0xcc)
	if err := patch(0xcc, orig, 1); err != nil {
		t.Fatal(err)
	}
	pins.Sweep()
	copy(entry, first)

	// The first frame is reused: the byte in it stays, and the next patch is made where the address is mapped now.
	if err := patch(orig, 0xcc, 1); err != nil {
		t.Fatal(err)
	}
	remap()
	p.host[there+in] = 0x77
	if err := patch(0xcc, orig, 1); !errors.As(err, new(*TextMismatchError)) {
		t.Errorf("got %v, want a TextMismatchError", err)
	}
	pins.Sweep()
	if err := patch(orig, 0xcc, 1); err != nil {
		t.Error(err)
	}
	want("used for something else", 0x77, 0xcc)

	// Without memory at the address, bytes are still restored.
	clear(entry)
	if err := patch(0xcc, orig, 1); err != nil {
		t.Error(err)
	}
	want("not mapped", 0x77, orig)
	pins.Sweep()
	if err := patch(orig, 0xcc, 1); !errors.As(err, new(*PageFaultError)) {
		t.Errorf("got %v, want a PageFaultError", err)
	}
}

// mustSlice returns the host memory at va.
func mustSlice(t *testing.T, p pokeTable, as AddressSpace, va GVA) []byte {
	t.Helper()
	m, err := as.Translate(va)
	if err != nil {
		t.Fatal(err)
	}
	return p.host[m.PA:][:1]
}
