package event

import (
	"math"
	"strings"
)

// The kernel's number syntax (lib/kstrtox.c): decimal, 0x hexadecimal, 0 octal; no
// underscores, no 0b or 0o; no trailing characters.

// parseUint reads an unsigned number of up to 64 bits with an optional plus.
func parseUint(s string) (uint64, bool) {
	return parseMagnitude(strings.TrimPrefix(s, "+"))
}

// parseInt reads a signed 64-bit number; one sign, plus or minus.
func parseInt(s string) (int64, bool) {
	if m, ok := strings.CutPrefix(s, "-"); ok {
		v, ok := parseMagnitude(m)
		return -int64(v), ok && v <= 1<<63
	}
	v, ok := parseUint(s)
	return int64(v), ok && v <= math.MaxInt64
}

func parseMagnitude(s string) (uint64, bool) {
	v, rest, ok := leadingUint(s)
	return v, ok && rest == ""
}

// leadingUint reads the number at the beginning of s and returns the rest.
func leadingUint(s string) (v uint64, rest string, ok bool) {
	base := uint64(10)
	if len(s) > 0 && s[0] == '0' {
		base = 8
		if len(s) > 2 && s[1]|0x20 == 'x' && digit(s[2]) < 16 {
			base, s = 16, s[2:]
		}
	}
	return leadingDigits(s, base)
}

// leadingDigits reads the digits of one base at the beginning of s: at least one,
// without overflow.
func leadingDigits(s string, base uint64) (v uint64, rest string, ok bool) {
	i := 0
	for ; i < len(s); i++ {
		d := uint64(digit(s[i]))
		if d >= base {
			break
		}
		if v > (math.MaxUint64-d)/base {
			return 0, s, false
		}
		v = v*base + d
	}
	return v, s[i:], i > 0
}

// digit returns the value of a digit of any base up to 16, or 255.
func digit(c byte) byte {
	switch {
	case isDigit(c):
		return c - '0'
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 255
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isAlpha(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

// isIdentifier reports whether s is a C identifier.
func isIdentifier(s string) bool {
	for i := range len(s) {
		if !isAlpha(s[i]) && s[i] != '_' && (i == 0 || !isDigit(s[i])) {
			return false
		}
	}
	return s != ""
}

// isGroupName is isIdentifier with hyphens.
func isGroupName(s string) bool { return isIdentifier(strings.ReplaceAll(s, "-", "_")) }
