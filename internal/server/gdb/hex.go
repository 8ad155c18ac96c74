package gdb

import (
	"bytes"
	"encoding/hex"
	"strconv"
)

// unhex decodes exactly len(dst) bytes.
func unhex(dst, src []byte) bool {
	if len(src) != 2*len(dst) {
		return false
	}
	_, err := hex.Decode(dst, src)
	return err == nil
}

// number reads all of b as a hexadecimal number.
func number(b []byte) (uint64, bool) {
	if len(b) == 0 || len(b) > 16 || b[0] == '+' || b[0] == '-' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b), 16, 64)
	return n, err == nil
}

// numbers parses as many hexadecimal numbers as there are targets, with commas
// between.
func numbers(b []byte, to ...*uint64) bool {
	for i, p := range to {
		var word []byte
		var more bool
		word, b, more = bytes.Cut(b, []byte(","))
		n, ok := number(word)
		if !ok || more == (i == len(to)-1) {
			return false
		}
		*p = n
	}
	return true
}
