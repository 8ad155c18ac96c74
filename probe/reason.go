package probe

import (
	"fmt"
	"syscall"
)

// Code is a stable, machine-readable reason. The strings are part of the API:
// they are added to, never changed.
type Code string

// Reasons for refusing a registration, with the errno that Linux gives.
const (
	CodeBothOrNeither   Code = "both_or_neither"      // EINVAL: symbol and address, or neither
	CodeSymbolNotFound  Code = "symbol_not_found"     // ENOENT
	CodeAmbiguous       Code = "ambiguous_symbol"     // EADDRNOTAVAIL, as perf_event_open
	CodeNoSymbolAt      Code = "no_symbol_at_address" // ENOENT
	CodeOffsetOutside   Code = "offset_outside"       // EINVAL: behind the symbol's end
	CodeNotText         Code = "not_text"             // EINVAL
	CodeBlacklisted     Code = "blacklisted"          // EINVAL
	CodeNotBoundary     Code = "not_boundary"         // EILSEQ
	CodeForeignInt3     Code = "foreign_int3"         // EILSEQ
	CodeUndecodable     Code = "undecodable"          // EILSEQ
	CodeUnsupported     Code = "unsupported_insn"     // EOPNOTSUPP
	CodeMasksExceptions Code = "masks_exceptions"     // EINVAL: mov ss, pop ss
	CodeTrapInsn        Code = "trap_insn"            // EILSEQ: int3, int n, ud2 ...
	CodeUnreadable      Code = "unreadable"           // EFAULT: text not mapped
	CodeTextChanged     Code = "text_changed"         // EBUSY: memory differs from the image
	CodeNoSlot          Code = "no_slot_memory"       // ENOMEM
	CodeOutOfReach      Code = "displacement_range"   // EINVAL
	CodeRegistered      Code = "already_registered"   // EINVAL
	CodeNotRegistered   Code = "not_registered"       // EINVAL
	CodeGone            Code = "gone"                 // EINVAL: the code went away
	CodeEmptyBatch      Code = "empty_batch"          // EINVAL
	CodeHostCannot      Code = "host_cannot"          // ENODEV: calibration showed no delivery
	CodeInHandler       Code = "in_handler"           // EDEADLK
	CodeClosed          Code = "closed"               // ESHUTDOWN
)

// Error is a refusal: what a user asked for cannot be done, and nothing was
// changed. It wraps its errno, so errors.Is(err, syscall.EILSEQ) works.
type Error struct {
	Code   Code
	Errno  syscall.Errno
	Text   string // one line for people, without the errno
	Detail string // what to do, or the bytes in question; may be empty
	Index  int    // which probe of a batch, from 0
}

// Error returns text, detail, errno and code in one line.
func (e *Error) Error() string {
	s := e.Text
	if e.Detail != "" {
		s += " (" + e.Detail + ")"
	}
	return fmt.Sprintf("%s: %s [%s]", s, ErrnoName(e.Errno), e.Code)
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }
