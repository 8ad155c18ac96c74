package analyze

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// bzImage wraps a payload in a boot sector, three setup sectors and 16 bytes.
func bzImage(payload []byte) []byte {
	b := make([]byte, 4*512+16)
	b[0x1f1] = 3
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(b[0x248:], 16)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(payload)))
	return append(append(b, payload...), "trailer"...)
}

// sized appends the kernel's size, as the build of Linux does.
func sized(stream []byte, n int) []byte {
	return binary.LittleEndian.AppendUint32(stream, uint32(n))
}

// pack compresses b in each way.
func pack(t testing.TB, b []byte) map[string][]byte {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	out := map[string][]byte{"": b}
	var buf bytes.Buffer
	g := gzip.NewWriter(&buf)
	_, err := g.Write(b)
	check(err)
	check(g.Close())
	out["gzip"] = bytes.Clone(buf.Bytes())
	buf.Reset()
	x, err := xz.WriterConfig{CheckSum: xz.CRC32}.NewWriter(&buf)
	check(err)
	_, err = x.Write(b)
	check(err)
	check(x.Close())
	out["xz"] = sized(bytes.Clone(buf.Bytes()), len(b))
	buf.Reset()
	z, err := zstd.NewWriter(&buf)
	check(err)
	_, err = z.Write(b)
	check(err)
	check(z.Close())
	out["zstd"] = sized(bytes.Clone(buf.Bytes()), len(b))
	// lz4 with literals only, in two blocks.
	stream := []byte("\x02\x21\x4c\x18")
	for _, part := range [][]byte{b[:len(b)/2], b[len(b)/2:]} {
		block := []byte{0xf0}
		n := len(part) - 15
		for ; n >= 255; n -= 255 {
			block = append(block, 255)
		}
		block = append(append(block, byte(n)), part...)
		stream = append(binary.LittleEndian.AppendUint32(stream, uint32(len(block))), block...)
	}
	out["lz4"] = sized(stream, len(b))
	return out
}

func TestPackings(t *testing.T) {
	kernel := buildELF(t, part{name: ".text", addr: kernelBase, data: bytes.Repeat([]byte{0x90, 0xc3}, 400), x: true})
	for name, stream := range pack(t, kernel) {
		payload, ok := bzImagePayload(bzImage(stream))
		if !ok || !bytes.Equal(payload, stream) {
			t.Errorf("%s: the payload was not found", name)
			continue
		}
		got, packing, err := decompress(payload)
		if err != nil || packing != name || !bytes.Equal(got, kernel) {
			t.Errorf("%q: got %d bytes, packing %q, error %v", name, len(got), packing, err)
		}
		if name == "" {
			continue
		}
		if _, _, err := decompress(payload[:len(payload)*2/3]); err == nil {
			t.Errorf("%s: a stream that is cut off was taken", name)
		}
	}
	if _, _, err := decompress([]byte("\x89LZO\x00\r\n\x1a")); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("lzo: got %v", err)
	}
	for n := range 0x260 {
		bzImagePayload(bzImage(kernel)[:n])
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
	got, err := unXZ(stream, 4096)
	if err != nil || !bytes.Equal(got, x86Data()) {
		t.Errorf("got %d bytes, error %v", len(got), err)
	}
	if _, err := unXZ(stream, 4095); !errors.Is(err, errXZ) {
		t.Errorf("one byte less than needed: got %v", err)
	}
	for at := range stream {
		b := bytes.Clone(stream)
		b[at] ^= 1
		// What the index and footer say is not looked at.
		if got, err := unXZ(b, 4096); err == nil && !bytes.Equal(got, x86Data()) {
			t.Errorf("damage at %d of %d was not noticed", at, len(stream))
		}
	}
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
		got, err := unLZ4(nil, []byte(tt.block))
		if string(got) != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: got %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}

func FuzzDecompress(f *testing.F) {
	for _, b := range pack(f, bytes.Repeat([]byte("\x7fELF"), 20)) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if out, err := unXZ(b, 1<<16); err == nil && len(out) > 1<<16 {
			t.Errorf("%d bytes, more than the limit", len(out))
		}
		if out, err := unLZ4(nil, b); err == nil && len(out) > lz4Block {
			t.Errorf("%d bytes, more than a block", len(out))
		}
		unX86(b)
	})
}
