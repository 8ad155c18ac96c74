package types

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// How many types are read at most of a program and of a module; Debian's kernels have up
// to 125,000, and modules some ten thousand. The reader of BTF recurses from a type to
// those that it refers to, with 2 KB of stack for each, so their number bounds its stack:
// Go ends the process at 1 GB, and doubles what it has.
const (
	MaxTypes       = 200_000
	MaxModuleTypes = 40_000
)

var errTypes = errors.New("its types are damaged")

// The header of BTF (Documentation/bpf/btf.rst, "BTF Type and String Encoding").
const (
	headerLength = 4 // where it has its own length, and behind it offset and length of the types
	headerSize   = 24
	typeSize     = 12 // bytes of what each type has
)

// extra is how many bytes a kind has behind what each type has: a, and each for each of
// its members or the like.
var extra = [20]struct{ a, each int }{
	1: {a: 4}, 3: {a: 12}, 4: {each: 12}, 5: {each: 12}, 6: {each: 8}, 13: {each: 8}, 14: {a: 4}, 15: {each: 12}, 17: {a: 4}, 19: {each: 12},
}

// count returns how many types a section .BTF has.
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
