package event

import (
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// Command is one line of the language, split into tokens: a definition, a deletion,
// or nothing. It never changes, so its methods may be called from any goroutine.
type Command struct{ line *line }

// ReadCommand splits a line into tokens. Check, Define and Deletion report whether it
// is a valid command.
func ReadCommand(text string) *Command { return &Command{tokenize(text)} }

// NewCommand returns the definition of an event without arguments, from its parts: a
// blank or a # in one of them stays part of it, and Define rejects it.
func NewCommand(kind Kind, group, event, place string) *Command {
	return newCommand(kind.String()+":"+group+"/"+event, place)
}

func newCommand(tokens ...string) *Command {
	return &Command{&line{command: strings.Join(tokens, " "), tokens: tokens}}
}

// String returns the command without its comment, its tokens joined by single blanks.
func (c *Command) String() string { return strings.Join(c.line.tokens, " ") }

// IsBlank reports whether there is no command: only white space and a comment.
func (c *Command) IsBlank() bool { return len(c.line.tokens) == 0 }

// IsDeletion reports whether the command is for Deletion, not for Define.
func (c *Command) IsDeletion() bool {
	return !c.IsBlank() && (c.line.tokens[0][0] == '-' || c.line.tokens[0][0] == '!')
}

// Check does the checks that need no guest. The error is a *SyntaxError.
func (c *Command) Check() error {
	if c.IsBlank() {
		return nil
	}
	if c.IsDeletion() {
		_, err := c.Deletion()
		return err
	}
	if pattern := c.Pattern(); pattern != "" {
		if err := c.CheckPattern(); err != nil {
			return err
		}
		c = c.OfFunction("f")
	}
	if _, ok := c.SourcePlace(); ok {
		c = c.AtCode("f+1")
	}
	_, err := c.Define(Scope{})
	return err
}

// Kind returns the kind by a definition's letter, 0 for other lines.
func (c *Command) Kind() Kind {
	if c.IsBlank() || !isKind(c.line.tokens[0][0]) {
		return 0
	}
	return Kind(c.line.tokens[0][0])
}

// LacksPlace reports whether the command is only the letter and the name of a
// definition, which is what a shell leaves of one that is not quoted.
func (c *Command) LacksPlace() bool { return c.Kind() != 0 && len(c.line.tokens) == 1 }

// place returns the place of a command of one of the kinds, "" for others.
func (c *Command) place(kinds string) string {
	if t := c.line.tokens; len(t) >= 2 && strings.IndexByte(kinds, t[0][0]) >= 0 {
		return t[1]
	}
	return ""
}

// withPlace returns the command with another first token and another place.
func (c *Command) withPlace(head, place string) *Command {
	return newCommand(append([]string{head, place}, c.line.tokens[2:]...)...)
}

// PlaceError rejects the command for its place, with the caret there.
func (c *Command) PlaceError(detail string) *SyntaxError {
	e := c.line.fail(1, 0, CodeBadProbeAddr)
	e.Detail = detail
	return e
}

// Pattern returns the pattern in a definition's place, such as "vfs_*" of "p:io/
// vfs_* fd=%di", or "" if it has none: the kernel has no patterns. Only probes of
// code can have one, for functions; its characters are * ? and [.
func (c *Command) Pattern() string {
	pattern, _ := cutPattern(c.place("prt"))
	if strings.Contains(pattern, ":") || !strings.ContainsAny(pattern, "*?[") {
		return ""
	}
	return pattern
}

// CheckPattern rejects a Pattern that can match nothing. The error is a *SyntaxError.
func (c *Command) CheckPattern() error {
	if err := guest.CheckGlob(c.Pattern()); err != nil {
		return c.PlaceError(err.Error())
	}
	return nil
}

// cutPattern separates a pattern from its offset or %return.
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

// OfFunction returns a command with a Pattern as one for the function of this name. A
// * in the event's name is replaced by the name, too.
func (c *Command) OfFunction(name string) *Command {
	head := c.line.tokens[0]
	if at := strings.LastIndexAny(head, ":/") + 1; at > 0 && strings.Contains(head[at:], "*") {
		event := strings.ReplaceAll(head[at:], "*", identifier(name))
		head = head[:at] + event[:min(len(event), maxName)]
	}
	_, rest := cutPattern(c.line.tokens[1])
	return c.withPlace(head, name+rest)
}

// SourcePlace is a place in the source of a guest's program: a line of a file, or all
// inlined copies of a function.
type SourcePlace struct {
	File   string // the end of a path; "" for Inline
	Line   int
	Inline string // name of a function
}

// inlinePrefix precedes the name of a function for its inlined copies.
const inlinePrefix = "inline:"

// SourcePlace returns the place of a definition in the program's source, such as
// "fs/read_write.c:450" of "p fs/read_write.c:450", or "inline:rw_verify_area"; ok is
// false for other places, such as one in a file of the guest's, which begins with a
// slash. The kernel's kprobe_events has neither.
func (c *Command) SourcePlace() (at SourcePlace, ok bool) { return ReadSourcePlace(c.place("pr")) }

// ReadSourcePlace parses a SourcePlace as written in a definition.
func ReadSourcePlace(place string) (at SourcePlace, ok bool) {
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

// AtReturn reports whether the command's letter is the one of return probes.
func (c *Command) AtReturn() bool { return c.place("r") != "" }

// AtCode returns a command with a SourcePlace as one at that place of the code. If it
// names no event, it gets the name of the place in the source.
func (c *Command) AtCode(place string) *Command {
	head := c.line.tokens[0]
	name := identifier(head[:1] + "_" + c.line.tokens[1])
	name = name[:min(len(name), maxName)]
	switch {
	case !strings.Contains(head, ":"):
		head += ":" + name
	case strings.HasSuffix(head, "/"):
		head += name
	}
	return c.withPlace(head, place)
}
