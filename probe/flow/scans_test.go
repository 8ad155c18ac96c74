package flow

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// scannedText returns a text of random branches, longer than a window, with an address to relocate every 1,000 bytes.
func scannedText(slide uint64) Text {
	random := rand.New(rand.NewPCG(9, 10))
	code := make([]byte, 2*scanSize+777)
	for i := range code {
		code[i] = []byte{0x90, 0xe8, 0xe9, 0x0f, 0x84, 0x00, 0x01, 0xff, 0x00, 0xc3}[random.IntN(10)]
	}
	text := textOf(code, 300)
	text.Link = func(addr uint64, p []byte, back bool) {
		by := byte(slide)
		if !back {
			by = -by
		}
		for at := (addr - base + 999) / 1000 * 1000; at-(addr-base) < uint64(len(p)); at += 1000 {
			p[at-(addr-base)] += by
		}
	}
	around := []byte{0x90, 0x90, 0x90, 0x90, 0x90, byte(0x48 + slide), 0x90, 0x90, 0x90, 0x90} // not part of a branch
	copy(code, around[5:])
	for at := 1000; at < len(code); at += 1000 {
		copy(code[at-5:], around)
	}
	return text
}

// branchesOf returns the targets in a text, and how many of its windows were scanned.
func branchesOf(t *testing.T, text Text, scans *Scans) (targets []uint64, fresh int) {
	t.Helper()
	if text.Scans = scans; scans != nil {
		scans.OnChange(func() { fresh++ })
	}
	b := NewBuilder(text.Text)
	if !b.AddText(text) {
		t.Fatal("it cannot be read")
	}
	return b.Index().Targets(0, ^uint64(0)), fresh
}

// TestScans: a text that was scanned before has the same branches, also with encoded scans, at another slide, and after a change of a part. Only
// that part is scanned again.
func TestScans(t *testing.T) {
	want, _ := branchesOf(t, scannedText(0), nil)
	if len(want) < 1000 {
		t.Fatalf("%d targets", len(want))
	}
	scans := NewScans()
	check := func(what string, text Text, windows int) {
		t.Helper()
		want, _ := branchesOf(t, text, nil)
		if got, fresh := branchesOf(t, text, scans); !slices.Equal(got, want) || fresh != windows {
			t.Errorf("%s: %d targets, want %d; %d windows scanned, want %d", what, len(got), len(want), fresh, windows)
		}
	}
	check("first", scannedText(0), 3)
	check("again", scannedText(0), 0)
	check("slid", scannedText(3), 0)
	var err error
	if scans, err = DecodeScans(scans.Encode()); err != nil {
		t.Fatal(err)
	}
	check("decoded", scannedText(5), 0)
	changed := scannedText(5)
	read := changed.Read
	changed.Read = func(addr uint64, p []byte) bool {
		ok := read(addr, p)
		if at := base + scanSize + 100 - addr; at < uint64(len(p)) {
			p[at] ^= 0xff
		}
		return ok
	}
	check("another byte", changed, 1)
	check("as before", scannedText(7), 0)
}

// TestScansDamaged: all damage of the encoded form is detected, and a table that cannot be the result of a scan is not used.
func TestScansDamaged(t *testing.T) {
	scans := NewScans()
	text := textOf(bytes.Repeat([]byte{0xe8, 0, 0, 0, 0, 0x90}, 20), 7)
	_, _ = branchesOf(t, text, scans)
	good := scans.Encode()
	if _, err := DecodeScans(good); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		for _, bit := range []byte{1, 0x80} {
			bad := slices.Clone(good)
			bad[i] ^= bit
			if _, err := DecodeScans(bad); err == nil {
				t.Errorf("byte %d changed: no error", i)
			}
		}
		if _, err := DecodeScans(good[:i]); err == nil {
			t.Errorf("cut off at %d: no error", i)
		}
	}
	if _, err := DecodeScans(append(slices.Clone(good), good...)); err == nil {
		t.Error("twice: no error")
	}
	want, _ := branchesOf(t, text, nil)
	for name, change := range map[string]func(table []uint64){
		"out of order": func(table []uint64) { table[0], table[1] = table[1], table[0] },
		"elsewhere":    func(table []uint64) { table[2] |= 0xffffff },
	} {
		bad, err := DecodeScans(good)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range bad.kept {
			change(k.table)
		}
		if bad, err = DecodeScans(bad.Encode()); err != nil {
			t.Fatal(err)
		}
		if got, fresh := branchesOf(t, text, bad); !slices.Equal(got, want) || fresh != 1 {
			t.Errorf("%s: targets %#x, want %#x; %d windows scanned", name, got, want, fresh)
		}
	}
}

