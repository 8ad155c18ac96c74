package foreign

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Code is the machine-readable reason why a guest cannot be reached.
type Code string

// The codes of Error.
const (
	CodeNoVM         Code = "no_vm"         // the process has no VM, or no vCPU that has run
	CodeSeveralVMs   Code = "several_vms"   // the process has more than one VM, or a name means several
	CodeNoPermission Code = "no_permission" // a capability or the access to a file is missing
	CodeHostLayout   Code = "host_layout"   // this host's kernel does not say where its VMs are
	CodeNotLinux     Code = "not_linux"     // no Linux kernel was found in the guest's memory
	CodeImageDiffers Code = "image_differs" // the guest runs another kernel than the image's
	CodeBusy         Code = "busy"          // another process traces the VMM, or has its QMP socket
	CodePaused       Code = "paused"        // the VMM has paused the guest, so that its registers are not known
	CodeGone         Code = "gone"          // the VMM has ended
)

// Error is the reason why a guest cannot be reached, with what to do about it.
type Error struct {
	Code Code
	Text string
	Err  error // or nil
}

// ErrPaused: the registers of a vCPU are not known.
var ErrPaused = &Error{Code: CodePaused, Text: "its VMM has paused the guest, or has not started it, so that its registers are not known (resume it there, or start QEMU with a QMP socket and its RAM in a file)"}

// Error implements error.
func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %v", e.Text, e.Err)
	}
	return e.Text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// fail returns an Error.
func fail(c Code, err error, format string, args ...any) error {
	return &Error{Code: c, Text: fmt.Sprintf(format, args...), Err: err}
}

// CodeOf returns the code of an error of this package, or "" if it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// refused reports whether the host did not permit an access.
func refused(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EPERM)
}
