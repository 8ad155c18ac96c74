package event

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/probe"
)

// SyntaxError is the rejection of a definition. It wraps its errno, so errors.Is(err,
// syscall.EEXIST) works, and the engine's error if the engine rejected the place.
type SyntaxError struct {
	Code    Code
	Text    string        // the kernel's text for Code
	Column  int           // 0-based, in Command; at most one past its end plus one
	Errno   syscall.Errno // the errno of the corresponding write to kprobe_events
	Command string        // the tokens of the definition joined by single blanks
	Detail  string        // which of several causes, or what to do; may be empty
	Err     error         // the engine's rejection; may be nil
}

// Error returns text, detail, column, errno and code in one line.
func (e *SyntaxError) Error() string {
	s := e.Text
	if e.Detail != "" {
		s += " (" + e.Detail + ")"
	}
	return fmt.Sprintf("%s at column %d: %s [%s]", s, e.Column, probe.ErrnoName(e.Errno), e.Code)
}

// Unwrap returns the errno and the engine's error.
func (e *SyntaxError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Errno}
	}
	return []error{e.Errno, e.Err}
}

// Caret returns the command and, in the line below it, a caret under the
// column, both indented by indent, without a newline at the end.
func (e *SyntaxError) Caret(indent string) string {
	return indent + e.Command + "\n" + indent + strings.Repeat(" ", e.Column) + "^"
}

// ErrorLog returns the kernel's error_log entry for such an error, without its time
// stamp.
func (e *SyntaxError) ErrorLog() string {
	const command = "  Command: "
	return "trace_kprobe: error: " + e.Text + "\n" + command + e.Command + "\n" +
		strings.Repeat(" ", len(command)+e.Column) + "^\n"
}

// RefusalError turns the engine's rejection of d into the kernel's error in that
// case: BAD_INSN_BNDRY, BAD_PROBE_ADDR or FAIL_REG_PROBE with the caret on the place.
// An error without an errno, and ENOMEM, which the kernel does not log either, are
// returned unchanged.
func (d *Def) RefusalError(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno == syscall.ENOMEM {
		return err
	}
	code := CodeFailRegProbe
	var refusal *probe.Error
	if errors.As(err, &refusal) && refusal.Code == probe.CodeOffsetOutside {
		errno = syscall.EILSEQ // not an instruction boundary of the symbol
	}
	switch errno {
	case syscall.EILSEQ:
		code = CodeBadInsnBndry
	case syscall.ENOENT:
		code = CodeBadProbeAddr
	}
	e := d.line().fail(1, 0, code)
	e.Errno = errno
	e.setCause(err)
	return e
}

// setCause records the engine's rejection as the cause.
func (e *SyntaxError) setCause(err error) {
	e.Err = err
	var refusal *probe.Error
	if errors.As(err, &refusal) {
		e.Detail = refusal.Text
		if refusal.Detail != "" {
			e.Detail += "; " + refusal.Detail
		}
	}
}
