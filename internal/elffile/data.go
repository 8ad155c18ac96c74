package elffile

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Data returns the bytes of section i, decompressed where they are compressed, to
// at most limit bytes. Those that are not compressed are the file's own and must
// not be changed.
func (f *File) Data(i int, limit uint64) ([]byte, error) {
	s := &f.Sections[i]
	if s.Is(elf.SHT_NOBITS) {
		return nil, damaged(sectionPart(i), "it has no bytes in the file")
	}
	if !f.in(s.Off, s.Size) {
		return nil, damaged(sectionPart(i), "%d bytes at offset %#x reach beyond the file's %d (truncated?)", s.Size, s.Off, len(f.b))
	}
	data := f.Bytes(s.Off, s.Size)
	if s.Has(elf.SHF_COMPRESSED) {
		return decompress(i, data, limit)
	}
	if s.Size > limit {
		return nil, damaged(sectionPart(i), "%d bytes, more than %d", s.Size, limit)
	}
	return data, nil
}

// decompress unpacks a compressed section (System V ABI, "Section Compression").
func decompress(i int, data []byte, limit uint64) ([]byte, error) {
	if len(data) < chdrSize {
		return nil, damaged(sectionPart(i), "its compression header is cut off")
	}
	var h elf.Chdr64
	decode(data[:chdrSize], &h)
	if h.Size > limit {
		return nil, damaged(sectionPart(i), "%d bytes decompressed, more than %d", h.Size, limit)
	}
	var r io.Reader
	var err error
	switch src := bytes.NewReader(data[chdrSize:]); elf.CompressionType(h.Type) {
	case elf.COMPRESS_ZLIB:
		r, err = zlib.NewReader(src)
	case elf.COMPRESS_ZSTD:
		var z *zstd.Decoder
		if z, err = zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(limit)); err == nil {
			defer z.Close()
			r = z
		}
	default:
		err = fmt.Errorf("unknown type %d", h.Type)
	}
	var out bytes.Buffer
	if err == nil {
		_, err = io.Copy(&out, io.LimitReader(r, int64(h.Size)+1))
	}
	switch {
	case err != nil:
		return nil, damaged(sectionPart(i), "decompress: %v", err)
	case uint64(out.Len()) != h.Size:
		return nil, damaged(sectionPart(i), "decompressed it does not have the %d bytes that it says", h.Size)
	}
	return out.Bytes(), nil
}
