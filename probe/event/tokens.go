package event

import (
	"strings"
)

// maxCommand is the longest line that kprobe_events accepts, in bytes.
const maxCommand = 4094

// line is a command split into tokens.
type line struct {
	command string   // the tokens, joined by single blanks
	tokens  []string // parts of the command
}

// isBlank is isspace of the C locale.
func isBlank(r rune) bool { return r == ' ' || '\t' <= r && r <= '\r' }

// tokenize splits text at white space. As in the kernel there is no quoting, and
// # starts a comment anywhere.
func tokenize(text string) *line {
	if i := strings.IndexByte(text, '#'); i >= 0 {
		text = text[:i]
	}
	s := &line{command: text, tokens: joinSignature(strings.FieldsFunc(text, isBlank))}
	if command := strings.Join(s.tokens, " "); command != text {
		s.command = command // otherwise there would be two copies of each of very many definitions
	}
	return s
}

// joinSignature joins a place with the parameter types of a C++ function into one
// token, such as "twice(unsigned long)".
func joinSignature(tokens []string) []string {
	if len(tokens) < 3 || !strings.Contains(tokens[1], "(") {
		return tokens
	}
	open := 0
	for i, t := range tokens[1:] {
		if open += strings.Count(t, "(") - strings.Count(t, ")"); open == 0 && i > 0 {
			place := strings.Join(tokens[1:i+2], " ")
			return append([]string{tokens[0], place}, tokens[i+2:]...)
		} else if open <= 0 {
			break
		}
	}
	return tokens
}

// fail returns the error for an offset into a token. As in the kernel, a token that
// does not exist is one blank after the command.
func (s *line) fail(token, offset int, code Code) *SyntaxError {
	column := len(s.command) + 1
	if token < len(s.tokens) {
		at := token // the blanks before it
		for _, t := range s.tokens[:token] {
			at += len(t)
		}
		// The kernel's caret can be shifted (docs/definitions.md); here it never
		// leaves the command.
		column = min(at+offset, len(s.command))
	}
	return &SyntaxError{Code: code, Text: code.Text(), Errno: code.Errno(), Column: column, Command: s.command}
}

// failText returns the error for the argument with that expression and type.
func (s *line) failText(text string, code Code) *SyntaxError {
	for i, t := range s.tokens {
		if i >= 2 && (t == text || strings.HasSuffix(t, "="+text)) {
			return s.fail(i, len(t)-len(text), code)
		}
	}
	return s.fail(0, 0, code)
}

// check rejects characters that would break the lines that commands are printed in.
func (s *line) check() error {
	if len(s.command) > maxCommand {
		return s.fail(0, maxCommand, CodeCommandTooLong)
	}
	for i, t := range s.tokens {
		for j := range len(t) {
			if t[j] < ' ' || t[j] == 0x7f {
				return s.fail(i, j, CodeBadCharacter)
			}
		}
	}
	return nil
}
