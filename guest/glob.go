package guest

import (
	"errors"
	"fmt"
)

// Glob reports whether the whole of name matches pattern, by the rules of the
// kernel's lib/glob.c: * matches any bytes, ? any single byte, [a-z0] one of a set
// and [!a-z] one outside of it, and \ makes the next byte literal; a bracket that is
// not closed is literal. It allocates nothing, and its time is at most proportional
// to the product of the lengths: only the last * is ever gone back to.
func Glob(pattern, name string) bool {
	p, n := 0, 0
	starP, starN := -1, 0 // after the last *, and where in name it stopped
	for n < len(name) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				p++
				starP, starN = p, n
				continue
			}
			if size, ok := globOne(pattern[p:], name[n]); ok {
				p += size
				n++
				continue
			}
		}
		if starP < 0 {
			return false
		}
		starN++
		p, n = starP, starN
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// CheckGlob rejects patterns that are likely mistakes: an empty one, and one with a
// bracket that is not closed.
func CheckGlob(pattern string) error {
	if pattern == "" {
		return errors.New("the pattern is empty")
	}
	for i := 0; i < len(pattern); {
		n := 1
		switch pattern[i] {
		case '\\':
			n = 2
		case '[':
			if n, _ = globClass(pattern[i:], 0); n == 0 {
				return fmt.Errorf("pattern %q: the bracket at byte %d is not closed", pattern, i+1)
			}
		}
		i += n
	}
	return nil
}

// globOne matches c with the first element of pattern, which is not a *, and
// returns the element's length.
func globOne(pattern string, c byte) (int, bool) {
	switch pattern[0] {
	case '?':
		return 1, true
	case '\\':
		if len(pattern) > 1 {
			return 2, pattern[1] == c
		}
	case '[':
		if size, ok := globClass(pattern, c); size > 0 {
			return size, ok
		}
	}
	return 1, pattern[0] == c
}

// globClass matches c with the bracket expression that pattern starts with. The
// length is 0 if the bracket is not closed. A ] right after the opening is a member.
func globClass(pattern string, c byte) (int, bool) {
	i := 1
	not := i < len(pattern) && pattern[i] == '!'
	if not {
		i++
	}
	match := false
	for first := true; i < len(pattern); first = false {
		lo := pattern[i]
		if lo == ']' && !first {
			return i + 1, match != not
		}
		i++
		hi := lo
		if i+1 < len(pattern) && pattern[i] == '-' && pattern[i+1] != ']' {
			hi = pattern[i+1]
			i += 2
		}
		if lo <= c && c <= hi {
			match = true
		}
	}
	return 0, false
}
