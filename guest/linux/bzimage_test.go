package linux

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

func TestPackings(t *testing.T) {
	kernel := kerneltest.ELF(kerneltest.Section{Name: ".text", Addr: kerneltest.Base, Data: bytes.Repeat([]byte{0x90, 0xc3}, 400), X: true})
	for name, stream := range kerneltest.Pack(t, kernel) {
		got, packing, err := Unpack(kerneltest.BzImage(stream))
		if err != nil || packing != name || !bytes.Equal(got, kernel) {
			t.Errorf("%q: got %d bytes, packing %q, error %v", name, len(got), packing, err)
		}
		if name == "" {
			continue
		}
		if _, _, err := decompress(stream[:len(stream)*2/3]); err == nil {
			t.Errorf("%s: a stream that is cut off was taken", name)
		}
	}
	if _, _, err := decompress([]byte("\xff\xffnothing")); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("an unknown one: got %v", err)
	}
	whole := kerneltest.BzImage(kernel)
	for n := range len(whole) - len("trailer") {
		_, _, err := Unpack(whole[:n])
		if want := n < 0x250; err == nil || errors.Is(err, ErrNotKernel) != want {
			t.Errorf("the first %d bytes: got %v", n, err)
		}
	}
}

// x86Data is bytes full of what the x86 filter looks at.
func x86Data() []byte {
	rng := rand.New(rand.NewPCG(8, 8))
	b := make([]byte, 4096)
	for i := range b {
		b[i] = []byte{0xe8, 0xe9, 0x00, 0xff, 0x00, 0xff, byte(rng.Uint32()), 0x90}[rng.IntN(8)]
	}
	return b
}

// TestX86Filter decodes what xz itself has packed:
//
//	xz --check=crc32 --x86 --lzma2=preset=9 <x86Data >testdata/x86.xz
func TestX86Filter(t *testing.T) {
	stream, err := os.ReadFile("testdata/x86.xz")
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeXZ(stream, 4096)
	if err != nil || !bytes.Equal(got, x86Data()) {
		t.Errorf("got %d bytes, error %v", len(got), err)
	}
	if _, err := decodeXZ(stream, 4095); !errors.Is(err, errXZ) {
		t.Errorf("one byte less than needed: got %v", err)
	}
	for at := range stream {
		b := bytes.Clone(stream)
		b[at] ^= 1
		// What the index and footer say is not looked at.
		if got, err := decodeXZ(b, 4096); err == nil && !bytes.Equal(got, x86Data()) {
			t.Errorf("damage at %d of %d was not noticed", at, len(stream))
		}
	}
}

// TestLZO decodes what lzop itself has packed, of which the second block is not
// compressed:
//
//	lzop -9 <lzoData >testdata/data.lzo
func TestLZO(t *testing.T) {
	stream, err := os.ReadFile("testdata/data.lzo")
	if err != nil {
		t.Fatal(err)
	}
	want := lzoData()
	got, packing, err := decompress(append(bytes.Clone(stream), 0, 0, 0, 0))
	if err != nil || packing != "lzo" || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, packing %q, error %v", len(got), packing, err)
	}
	if _, err := decodeLZO(stream, len(want)-1); !errors.Is(err, errLZO) {
		t.Errorf("one byte less than needed: got %v", err)
	}
	for n := range stream {
		if got, err := decodeLZO(stream[:n], len(want)); err == nil && n < len(stream)-4 {
			t.Errorf("the first %d of %d bytes: got %d bytes", n, len(stream), len(got))
		}
	}
}

// lzoData has copies from near and far, short and long, and then what cannot be
// compressed.
func lzoData() []byte {
	rng := rand.New(rand.NewPCG(9, 9))
	var b []byte
	for len(b) < lzoBlock {
		n := 1 + rng.IntN(1<<rng.IntN(10))
		back := 1 + rng.IntN(1<<rng.IntN(17))
		if rng.IntN(4) == 0 {
			back = 16384 // from where farther away is written in another way, which ends the stream, too
		}
		switch {
		case rng.IntN(8) == 0:
			b = append(b, bytes.Repeat([]byte{byte(rng.Uint32())}, n)...)
		case back > len(b) || rng.IntN(16) == 0:
			for range min(n, 20) {
				b = append(b, byte(rng.Uint32()))
			}
		default:
			for range n {
				b = append(b, b[len(b)-back])
			}
		}
	}
	b = b[:lzoBlock]
	for range 200 {
		b = append(b, byte(rng.Uint32()))
	}
	return b
}

func TestLZ4Copies(t *testing.T) {
	for _, tt := range []struct {
		name, block, want string
	}{
		{"literals", "\x30abc", "abc"},
		{"a copy that overlaps", "\x12a\x01\x00\x10z", "aaaaaaaz"},
		{"a long copy", "\x1fa\x01\x00\x03\x10z", "a" + string(bytes.Repeat([]byte("a"), 22)) + "z"},
		{"a copy from before the block", "\x10a\x02\x00\x10z", ""},
		{"offset 0", "\x10a\x00\x00\x10z", ""},
		{"no last literals", "\x10a\x01\x00", ""},
		{"cut off literals", "\x30ab", ""},
		{"cut off length", "\xf0\xff", ""},
		{"cut off offset", "\x10a\x01", ""},
	} {
		got, err := decodeLZ4(nil, []byte(tt.block))
		if string(got) != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: got %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}

func FuzzDecompress(f *testing.F) {
	for _, b := range kerneltest.Pack(f, bytes.Repeat([]byte("\x7fELF"), 20)) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if out, err := decodeXZ(b, 1<<16); err == nil && len(out) > 1<<16 {
			t.Errorf("%d bytes, more than the limit", len(out))
		}
		if out, err := decodeLZ4(nil, b); err == nil && len(out) > lz4Block {
			t.Errorf("%d bytes, more than a block", len(out))
		}
		if out, err := decodeLZO(b, 1<<20); err == nil && len(out) > 1<<20 {
			t.Errorf("%d bytes, more than the limit", len(out))
		}
		if out, err := decodeLZO1X([]byte("before"), b, 1<<16); err == nil && (len(out) != 6+1<<16 || string(out[:6]) != "before") {
			t.Errorf("a block of %d bytes", len(out))
		}
		undoX86(b)
	})
}
