package kerneltest

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// BzImage wraps a payload in a boot sector, three setup sectors and 16 bytes, with the
// header of a 64-bit kernel that can run with 5 levels of page tables.
func BzImage(payload []byte) []byte {
	b := make([]byte, 4*512+16)
	b[0x1f1] = 3
	b[0x201] = 0x280 - 0x202
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x236:], 1|1<<6)
	binary.LittleEndian.PutUint32(b[0x22c:], 0x7fff_ffff)
	binary.LittleEndian.PutUint32(b[0x230:], 2<<20)
	binary.LittleEndian.PutUint32(b[0x238:], 255)
	binary.LittleEndian.PutUint16(b[0x206:], 0x20f)
	binary.LittleEndian.PutUint32(b[0x248:], 16)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(payload)))
	return append(append(b, payload...), "trailer"...)
}

// appendSize appends the kernel's size, as the build of Linux does.
func appendSize(stream []byte, n int) []byte {
	return binary.LittleEndian.AppendUint32(stream, uint32(n))
}

// Pack compresses b in each way.
func Pack(t testing.TB, b []byte) map[string][]byte {
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
	out["xz"] = appendSize(bytes.Clone(buf.Bytes()), len(b))
	buf.Reset()
	z, err := zstd.NewWriter(&buf)
	check(err)
	_, err = z.Write(b)
	check(err)
	check(z.Close())
	out["zstd"] = appendSize(bytes.Clone(buf.Bytes()), len(b))
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
	out["lz4"] = appendSize(stream, len(b))
	return out
}
