package script

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Span is a part of the source: bytes from From up to To.
type Span struct{ From, To int }

// join is the span from the beginning of one to the end of another.
func (s Span) join(t Span) Span { return Span{s.From, t.To} }

// Error is what is wrong with a script, and where. Its text is as bpftrace's: the place
// with columns from 1, the line, and a mark under what is meant.
type Error struct {
	Name      string // of the script
	Line      int    // from 1
	Col, End  int    // columns from 1, in bytes; End is behind the last one, as bpftrace has it
	Message   string // one line
	Hint      string // what to write instead, or ""
	Source    string // the line, or of a long one what is around the place
	Mark      int    // where in Source the place begins, in bytes from 0,
	Width     int    // and how much of it is there
	AtRunTime bool   // it is a warning about a run
	Unknown   bool   // a type or a member is named that there is not
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
	if e.Hint != "" {
		fmt.Fprintf(&b, "\nHINT: %s", e.Hint)
	}
	return b.String()
}

// source is the text of a script, with its name.
type source struct {
	name string
	text string
}

// at makes an error about a part of the source.
func (s *source) at(sp Span, format string, args ...any) *Error {
	from := min(max(sp.From, 0), len(s.text))
	to := min(max(sp.To, from), len(s.text))
	begin := strings.LastIndexByte(s.text[:from], '\n') + 1
	end := len(s.text)
	if i := strings.IndexByte(s.text[begin:], '\n'); i >= 0 {
		end = begin + i
	}
	line := strings.TrimSuffix(s.text[begin:end], "\r")
	end = begin + len(line)
	from, to = min(from, end), min(to, end) // a part of several lines is marked on its first one
	e := &Error{
		Name: s.name, Line: 1 + strings.Count(s.text[:begin], "\n"), Col: from - begin + 1, End: max(to-begin, from-begin+1) + 1,
		Message: fmt.Sprintf(format, args...),
	}
	e.show(line)
	return e
}

// Of lines that are longer than maxShown as much is shown, from so much before the place on.
const (
	maxShown = 240
	before   = 80
	cut      = "..."
)

// show fills in what is shown of the line.
func (e *Error) show(line string) {
	e.Source, e.Mark, e.Width = line, e.Col-1, e.End-e.Col
	if len(line) <= maxShown {
		return
	}
	from := max(0, min(e.Mark-before, len(line)-maxShown))
	for from > 0 && !utf8.RuneStart(line[from]) {
		from--
	}
	to := min(from+maxShown, len(line))
	for to < len(line) && !utf8.RuneStart(line[to]) {
		to--
	}
	e.Source, e.Mark, e.Width = line[from:to], e.Mark-from, min(e.Width, to-e.Col+1)
	if from > 0 {
		e.Source, e.Mark = cut+e.Source, e.Mark+len(cut)
	}
	if to < len(line) {
		e.Source += cut
	}
}

// hint adds what to write instead.
func (e *Error) hint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// meant returns the name among those that there are which is nearest to a wrong one, or
// "" where none is near.
func meant(wrong string, names []string) string {
	best, least := "", 1+max(len(wrong)/3, 1)
	slices.Sort(names)
	for _, n := range names {
		if d := distance(wrong, n); d < least {
			best, least = n, d
		}
	}
	return best
}

// distance is how many letters must be changed, put in, taken out or swapped with their
// neighbour to make b of a.
func distance(a, b string) int {
	rows := [3][]int{}
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
	}
	for i := range len(a) + 1 {
		row, prev, before := rows[i%3], rows[(i+2)%3], rows[(i+1)%3]
		for j := range len(b) + 1 {
			switch {
			case i == 0:
				row[j] = j
			case j == 0:
				row[j] = i
			case a[i-1] == b[j-1]:
				row[j] = prev[j-1]
			default:
				row[j] = 1 + min(prev[j-1], prev[j], row[j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], 1+before[j-2])
			}
		}
	}
	return rows[len(a)%3][len(b)]
}
