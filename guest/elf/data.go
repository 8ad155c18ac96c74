package elf

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Data returns the bytes of section i, decompressed where they are compressed, to
// at most limit bytes. Those that are not compressed are the file's own and must
// not be changed.
func (f *File) Data(i int, limit uint64) ([]byte, error) {
	s := &f.Sections[i]
	if s.Is(elf.SHT_NOBITS) {
		return nil, damagedError(sectionPart(i), "it has no bytes in the file")
	}
	if !f.contains(s.Off, s.Size) {
		return nil, damagedError(sectionPart(i), "%d bytes at offset %#x reach beyond the file's %d (truncated?)", s.Size, s.Off, len(f.b))
	}
	data := f.Bytes(s.Off, s.Size)
	switch {
	case s.Has(elf.SHF_COMPRESSED):
		return decompress(i, data, limit)
	case strings.HasPrefix(s.Name, oldCompressed) && len(data) >= 12 && string(data[:4]) == "ZLIB":
		return unpack(i, data[12:], elf.COMPRESS_ZLIB, binary.BigEndian.Uint64(data[4:]), limit)
	}
	if s.Size > limit {
		return nil, damagedError(sectionPart(i), "%d bytes, more than %d", s.Size, limit)
	}
	return data, nil
}

// Sections with debug information, and what their names began with where they were compressed before ELF had a flag for that.
const (
	debugSection  = ".debug_"
	oldCompressed = ".zdebug_"
)

// IndexDebug returns the number of the first section of that name, or, of one with debug information, of the one that
// has it compressed in the old way (".zdebug_info" for ".debug_info"); -1 if there is neither.
func (f *File) IndexDebug(name string) int {
	i := f.Index(name)
	if rest, ok := strings.CutPrefix(name, debugSection); ok && i < 0 {
		return f.Index(oldCompressed + rest)
	}
	return i
}

// IsCompressed reports whether Data decompresses section i.
func (f *File) IsCompressed(i int) bool {
	s := &f.Sections[i]
	return s.Has(elf.SHF_COMPRESSED) || strings.HasPrefix(s.Name, oldCompressed)
}

// decompress unpacks a compressed section (System V ABI, "Section Compression").
func decompress(i int, data []byte, limit uint64) ([]byte, error) {
	if len(data) < chdrSize {
		return nil, damagedError(sectionPart(i), "its compression header is cut off")
	}
	var h elf.Chdr64
	decode(data[:chdrSize], &h)
	return unpack(i, data[chdrSize:], elf.CompressionType(h.Type), h.Size, limit)
}

// unpack decompresses the bytes of section i, which are size bytes then.
func unpack(i int, data []byte, method elf.CompressionType, size, limit uint64) ([]byte, error) {
	if size > limit {
		return nil, damagedError(sectionPart(i), "%d bytes decompressed, more than %d", size, limit)
	}
	var r io.Reader
	var err error
	switch src := bytes.NewReader(data); method {
	case elf.COMPRESS_ZLIB:
		r, err = zlib.NewReader(src)
	case elf.COMPRESS_ZSTD:
		var z *zstd.Decoder
		if z, err = zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(limit)); err == nil {
			defer z.Close()
			r = z
		}
	default:
		err = fmt.Errorf("unknown type %d", method)
	}
	var out bytes.Buffer
	if err == nil {
		_, err = io.Copy(&out, io.LimitReader(r, int64(size)+1))
	}
	switch {
	case err != nil:
		return nil, damagedError(sectionPart(i), "decompress: %v", err)
	case uint64(out.Len()) != size:
		return nil, damagedError(sectionPart(i), "decompressed it does not have the %d bytes that it says", size)
	}
	return out.Bytes(), nil
}
