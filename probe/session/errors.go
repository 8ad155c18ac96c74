package session

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/script"
)

// Code says why a request was rejected. In addition to the codes of this package
// there are the engine's (probe.Code).
type Code string

// Codes of rejections.
const (
	CodeBadValue      Code = "bad_value"       // an option is out of its range
	CodeBadDefinition Code = "bad_definition"  // a definition is not valid in the language
	CodeUnavailable   Code = "unavailable"     // this kind of probe, or this guest, does not support it
	CodeProbeNotFound Code = "probe_not_found" // no probe has the name
	CodeMapNotFound   Code = "map_not_found"   // no map has the name
	CodeNameTaken     Code = "name_taken"      // another event has the name
	CodeAmbiguousName Code = "ambiguous_name"  // several probes or maps have the name
	CodeTooMany       Code = "too_many"        // a limit is reached
	CodeBadObject     Code = "bad_object"      // an object file cannot be loaded
	CodeBadScript     Code = "bad_script"      // a script does not compile, or one of its probes was rejected: Err is a *script.Error
	CodeClosing       Code = "closing"         // the Session is closed
)

// Error is a rejection.
type Error struct {
	Code   Code          // "": Err is not a rejection by the Session, the engine or the language
	Errno  syscall.Errno // the errno of Linux in this case; 0: none
	Text   string        // one line for people
	Detail string        // what to do; may be empty

	Syntax  string // the language's reason, by the kernel's name, such as BAD_REG_NAME; "": it is not about the text
	Index   *int   // which of several definitions, from 0; nil: none
	Command string // the definition
	Column  *int   // in Command, bytes from 0; nil: no position

	Err error // the cause; may be nil
}

// ErrClosed is returned after Close.
var ErrClosed error = &Error{Code: CodeClosing, Errno: syscall.ESHUTDOWN, Text: "the session is closed"}

// ErrProbeNotFound is found by errors.Is in errors with CodeProbeNotFound.
var ErrProbeNotFound error = &Error{Code: CodeProbeNotFound, Errno: syscall.ENOENT, Text: "no such probe is attached"}

// Error returns text, detail, errno and code in one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Text)
	if e.Detail != "" {
		b.WriteString(" (" + e.Detail + ")")
	}
	if e.Errno != 0 {
		b.WriteString(": " + probe.ErrnoName(e.Errno))
	}
	if e.Code != "" {
		b.WriteString(" [" + string(e.Code) + "]")
	}
	return b.String()
}

// Is reports whether target is an Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && e.Code != "" && t.Code == e.Code
}

// Unwrap returns the cause, and the errno.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	if e.Errno != 0 {
		errs = append(errs, e.Errno)
	}
	return errs
}

// ErrorOf converts an error of this package, of the engine, of the definition
// language or of a script to an Error. For any other error Code is empty, and Err is
// that error.
func ErrorOf(err error) *Error {
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	var syntax *event.SyntaxError
	if errors.As(err, &syntax) {
		return syntaxError(syntax)
	}
	var wrong *script.Error
	if errors.As(err, &wrong) {
		return &Error{Code: CodeBadScript, Errno: syscall.EINVAL, Text: wrong.Error(), Err: err}
	}
	var refused *probe.Error
	if errors.As(err, &refused) {
		index := refused.Index
		return &Error{Code: Code(refused.Code), Errno: refused.Errno, Text: refused.Text, Detail: refused.Detail, Index: &index, Err: err}
	}
	var ambiguous *guest.AmbiguousSymbolError
	if errors.As(err, &ambiguous) {
		return &Error{Code: Code(probe.CodeAmbiguous), Errno: syscall.EADDRNOTAVAIL, Text: err.Error(), Detail: "give one of the addresses instead", Err: err}
	}
	if errors.Is(err, guest.ErrSymbolNotFound) {
		return &Error{Code: Code(probe.CodeSymbolNotFound), Errno: syscall.ENOENT, Text: err.Error(), Err: err}
	}
	return &Error{Text: err.Error(), Err: err}
}

// syntaxError has the kernel's text and errno in any case and, if the engine rejected
// the place, the engine's reason in its own words after the text.
func syntaxError(e *event.SyntaxError) *Error {
	column := e.Column
	out := &Error{Code: CodeBadDefinition, Errno: e.Errno, Text: e.Text, Detail: e.Detail, Syntax: string(e.Code), Column: &column, Command: e.Command, Err: e}
	var refused *probe.Error
	if errors.As(e.Err, &refused) {
		out.Code = Code(refused.Code)
	}
	return out
}

// symbolError turns the image's error about a name into the engine's.
func symbolError(name string, err error) error {
	var ambiguous *guest.AmbiguousSymbolError
	if errors.As(err, &ambiguous) {
		return &probe.Error{Code: probe.CodeAmbiguous, Errno: syscall.EADDRNOTAVAIL, Text: err.Error(), Detail: "give one of the addresses instead"}
	}
	return &probe.Error{Code: probe.CodeSymbolNotFound, Errno: syscall.ENOENT, Text: fmt.Sprintf("the guest has no symbol %q", name), Detail: guest.Advice(err)}
}

// badValue reports an option outside its range.
func badValue(format string, args ...any) error {
	return &Error{Code: CodeBadValue, Errno: syscall.EINVAL, Text: fmt.Sprintf(format, args...)}
}

// indexError says which definition of several an error is about.
func indexError(err error, i int) error {
	e := *ErrorOf(err)
	e.Index = &i
	return &e
}

// probeError says which of several probes the engine has rejected.
func probeError(err error, as []*Probe) error {
	var refused *probe.Error
	if len(as) < 2 || !errors.As(err, &refused) || refused.Index >= len(as) {
		return err
	}
	e := *ErrorOf(err)
	e.Text = as[refused.Index].def.Name() + ": " + e.Text
	return &e
}
