package linux

import (
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// ErrNotKernel is wrapped by errors about files that are not kernels.
var ErrNotKernel = errors.New("not a Linux kernel")

// Unpack returns the kernel in a bzImage, an ELF file followed by the kernel's
// relocations, and the compression, "" for none.
func Unpack(b []byte) (vmlinux []byte, packing string, err error) {
	h, err := readSetupHeader(b)
	if err != nil {
		return nil, "", err
	}
	at, n := uint64(h.sectors()+1)*512+uint64(h.u32(payloadOffset)), uint64(h.u32(payloadLength))
	if h.u32(payloadOffset) == 0 && n == 0 {
		what := "a program with Linux's boot header"
		if bytes.Contains(b, []byte("Memtest86+")) {
			what = "Memtest86+"
		}
		return nil, "", fmt.Errorf("%w: %s, without a compressed kernel; guestprobe boots kernels without their own loader", ErrNotKernel, what)
	}
	if n < 8 || at > uint64(len(b)) || n > uint64(len(b))-at {
		return nil, "", fmt.Errorf("bzImage: its payload, %d bytes at %#x, is not in the file's %d bytes (truncated?)", n, at, len(b))
	}
	return decompress(b[at:][:n])
}

// packings are the compressions of a kernel, by the first bytes. The stream is
// followed by the kernel's size, 4 bytes, except with gzip, which contains it.
var packings = []struct {
	name, magic string
	open        func(io.Reader) (io.Reader, error)
}{
	{"gzip", "\x1f\x8b", func(r io.Reader) (io.Reader, error) {
		z, err := gzip.NewReader(r)
		if err == nil {
			z.Multistream(false)
		}
		return z, err
	}},
	{"bzip2", "BZh", func(r io.Reader) (io.Reader, error) { return bzip2.NewReader(r), nil }},
	{"xz", "\xfd7zXZ\x00", wholeReader(decodeXZ)},
	{"lzo", "\x89LZO\x00\r\n\x1a\n", wholeReader(decodeLZO)},
	{"zstd", "\x28\xb5\x2f\xfd", func(r io.Reader) (io.Reader, error) {
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxImage))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}},
	{"lz4", "\x02\x21\x4c\x18", func(r io.Reader) (io.Reader, error) { return newLZ4(r), nil }},
}

// wholeReader makes a reader of a decoder that needs all bytes at once.
func wholeReader(decode func(b []byte, limit int) ([]byte, error)) func(io.Reader) (io.Reader, error) {
	return func(r io.Reader) (io.Reader, error) {
		b, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		b, err = decode(b, MaxImage)
		return bytes.NewReader(b), err
	}
}

// decompress unpacks the kernel of a bzImage and returns its compression. A kernel
// that is not compressed is returned unchanged.
func decompress(b []byte) (kernel []byte, packing string, err error) {
	if bytes.HasPrefix(b, []byte("\x7fELF")) {
		return b, "", nil
	}
	for _, p := range packings {
		if !bytes.HasPrefix(b, []byte(p.magic)) {
			continue
		}
		stream := b
		if p.name != "gzip" {
			stream = b[:len(b)-4]
		}
		r, err := p.open(bytes.NewReader(stream))
		if err != nil {
			return nil, "", fmt.Errorf("decompress %s: %w", p.name, err)
		}
		if c, ok := r.(io.Closer); ok {
			defer c.Close()
		}
		var out bytes.Buffer
		out.Grow(int(min(uint64(le32(b[len(b)-4:])), 64<<20)))
		n, err := io.Copy(&out, io.LimitReader(r, MaxImage+1))
		switch {
		case err != nil:
			return nil, "", fmt.Errorf("decompress %s: %w", p.name, err)
		case n > MaxImage:
			return nil, "", fmt.Errorf("decompress %s: more than %d bytes", p.name, MaxImage)
		}
		return out.Bytes(), p.name, nil
	}
	return nil, "", fmt.Errorf("decompress: unknown compression % x: %w", b[:6], errors.ErrUnsupported)
}
