package event

import "strings"

// SourcePlace is a place in the source of a guest's program: a line of a file, or all
// copies of a function that are inlined in others.
type SourcePlace struct {
	File   string // the end of a path; "" for Inline
	Line   int
	Inline string // name of a function
}

// inlinePrefix is before the name of a function whose inlined copies are meant.
const inlinePrefix = "inline:"

// InSource returns the place that a definition has in the program's source, as
// "fs/read_write.c:450" of "p fs/read_write.c:450", or "inline:rw_verify_area"; ok is false
// where it has another, such as one in a file of the guest's, which begins with a slash. The
// kernel's kprobe_events have neither.
func InSource(text string) (at SourcePlace, ok bool) {
	src := tokenize(text)
	if len(src.tokens) < 2 || Kind(src.tokens[0][0]) != KindProbe && Kind(src.tokens[0][0]) != KindReturn {
		return SourcePlace{}, false
	}
	place := src.tokens[1]
	if name, ok := strings.CutPrefix(place, inlinePrefix); ok && name != "" {
		return SourcePlace{Inline: name}, true
	}
	i := strings.LastIndexByte(place, ':')
	if i < 0 || inFile(place) || !strings.Contains(place[:i], ".") {
		return SourcePlace{}, false
	}
	n, rest, ok := leadingDigits(place[i+1:], 10)
	if !ok || rest != "" || n == 0 || n > 1<<31-1 {
		return SourcePlace{}, false
	}
	return SourcePlace{File: place[:i], Line: int(n)}, true
}

// AtPlace returns a definition that has a place in the source as one at that place of the
// code. Where it names no event it has the name of the place in the source.
func AtPlace(text, place string) string {
	src := tokenize(text)
	head := src.tokens[0]
	name := identifier(head[:1] + "_" + src.tokens[1])
	name = name[:min(len(name), maxName)]
	switch {
	case !strings.Contains(head, ":"):
		head += ":" + name
	case strings.HasSuffix(head, "/"):
		head += name
	}
	return strings.Join(append([]string{head, place}, src.tokens[2:]...), " ")
}

// NoPlace refuses a definition for its place, with its caret there.
func NoPlace(text, detail string) *SyntaxError {
	e := tokenize(text).fail(1, 0, CodeBadProbeAddr)
	e.Detail = detail
	return e
}
