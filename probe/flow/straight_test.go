package flow

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// textOf returns a text with these bytes at base, cut into spans of each bytes. The last span overlaps the one before.
func textOf(code []byte, each int) Text {
	end := base + uint64(len(code))
	ranges := []Span{{base, end}}
	return Text{
		Ranges: ranges,
		Text:   func(a uint64) bool { return a >= base && a < end || a-base-0x100_0000 < 0x1000 },
		Read: func(a uint64, p []byte) bool {
			return a >= base && a+uint64(len(p)) <= end && copy(p, code[a-base:]) == len(p)
		},
		Spans: func() (spans []Span) {
			for at := uint64(base); at < end; at += uint64(each) {
				spans = append(spans, Span{at, min(at+uint64(each), end)})
			}
			if n := uint64(len(code)); n > 7 {
				spans = append(spans, Span{max(spans[len(spans)-1].Lo, end-7), end})
			}
			return spans
		},
	}
}

// checkText fails the test if a text's branches differ from those found by decoding its spans.
func checkText(t *testing.T, code []byte, each int) {
	t.Helper()
	text := textOf(code, each)
	b, straight := NewBuilder(text.Text), NewBuilder(text.Text)
	if !b.AddText(text) {
		t.Fatal("it cannot be read")
	}
	for _, s := range text.Spans() {
		straight.AddStraight(s.Lo, code[s.Lo-base:s.Hi-base])
	}
	x, want := b.Index(), straight.Index().targets
	if got := x.Targets(0, ^uint64(0)); !slices.Equal(got, want) || !x.Complete() {
		t.Fatalf("% x in spans of %d: targets %#x, want %#x", code, each, got, want)
	}
	for lo := uint64(base) - 2; lo < base+uint64(len(code))+2; lo++ {
		for _, n := range []uint64{0, 1, 5, 40} {
			first, _ := slices.BinarySearch(want, lo)
			end, _ := slices.BinarySearch(want, lo+n)
			if got := x.Targets(lo, lo+n); !slices.Equal(got, want[first:end]) {
				t.Fatalf("% x in spans of %d: from %#x to %#x %#x, want %#x", code, each, lo, lo+n, got, want[first:end])
			}
		}
	}
	for _, a := range want {
		if !x.reached(a) {
			t.Errorf("no path leads to %#x", a)
		}
	}
}

// TestText checks random code, most of it branches, in spans of all lengths.
func TestText(t *testing.T) {
	random, found := rand.New(rand.NewPCG(7, 8)), 0
	opcodes := []string{"\xe8", "\xe9", "\x0f\x84", "\x66\xe8", "\x66\x48\xe9", "\xc7\xf8", "\x66\xc7\xf8", "\xd5\x00\xe8", "\xd5\x00\xa1", "\xf2\xe9", "\x74", "\xeb", "\xe3", "\x67\xe3", "\x66\xeb", "\x90", "\xd5\x80\x84"}
	for range 300 {
		var code []byte
		for n := random.IntN(400); len(code) < n; {
			code = append(code, opcodes[random.IntN(len(opcodes))]...)
			switch to := base + uint64(random.IntN(n+4)) - 2; random.IntN(6) {
			case 0, 1:
				code = binary.LittleEndian.AppendUint32(code, uint32(to-base-uint64(len(code))-4))
			case 2:
				code = append(code, byte(to-base-uint64(len(code))-1))
			case 3:
				code = binary.LittleEndian.AppendUint64(code, to)
			case 4:
				code = binary.LittleEndian.AppendUint32(code, 0x100_0000+uint32(random.IntN(0x1100)))
			}
		}
		if len(code) > 0 {
			checkText(t, code, 1+random.IntN(len(code)))
			found++
		}
	}
	if found < 200 {
		t.Errorf("%d texts", found)
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("\xe8\x01\x00\x00\x00\x90\x90\x74\xf8\x0f\x84\x01\x00\x00\x00"), uint8(5))
	f.Add([]byte("\xd5\x00\xa1\x03\x00\x00\x81\xff\xff\xff\xff\xc7\xf8\x00\x00\x00\x00\xc3\xc3"), uint8(9))
	f.Add([]byte("\x66\xe8\x01\x00\x00\x00\x90\x66\xeb\x01\xe3\xf0\x67\xe3\x05"), uint8(3))
	f.Fuzz(func(t *testing.T, code []byte, each uint8) {
		if len(code) > 0 && len(code) < 1000 {
			checkText(t, code, 1+int(each))
		}
	})
}

// TestTextChanges: a branch found by the scan stays known after the guest has overwritten it or removed its memory. A
// text that cannot be read completely is rejected.
func TestTextChanges(t *testing.T) {
	code := slices.Repeat([]byte{0x90}, 300)
	copy(code[200:], []byte{0xe9, 0x3b, 0xff, 0xff, 0xff}) // to base+8
	text, readable := textOf(code, 150), true
	read := text.Read
	text.Read = func(a uint64, p []byte) bool { return readable && read(a, p) }
	b := NewBuilder(text.Text)
	if !b.AddText(text) {
		t.Fatal("it cannot be read")
	}
	x := b.Index()
	check := func(what string, want bool) {
		t.Helper()
		if got := x.Targets(base+8, base+9); len(got) > 0 != want {
			t.Errorf("%s: targets %#x", what, got)
		}
	}
	check("at first", true)
	code[200] = 0xcc
	check("with a breakpoint of the guest's", true)
	code[200] = 0xe9
	copy(code[195:], []byte{0x48, 0xb8}) // the former branch is now part of a number
	check("with another instruction over it", false)
	readable = false
	check("of memory that is gone", true)
	if NewBuilder(text.Text).AddText(text) {
		t.Error("text that cannot be read was taken")
	}
}
