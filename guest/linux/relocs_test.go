package linux

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestSlideWords: only words that are completely in a piece of the image are relocated, and back.
func TestSlideWords(t *testing.T) {
	list := func(pas ...uint32) (b []byte) {
		for _, pa := range pas {
			b = binary.LittleEndian.AppendUint32(b, pa+KernelMap&0xffff_ffff)
		}
		return b
	}
	r := &relocs{abs64: list(0x1000, 0x1020), inv32: list(0x1010), abs32: list(0x100a, 0x101c)}
	before := bytes.Repeat([]byte{0x10}, 0x28)
	want := bytes.Clone(before)
	for _, at := range []struct{ off, is int }{{0x1, 0x12}, {0xb, 0x12}, {0x11, 0x0e}, {0x1d, 0x12}, {0x21, 0x12}} {
		want[at.off] = byte(at.is)
	}
	for _, tt := range []struct{ from, to int }{{0, 0x28}, {0, 8}, {0xa, 0x14}, {0x1c, 0x20}} {
		b := bytes.Clone(before)
		r.slideWords(b[tt.from:tt.to], 0x1000+uint64(tt.from), 0x200)
		if !bytes.Equal(b[tt.from:tt.to], want[tt.from:tt.to]) {
			t.Errorf("%#x to %#x: % x, want % x", tt.from, tt.to, b[tt.from:tt.to], want[tt.from:tt.to])
		}
		minus := uint64(0x200)
		if r.slideWords(b[tt.from:tt.to], 0x1000+uint64(tt.from), -minus); !bytes.Equal(b, before) {
			t.Errorf("%#x to %#x, and back: % x", tt.from, tt.to, b)
		}
	}
	b := bytes.Clone(before)
	if r.slideWords(b[1:7], 0x1001, 0x200); !bytes.Equal(b, before) { // in the middle of a word
		t.Errorf("a part of a word was slid: % x", b)
	}
	if r.slideWords(b[0xb:0x12], 0x100b, 0x200); !bytes.Equal(b, before) { // between two
		t.Errorf("parts of words were slid: % x", b)
	}
}
