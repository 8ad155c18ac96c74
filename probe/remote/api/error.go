package api

import (
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Error is a failure as it goes over the wire.
//
// It unwraps to the sentinel of its code and to its errno, so errors.Is(err, ErrProbeNotFound) and errors.Is(err,
// syscall.EILSEQ) hold on both sides of the socket.
type Error struct {
	Code    Code   `json:"code"`             // one of the daemon's codes (#/components/schemas/Code) or of the engine's
	Errno   string `json:"errno,omitempty"`  // symbolic: "EILSEQ"
	Message string `json:"message"`          // one line for people, without code and errno
	Detail  string `json:"detail,omitempty"` // the cure, or the bytes in question

	Syntax  string `json:"syntax,omitempty"`  // the definition language's reason, by the kernel's name: "BAD_REG_NAME"
	Index   *int   `json:"index,omitempty"`   // which probe of a batch, from 0
	Column  *int   `json:"column,omitempty"`  // in Command, bytes from 0
	Command string `json:"command,omitempty"` // the definition that Column points into, or the line of a script
	Width   *int   `json:"width,omitempty"`   // of a script: how many bytes from Column on are meant
}

// ErrorBody is the envelope of every answer with a status of 400 or more.
type ErrorBody struct {
	Error Error `json:"error"`
}

// Error returns message, detail, errno, code and the definition language's reason in one
// line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	if e.Detail != "" {
		b.WriteString(" (" + e.Detail + ")")
	}
	if e.Errno != "" {
		b.WriteString(": " + e.Errno)
	}
	b.WriteString(" [" + string(e.Code))
	if e.Syntax != "" {
		b.WriteString(", " + e.Syntax)
	}
	b.WriteString("]")
	return b.String()
}

// Caret returns two lines: in the form of the kernel's error_log the definition
// and a caret under the column, or in bpftrace's the line of a script with the
// place underlined; or "" for an error that points nowhere.
func (e *Error) Caret() string {
	if e.Column == nil {
		return ""
	}
	if e.Width != nil {
		col := min(max(*e.Column, 0), len(e.Command))
		marked := e.Command[col:min(col+max(*e.Width, 0), len(e.Command))]
		return strings.ReplaceAll(e.Command, "\t", " ") + "\n" + strings.Repeat(" ", utf8.RuneCountInString(e.Command[:col])) + strings.Repeat("~", max(utf8.RuneCountInString(marked), 1)) + "\n"
	}
	const command = "  Command: "
	col := min(max(*e.Column, 0), len(e.Command)+1)
	return command + e.Command + "\n" + strings.Repeat(" ", len(command)+col) + "^\n"
}

// Unwrap returns the sentinel of the code and the errno, where there are any.
func (e *Error) Unwrap() []error {
	var errs []error
	if s, ok := sentinels[e.Code]; ok {
		errs = append(errs, s)
	}
	if n := ErrnoByName(e.Errno); n != 0 {
		errs = append(errs, n)
	}
	return errs
}

// ErrnoByName returns the errno with that symbolic name, or 0.
func ErrnoByName(name string) syscall.Errno {
	if name == "" {
		return 0
	}
	// Linux ends at EHWPOISON, 133 (include/uapi/asm-generic/errno.h).
	for n := syscall.Errno(1); n <= unix.EHWPOISON; n++ {
		if unix.ErrnoName(n) == name {
			return n
		}
	}
	return 0
}
