package event

// glob reports whether all of s matches pattern: * stands for any bytes, ? for
// one, [a-z0] for one of a set, [!a-z] for one that is not in it, and a
// backslash takes a special meaning away (the kernel's lib/glob.c). A bracket
// that is not closed stands for itself. It allocates nothing, and its time is
// bounded by the product of the lengths: only the last * is ever tried again.
func glob(pattern string, s []byte) bool {
	p, i := 0, 0
	star, from := -1, 0 // behind the last *, and where in s it may begin again
	for i < len(s) || p < len(pattern) {
		if p < len(pattern) && pattern[p] == '*' {
			p++
			star, from = p, i
			continue
		}
		if i < len(s) {
			if next, ok := globByte(pattern, p, s[i]); ok {
				p, i = next, i+1
				continue
			}
		}
		if star < 0 || from >= len(s) {
			return false
		}
		from++
		p, i = star, from
	}
	return true
}

// globByte matches one byte with what stands at p, and returns what follows it.
func globByte(pattern string, p int, c byte) (next int, ok bool) {
	if p >= len(pattern) {
		return p, false
	}
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '\\':
		if p+1 < len(pattern) {
			p++
		}
	case '[':
		if next, ok, set := globSet(pattern, p, c); set {
			return next, ok
		}
	}
	return p + 1, pattern[p] == c
}

// globSet matches c with the set that begins at p; set is false when it has no
// end. A ] or a - in the first place is an element.
func globSet(pattern string, p int, c byte) (next int, ok, set bool) {
	i := p + 1
	invert := i < len(pattern) && pattern[i] == '!'
	if invert {
		i++
	}
	for first := true; ; first = false {
		if i >= len(pattern) {
			return 0, false, false
		}
		a := pattern[i]
		if a == ']' && !first {
			return i + 1, ok != invert, true
		}
		b := a
		i++
		if i+1 < len(pattern) && pattern[i] == '-' && pattern[i+1] != ']' {
			b = pattern[i+1]
			i += 2
		}
		ok = ok || a <= c && c <= b
	}
}
