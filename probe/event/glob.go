package event

import "strings"

// Glob returns the pattern that a definition has for a place, as "vfs_*" of "p:io/ vfs_*
// fd=%di", or "" where it has none: the kernel knows no patterns. Probes of code can have
// one, which stands for functions; its characters are * ? and [.
func Glob(text string) string {
	src := tokenize(text)
	if len(src.tokens) < 2 {
		return ""
	}
	switch Kind(src.tokens[0][0]) {
	case KindProbe, KindReturn:
	default:
		return ""
	}
	pattern, _ := cutPattern(src.tokens[1])
	if strings.Contains(pattern, ":") || !strings.ContainsAny(pattern, "*?[") {
		return ""
	}
	return pattern
}

// cutPattern cuts what is behind a pattern, an offset or %return.
func cutPattern(place string) (pattern, rest string) {
	i := len(place)
	if at := strings.IndexByte(place, '%'); at >= 0 {
		i = at
	}
	if at := strings.LastIndexByte(place[:i], '+'); at >= 0 {
		i = at
	}
	return place[:i], place[i:]
}

// OfFunction returns a definition that has a pattern for a place as one of the function
// with this name. A * in the event's name stands for the name, too.
func OfFunction(text, function string) string {
	src := tokenize(text)
	head := src.tokens[0]
	if at := strings.LastIndexAny(head, ":/") + 1; at > 0 && strings.Contains(head[at:], "*") {
		event := strings.ReplaceAll(head[at:], "*", identifier(function))
		head = head[:at] + event[:min(len(event), maxName)]
	}
	_, rest := cutPattern(src.tokens[1])
	return strings.Join(append([]string{head, function + rest}, src.tokens[2:]...), " ")
}
