package linux

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// errXZ is wrapped by errors about damaged or unknown streams.
var errXZ = errors.New("damaged or unknown xz stream")

// Filters and checks of an xz block (The .xz File Format, 5.3 and 2.1.1.2).
const (
	xzX86   = 0x04
	xzLZMA2 = 0x21
)

// xzCheck is the length of a block's check, by its kind.
var xzCheck = [16]int{0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64}

// decodeXZ decodes an xz stream of a packed kernel: each block is LZMA2, mostly
// preceded by the filter for x86 code, which the LZMA library does not have. Of the
// checks it verifies CRC32, the one that the kernel's own decoder supports. It fails
// for more than limit bytes.
func decodeXZ(b []byte, limit int) ([]byte, error) {
	if len(b) < 12 || string(b[:6]) != "\xfd7zXZ\x00" || b[6] != 0 || b[7]&0xf0 != 0 || crc32.ChecksumIEEE(b[6:8]) != le32(b[8:]) {
		return nil, fmt.Errorf("%w: header", errXZ)
	}
	check := b[7]
	var out []byte
	for b = b[12:]; ; {
		if len(b) == 0 {
			return nil, fmt.Errorf("%w: no index", errXZ)
		}
		if b[0] == 0 { // the index: all blocks are done
			return out, nil
		}
		block, rest, err := xzBlock(b, check, limit-len(out))
		if err != nil {
			return nil, err
		}
		out, b = append(out, block...), rest
	}
}

// xzBlock decodes the block at the beginning of b, to at most limit bytes.
func xzBlock(b []byte, check byte, limit int) (block, rest []byte, err error) {
	size := (int(b[0]) + 1) * 4
	if size > len(b) || crc32.ChecksumIEEE(b[:size-4]) != le32(b[size-4:]) {
		return nil, nil, fmt.Errorf("%w: block header", errXZ)
	}
	dict, x86, ok := xzFilters(b[1:size-4], limit)
	if !ok {
		return nil, nil, fmt.Errorf("%w: filters", errXZ)
	}
	r := bytes.NewReader(b[size:])
	z, err := lzma.Reader2Config{DictCap: dict}.NewReader2(r)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errXZ, err)
	}
	block, err = io.ReadAll(io.LimitReader(z, int64(limit)+1))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errXZ, err)
	}
	if len(block) > limit {
		return nil, nil, fmt.Errorf("%w: more than %d bytes left", errXZ, limit)
	}
	if x86 {
		undoX86(block)
	}
	at := size + (len(b)-size-r.Len()+3)&^3
	end := at + xzCheck[check]
	if end > len(b) {
		return nil, nil, fmt.Errorf("%w: block is cut off", errXZ)
	}
	if check == 1 && crc32.ChecksumIEEE(block) != le32(b[at:]) {
		return nil, nil, fmt.Errorf("%w: checksum", errXZ)
	}
	return block, b[end:], nil
}

// xzFilters reads a block header after its size: flags, two optional sizes, the
// filters. ok is false for filters other than LZMA2, alone or after x86.
func xzFilters(h []byte, limit int) (dict int, x86, ok bool) {
	number := func() (v uint64) {
		for shift := 0; len(h) > 0 && shift < 63; shift += 7 {
			c := h[0]
			h = h[1:]
			v |= uint64(c&0x7f) << shift
			if c&0x80 == 0 {
				return v
			}
		}
		return 1 << 63 // no number, no filter, no size
	}
	if len(h) == 0 {
		return 0, false, false
	}
	flags := h[0]
	h = h[1:]
	for _, has := range []byte{0x40, 0x80} {
		if flags&has != 0 {
			number()
		}
	}
	for n := flags & 3; ; n-- {
		id, size := number(), number()
		if size > uint64(len(h)) {
			return 0, false, false
		}
		prop := h[:size]
		h = h[size:]
		switch {
		case id == xzX86 && size == 0 && n > 0 && !x86:
			x86 = true
		case id == xzLZMA2 && size == 1 && n == 0 && prop[0] <= 40:
			// 2 or 3, shifted; the dictionary need not be larger than the output.
			d := uint64(2|prop[0]&1) << (prop[0]/2 + 11)
			return int(max(min(d, uint64(limit)), lzma.MinDictCap)), x86, true
		default:
			return 0, false, false
		}
	}
}

// undoX86 reverts the filter for x86 code: the operand of a call or jmp is its target
// there, counted from the beginning of b, and becomes a displacement again. The
// filter itself chooses the operands: the highest byte must be 0 or 0xff, and
// likewise for bytes that may belong to an earlier candidate, as recorded in seen,
// one bit for each of the three bytes before.
func undoX86(b []byte) {
	sign := func(c byte) bool { return c == 0 || c == 0xff }
	last, seen := -1, uint32(0)
	for i := 0; i+4 < len(b); i++ {
		if b[i]&0xfe != 0xe8 {
			continue
		}
		back := i - last
		last = i
		if back > 3 {
			seen = 0
		} else if seen = seen << (back - 1) & 7; seen != 0 {
			// Only one earlier candidate, not in the middle, whose own highest byte
			// is not a sign.
			if c := b[i+4-x86Shift[seen]]; !(seen == 1 || seen == 2 || seen == 4) || sign(c) {
				seen = seen<<1 | 1
				continue
			}
		}
		if !sign(b[i+4]) {
			seen = seen<<1 | 1
			continue
		}
		from := le32(b[i+1:])
		var to uint32
		for {
			to = from - uint32(i+5)
			if seen == 0 {
				break
			}
			shift := 8 * x86Shift[seen]
			if !sign(byte(to >> (24 - shift))) {
				break
			}
			from = to ^ (1<<(32-shift) - 1)
		}
		to &= 0x01ff_ffff
		to |= -(to & 0x0100_0000) // the sign
		b[i+1], b[i+2], b[i+3], b[i+4] = byte(to), byte(to>>8), byte(to>>16), byte(to>>24)
		i += 4
	}
}

// x86Shift is the distance back to the end of an earlier candidate's operand, in
// bytes.
var x86Shift = [8]int{0, 1, 2, 2, 3, 3, 3, 3}