// TestScansBounded: scans that do not fit are left out, first the ones of earlier processes.
func TestScansBounded(t *testing.T) {
	old := NewScans()
	for k := range 20 {
		old.keep(scanID{at: uint64(k)}, make([]uint64, MaxScans/8/10))
	}
	b := old.Encode()
	if len(b) > MaxScans || len(b) < MaxScans*8/10 {
		t.Errorf("%d bytes", len(b))
	}
	next, err := DecodeScans(b)
	if err != nil {
		t.Fatal(err)
	}
	next.keep(scanID{at: 100}, make([]uint64, MaxScans/8/10))
	last, err := DecodeScans(next.Encode())
	if err != nil || last.kept[scanID{at: 100}] == nil || len(last.kept) != 9 {
		t.Errorf("%d scans, %v", len(last.kept), err)
	}
}

// FuzzScans: any bytes are rejected, or decode to scans that do not change when encoded again. The branches of a text stay correct.
func FuzzScans(f *testing.F) {
	scans := NewScans()
	text := textOf([]byte("\xe8\x01\x00\x00\x00\x90\x90\x74\xf8\x0f\x84\x01\x00\x00\x00"), 5)
	b := NewBuilder(text.Text)
	text.Scans = scans
	b.AddText(text)
	f.Add(scans.Encode(), false)
	f.Add(scans.Encode()[:100], true)
	want := b.Index().Targets(0, ^uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, sum bool) {
		if sum && len(b) >= scansHead { // with a valid hash
			key := newHashKey([32]byte(b[len(scansMagic):scansHead]))
			h := key.sum(b)
			for _, n := range h {
				for k := range 8 {
					b = append(b, byte(n>>(8*k)))
				}
			}
		}
		s, err := DecodeScans(b)
		if err != nil {
			return
		}
		again, err := DecodeScans(s.Encode())
		if err != nil || len(again.kept) != len(s.kept) {
			t.Fatalf("%d scans, then %d: %v", len(s.kept), len(again.kept), err)
		}
		if got, _ := branchesOf(t, text, s); !slices.Equal(got, want) {
			t.Errorf("targets %#x, want %#x", got, want)
		}
	})
}

// TestScansOfChangingText: scans of text that changes for ever take no more memory than MaxScans.
func TestScansOfChangingText(t *testing.T) {
	s := NewScans()
	most := 0
	for k := range uint64(5 * MaxScans / (8 * 1000)) {
		s.keep(scanID{sum: [2]uint64{k, 1}, n: scanSize}, make([]uint64, 1000))
		if most = max(most, s.size); s.size > MaxScans || len(s.kept) > MaxScans/8000 {
			t.Fatalf("%d bytes in %d scans", s.size, len(s.kept))
		}
	}
	if most < MaxScans/2 {
		t.Errorf("at most %d bytes are kept", most)
	}
	if b := s.Encode(); len(b) > MaxScans || len(b) < s.size {
		t.Errorf("%d bytes are encoded, of %d", len(b), s.size)
	}
	last := scanID{sum: [2]uint64{5*MaxScans/(8*1000) - 1, 1}, n: scanSize}
	if _, ok := s.find(last); !ok {
		t.Error("the last scan is not kept")
	}
}
