package script

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/guest"
)

// Span is a part of the source: bytes from From up to To.
type Span struct {
	From, To int
	in       int // the expansion of a macro in which it is, from 1 on: see source.expansions
}

// join is the span from the beginning of one to the end of another.
func (s Span) join(t Span) Span { return Span{From: s.From, To: t.To, in: s.in} }

// Error is an error in a script, with its place. Its text has bpftrace's form: the
// place with columns from 1, the line, and a marker under the marked part.
type Error struct {
	Name      string // of the script
	Line      int    // from 1
	Col, End  int    // columns from 1, in bytes; End is exclusive, as in bpftrace
	Message   string // one line
	Hint      string // a suggestion, or ""
	Source    string // the line, or for a long one the part around the place
	Mark      int    // start of the place in Source, in bytes from 0
	Width     int    // its width in Source
	AtRunTime bool   // it is a warning about a run
	Unknown   bool   // it names a type or a member that does not exist

	Calls []*Error // of the macros in which the place is, innermost first
}

// Error returns the message with the place, the line, and the mark.
func (e *Error) Error() string {
	kind := "ERROR"
	if e.AtRunTime {
		kind = "WARNING"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%d:%d-%d: %s: %s\n", e.Name, e.Line, e.Col, e.End, kind, e.Message)
	fmt.Fprintf(&b, "%s\n", strings.ReplaceAll(e.Source, "\t", " "))
	fmt.Fprintf(&b, "%s%s", strings.Repeat(" ", utf8.RuneCountInString(e.Source[:e.Mark])), strings.Repeat("~", max(utf8.RuneCountInString(e.Source[e.Mark:min(e.Mark+e.Width, len(e.Source))]), 1)))
	b.WriteString(e.callsText())
	if e.Hint != "" {
		fmt.Fprintf(&b, "\nHINT: %s", e.Hint)
	}
	return b.String()
}

// Advice returns the places of the calls of macros that lead to the place, outermost
// last, and the suggestion: what the text of the error has after the line.
func (e *Error) Advice() string {
	var parts []string
	for _, c := range e.Calls {
		in := ""
		if c.Name != e.Name {
			in = c.Name + ":"
		}
		parts = append(parts, fmt.Sprintf("expanded from %s%d:%d-%d", in, c.Line, c.Col, c.End))
	}
	if e.Hint != "" {
		parts = append(parts, e.Hint)
	}
	return strings.Join(parts, "; ")
}

// callsText formats the calls of macros, each after a new line.
func (e *Error) callsText() string {
	var b strings.Builder
	for _, c := range e.Calls {
		call := *c
		call.AtRunTime = e.AtRunTime
		b.WriteString("\n" + call.Error())
	}
	return b.String()
}

// source is the text of a script, with its name.
type source struct {
	name       string
	text       string       // with the texts of its files
	parts      []sourcePart // the script and its files; nil: the text is the script's
	from       int          // where the part that is read begins
	expansions []Span       // the calls of macros that were expanded
}

// errorAt makes an error about a part of the source.
func (s *source) errorAt(sp Span, format string, args ...any) *Error {
	in := s.part(sp.From)
	from := min(max(sp.From, in.from), in.to)
	to := min(max(sp.To, from), in.to)
	begin := in.from + strings.LastIndexByte(s.text[in.from:from], '\n') + 1
	end := in.to
	if i := strings.IndexByte(s.text[begin:end], '\n'); i >= 0 {
		end = begin + i
	}
	line := strings.TrimSuffix(s.text[begin:end], "\r")
	end = begin + len(line)
	from, to = min(from, end), min(to, end) // a part of several lines is marked on its first one
	e := &Error{
		Name: in.name, Line: 1 + strings.Count(s.text[in.from:begin], "\n"), Col: from - begin + 1, End: max(to-begin, from-begin+1) + 1,
		Message: fmt.Sprintf(format, args...),
	}
	e.show(line)
	if sp.in > 0 {
		call := s.errorAt(s.expansions[sp.in-1], "expanded from")
		e.Calls = append([]*Error{call}, call.Calls...)
		call.Calls = nil
	}
	return e
}

// A line longer than maxShown is cut to that length, and shown from a bit before the
// place.
const (
	maxShown = 240
	before   = 80
	cut      = "..."
)

// show fills in the visible part of the line.
func (e *Error) show(line string) {
	e.Source, e.Mark, e.Width = line, e.Col-1, e.End-e.Col
	if len(line) <= maxShown {
		return
	}
	from := max(0, min(e.Mark-before, len(line)-maxShown))
	from -= inRune(line, from)
	to := min(from+maxShown, len(line))
	to -= inRune(line, to)
	e.Source, e.Mark, e.Width = line[from:to], e.Mark-from, min(e.Width, to-e.Col+1)
	if from > 0 {
		e.Source, e.Mark = cut+e.Source, e.Mark+len(cut)
	}
	if to < len(line) {
		e.Source += cut
	}
}

// inRune returns how many bytes before i the character around i begins; 0 if the
// bytes are not a character.
func inRune(line string, i int) int {
	for n := range min(utf8.UTFMax, i+1) {
		if i-n == len(line) || utf8.RuneStart(line[i-n]) {
			return n
		}
	}
	return 0
}

// hint adds a suggestion.
func (e *Error) hint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// nearestName returns the existing name nearest to a wrong one, or "" if none is
// near.
func nearestName(wrong string, names []string) string {
	return guest.Nearest(wrong, slices.Values(names))
}
