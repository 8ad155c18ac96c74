package dies

import (
	"bytes"
	"encoding/binary"
)

// maxString bounds one string. Names of C++ and Rust programs have some thousand bytes.
const maxString = 64 << 10

// cursor reads numbers of a section. After the first read beyond its end it is bad,
// and reads zeros.
type cursor struct {
	b   []byte
	bad bool
}

// cursorAt returns a cursor at an offset of b.
func cursorAt(b []byte, off uint64) *cursor {
	if off > uint64(len(b)) {
		return &cursor{bad: true}
	}
	return &cursor{b: b[off:]}
}

func (c *cursor) take(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.bad, c.b = true, nil
		return nil
	}
	b := c.b[:n:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) u8() uint64 {
	if len(c.b) == 0 {
		c.bad = true
		return 0
	}
	v := c.b[0]
	c.b = c.b[1:]
	return uint64(v)
}

func (c *cursor) u16() uint64 {
	if b := c.take(2); b != nil {
		return uint64(binary.LittleEndian.Uint16(b))
	}
	return 0
}

func (c *cursor) u24() uint64 {
	if b := c.take(3); b != nil {
		return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16
	}
	return 0
}

func (c *cursor) u32() uint64 {
	if b := c.take(4); b != nil {
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// word reads an offset, of 8 bytes in 64-bit DWARF.
func (c *cursor) word(wide bool) uint64 {
	if wide {
		return c.u64()
	}
	return c.u32()
}

// uleb reads an unsigned LEB128 number (DWARF 5, 7.6); bits beyond 64 are dropped.
func (c *cursor) uleb() (v uint64) {
	for shift := uint(0); ; shift += 7 {
		b := c.u8()
		if shift < 64 {
			v |= (b & 0x7f) << shift
		}
		if b&0x80 == 0 || c.bad {
			return v
		}
	}
}

// sleb reads a signed one.
func (c *cursor) sleb() int64 {
	v := int64(0)
	for shift := uint(0); ; {
		b := c.u8()
		if shift < 64 {
			v |= int64(b&0x7f) << shift
		}
		shift += 7
		if b&0x80 == 0 || c.bad {
			if b&0x40 != 0 && shift < 64 {
				v |= -1 << shift
			}
			return v
		}
	}
}

// cstring reads a string up to its NUL, as bytes of the section.
func (c *cursor) cstring() []byte {
	n := bytes.IndexByte(c.b[:min(len(c.b), maxString)], 0)
	if n < 0 {
		c.bad, c.b = true, nil
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n+1:]
	return b
}
