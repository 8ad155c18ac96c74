package types

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The maximum number of types of a program and of a module; Debian's kernels have up
// to 125,000, and modules about ten thousand. The BTF reader recurses from a type to
// the types it refers to, with 2 KB of stack for each, so their number bounds its
// stack: Go ends the process at 1 GB, and doubles a stack to grow it.
const (
	MaxTypes       = 200_000
	MaxModuleTypes = 40_000
)

var errTypes = errors.New("its types are damaged")

// The header of BTF (Documentation/bpf/btf.rst, "BTF Type and String Encoding").
const (
	headerLength = 4 // offset of the header's length, followed by offset and length of the types
	headerSize   = 24
	typeSize     = 12 // bytes common to all types
)

// extra is the number of bytes after the common part, by kind: a, and each for each
// of its members or the like.
var extra = [20]struct{ a, each int }{
	1: {a: 4}, 3: {a: 12}, 4: {each: 12}, 5: {each: 12}, 6: {each: 8}, 13: {each: 8}, 14: {a: 4}, 15: {each: 12}, 17: {a: 4}, 19: {each: 12},
}

// count returns the number of types in a section .BTF.
func count(b []byte) (int, error) {
	if len(b) < headerSize {
		return 0, errTypes
	}
	word := func(at int) uint64 { return uint64(binary.LittleEndian.Uint32(b[at:])) }
	start := word(headerLength) + word(headerLength+4)
	end := start + word(headerLength+8)
	if end > uint64(len(b)) {
		return 0, errTypes
	}
	n := 0
	for b = b[start:end]; len(b) > 0; n++ {
		if len(b) < typeSize {
			return 0, errTypes
		}
		info := binary.LittleEndian.Uint32(b[4:])
		kind, members := int(info>>24&0x1f), int(info&0xffff)
		if kind >= len(extra) {
			return 0, fmt.Errorf("type %d is of kind %d, which is not known", n+1, kind)
		}
		size := typeSize + extra[kind].a + members*extra[kind].each
		if size > len(b) {
			return 0, errTypes
		}
		b = b[size:]
	}
	return n, nil
}
