package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errLZO is wrapped by errors about damaged streams.
var errLZO = errors.New("damaged lzo stream")

// lzoBlock is the most bytes in a block of a stream (Linux, lib/decompress_unlzo.c).
const lzoBlock = 256 << 10

// decodeLZO unpacks the output of lzop, to at most limit bytes: a header, then blocks
// of their size, their compressed size, a checksum, and their bytes, which are stored
// uncompressed if compression does not help. A size of 0 is the end.
func decodeLZO(b []byte, limit int) ([]byte, error) {
	be := binary.BigEndian
	short := fmt.Errorf("%w: cut off", errLZO)
	// After the magic number: 3 versions of 2 bytes, the second of which does not
	// exist before 0.94, method, level, flags, a filter if the flags say so, mode and
	// 2 times, the name preceded by its length, a checksum.
	at, tail := 9+7, 8
	if len(b) < 64 {
		return nil, short
	}
	if be.Uint16(b[9:]) >= 0x0940 {
		at, tail = at+1, 12
	}
	if be.Uint32(b[at:])&0x800 != 0 {
		at += 4
	}
	at += 4 + tail
	at += 1 + int(b[at]) + 4
	var out []byte
	for {
		if at+12 > len(b) {
			if at+4 <= len(b) && be.Uint32(b[at:]) == 0 {
				return out, nil
			}
			return nil, short
		}
		size, packed := be.Uint32(b[at:]), be.Uint32(b[at+4:])
		if size == 0 {
			return out, nil
		}
		at += 12
		switch {
		case size > lzoBlock || packed > size || len(out)+int(size) > limit:
			return nil, fmt.Errorf("%w: a block of %d bytes for %d", errLZO, packed, size)
		case int(packed) > len(b)-at:
			return nil, short
		case packed == size:
			out = append(out, b[at:at+int(packed)]...)
		default:
			var err error
			if out, err = decodeLZO1X(out, b[at:at+int(packed)], int(size)); err != nil {
				return nil, err
			}
		}
		at += int(packed)
	}
}

// decodeLZO1X appends to dst the size bytes of the decoded block b (Linux,
// Documentation/staging/lzo.rst).
func decodeLZO1X(dst, b []byte, size int) ([]byte, error) {
	begin := len(dst)
	bad := fmt.Errorf("%w: block", errLZO)
	literals := func(n int) bool {
		if n > len(b) || len(dst)-begin+n > size {
			return false
		}
		dst, b = append(dst, b[:n]...), b[n:]
		return true
	}
	// long reads the rest of a length whose bits are 0.
	long := func(bits, most int) int {
		if bits != 0 {
			return bits
		}
		for n := most; len(b) > 0 && n <= size; n += 255 {
			c := int(b[0])
			if b = b[1:]; c != 0 {
				return n + c
			}
		}
		return size + 1 // too long
	}
	state := 0 // literals of the last instruction, 4 for more than 3
	if len(b) > 0 && b[0] > 17 {
		n := int(b[0]) - 17
		if b = b[1:]; !literals(n) {
			return nil, bad
		}
		state = min(n, 4)
	}
	for len(b) > 2 {
		t := int(b[0])
		b = b[1:]
		if t < 16 && state == 0 {
			if n := 3 + long(t, 15); !literals(n) {
				return nil, bad
			}
			state = 4
			continue
		}
		n, back := 0, 0
		switch {
		case t >= 128:
			n, back = 5+t>>5&3, 1+t>>2&7
		case t >= 64:
			n, back = 3+t>>5&1, 1+t>>2&7
		case t >= 32:
			n, back = 2+long(t&31, 31), 1
		case t >= 16:
			n, back = 2+long(t&7, 7), 16384+t&8<<11
		case state == 4:
			n, back = 3, 2049+t>>2&3
		default:
			n, back = 2, 1+t>>2&3
		}
		if len(b) == 0 || t < 64 && t >= 16 && len(b) < 2 {
			return nil, bad
		}
		switch {
		case t >= 64:
			back, b = back+int(b[0])<<3, b[1:]
		case t >= 16:
			d := int(binary.LittleEndian.Uint16(b))
			back, b = back+d>>2, b[2:]
			if t < 32 && back == 16384 { // the end
				if len(dst)-begin != size {
					return nil, bad
				}
				return dst, nil
			}
			t = d
		default:
			back, b = back+int(b[0])<<2, b[1:]
		}
		if back > len(dst)-begin || len(dst)-begin+n > size {
			return nil, bad
		}
		for ; n > 0; n-- { // may overlap
			dst = append(dst, dst[len(dst)-back])
		}
		if state = t & 3; !literals(state) {
			return nil, bad
		}
	}
	return nil, bad
}
