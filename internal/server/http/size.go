package http

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// parseSize reads a size in bytes: a number, in any base that Go writes, with
// an optional K, M, G or T (powers of 1024), itself optionally followed by B
// or iB.
func parseSize(s string) (uint64, error) {
	num := strings.TrimRight(s, "KMGTiBkmgtb")
	// 0xB is a number, not zero bytes with a unit.
	if v, err := strconv.ParseUint(s, 0, 64); err == nil {
		return v, nil
	}
	shift := 0
	switch strings.ToUpper(strings.TrimSuffix(strings.TrimSuffix(s[len(num):], "B"), "i")) {
	case "":
	case "K":
		shift = 10
	case "M":
		shift = 20
	case "G":
		shift = 30
	case "T":
		shift = 40
	default:
		return 0, fmt.Errorf("size %q: unknown unit %q: use K, M, G or T", s, s[len(num):])
	}
	v, err := strconv.ParseUint(num, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("size %q: not a number with an optional K, M, G or T", s)
	}
	if v != 0 && bits.Len64(v)+shift > 64 {
		return 0, fmt.Errorf("size %q: more than 2^64 bytes", s)
	}
	return v << shift, nil
}

// formatSize writes v with the largest unit that leaves no fraction.
func formatSize(v uint64) string {
	for i, unit := range []string{"T", "G", "M", "K"} {
		if shift := 40 - 10*i; v != 0 && v&(1<<shift-1) == 0 {
			return strconv.FormatUint(v>>shift, 10) + unit
		}
	}
	return strconv.FormatUint(v, 10)
}
