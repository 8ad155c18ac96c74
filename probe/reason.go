package probe

import (
	"fmt"
	"syscall"
)

// Code is a stable, machine-readable reason. The strings are part of the API:
// they are added to, never changed.
type Code string

// Reasons for rejecting a registration, with Linux's errno.
const (
	CodeBothOrNeither   Code = "both_or_neither"      // EINVAL: symbol and address, or neither
	CodeSymbolNotFound  Code = "symbol_not_found"     // ENOENT
	CodeAmbiguous       Code = "ambiguous_symbol"     // EADDRNOTAVAIL, as perf_event_open
	CodeNoSymbolAt      Code = "no_symbol_at_address" // ENOENT
	CodeOffsetOutside   Code = "offset_outside"       // EINVAL: past the symbol's end
	CodeNotText         Code = "not_text"             // EINVAL
	CodeBlacklisted     Code = "blacklisted"          // EINVAL
	CodeNotBoundary     Code = "not_boundary"         // EILSEQ
	CodeData            Code = "data"                 // EILSEQ: the image or an instruction uses the bytes as data
	CodePatched         Code = "patched_site"         // EINVAL: the guest itself rewrites the bytes
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
	CodeGone            Code = "gone"                 // EINVAL: the code is gone
	CodeEmptyBatch      Code = "empty_batch"          // EINVAL
	CodeHostCannot      Code = "host_cannot"          // ENODEV: calibration showed no delivery
	CodeInHandler       Code = "in_handler"           // EDEADLK
	CodeClosed          Code = "closed"               // ESHUTDOWN
	CodeEmulationPrefix Code = "emulation_prefix"     // EINVAL: ud2 that Xen or KVM takes as a prefix
	CodeNoPost          Code = "no_post"              // EOPNOTSUPP: post or fault handler on an instruction that waits or does not return
	CodeExitsUnknown    Code = "exits_unknown"        // EOPNOTSUPP: the code of the function does not show all its returns
	CodeWalksStacks     Code = "walks_stacks"         // EOPNOTSUPP: the program ends if it finds another return address
	CodeNotEntry        Code = "not_entry"            // EINVAL: a kretprobe elsewhere than at a function's entry
	CodeHandlers        Code = "handlers"             // EINVAL: handlers that this kind of probe does not have
	CodeMirror          Code = "mirror"               // EINVAL: a function that does not reach the end of mirrors
	CodeDataSize        Code = "data_size"            // E2BIG: private data of a kretprobe
	CodeNoInstances     Code = "no_instances"         // ENOMEM: no room for a kretprobe's instances
	CodeBadSpace        Code = "bad_space"            // EINVAL: not the address of a top-level page table, or a target with one address space
	CodeWatchLength     Code = "watch_length"         // EINVAL: not 1, 2, 4 or 8 bytes, or not 1 for execution
	CodeWatchAlignment  Code = "watch_alignment"      // EINVAL: the address is not a multiple of the length
	CodeWatchAccess     Code = "watch_access"         // EINVAL: accesses that cannot be watched in this way
	CodeWatchRegisters  Code = "watch_registers"      // ENOSPC: all four debug registers, or all watchable pages, are taken
	CodeDebugRegsInUse  Code = "debug_registers_busy" // EBUSY: the guest uses its own debug registers
	CodeImplicit        Code = "implicit_access"      // EBUSY: the processor or KVM itself accesses the page, and cannot if it is protected
	CodeTracepoint      Code = "tracepoint"           // EIO, or the kernel's errno: the guest's kernel did not switch a tracepoint
	CodeSemaphore       Code = "semaphore"            // EINVAL, or EOPNOTSUPP: the semaphore of a place cannot be counted
	CodeTarget          Code = "target"               // EIO: the guest could not be stopped or written
)

// errnos are Linux's errors for the same reasons, or the closest ones.
var errnos = map[Code]syscall.Errno{
	CodeBothOrNeither: syscall.EINVAL, CodeSymbolNotFound: syscall.ENOENT, CodeAmbiguous: syscall.EADDRNOTAVAIL,
	CodeNoSymbolAt: syscall.ENOENT, CodeOffsetOutside: syscall.EINVAL, CodeNotText: syscall.EINVAL,
	CodeBlacklisted: syscall.EINVAL, CodePatched: syscall.EINVAL, CodeNotBoundary: syscall.EILSEQ, CodeData: syscall.EILSEQ, CodeForeignInt3: syscall.EILSEQ,
	CodeUndecodable: syscall.EILSEQ, CodeUnsupported: syscall.EOPNOTSUPP, CodeMasksExceptions: syscall.EINVAL,
	CodeTrapInsn: syscall.EILSEQ, CodeUnreadable: syscall.EFAULT, CodeTextChanged: syscall.EBUSY,
	CodeNoSlot: syscall.ENOMEM, CodeOutOfReach: syscall.EINVAL, CodeRegistered: syscall.EINVAL,
	CodeNotRegistered: syscall.EINVAL, CodeGone: syscall.EINVAL, CodeEmptyBatch: syscall.EINVAL,
	CodeHostCannot: syscall.ENODEV, CodeInHandler: syscall.EDEADLK, CodeClosed: syscall.ESHUTDOWN,
	CodeEmulationPrefix: syscall.EINVAL, CodeNoPost: syscall.EOPNOTSUPP, CodeTarget: syscall.EIO,
	CodeExitsUnknown: syscall.EOPNOTSUPP, CodeWalksStacks: syscall.EOPNOTSUPP,
	CodeNotEntry: syscall.EINVAL, CodeHandlers: syscall.EINVAL, CodeMirror: syscall.EINVAL, CodeDataSize: syscall.E2BIG,
	CodeNoInstances: syscall.ENOMEM, CodeBadSpace: syscall.EINVAL,
	CodeWatchLength: syscall.EINVAL, CodeWatchAlignment: syscall.EINVAL, CodeWatchAccess: syscall.EINVAL,
	CodeWatchRegisters: syscall.ENOSPC, CodeDebugRegsInUse: syscall.EBUSY, CodeImplicit: syscall.EBUSY,
	CodeTracepoint: syscall.EIO, CodeSemaphore: syscall.EINVAL,
}

// newError returns an error with the errno that belongs to its code.
func newError(code Code, text, detail string) *Error {
	return &Error{Code: code, Errno: errnos[code], Text: text, Detail: detail}
}

// Error is a rejection: a request cannot be satisfied, and nothing was changed. It
// wraps its errno, so errors.Is(err, syscall.EILSEQ) works.
type Error struct {
	Code   Code
	Errno  syscall.Errno
	Text   string // one line for people, without the errno
	Detail string // what to do, or the bytes in question; may be empty
	Index  int    // which probe of a batch, from 0
	Cause  error  // the target's error; may be nil
}

// ErrInHandler is returned by every method that changes the engine if it is called
// from a probe handler: it would have to wait for the vCPU that it is running on. A
// Target's Stop returns it (or wraps it) in that situation.
var ErrInHandler error = &Error{Code: CodeInHandler, Errno: syscall.EDEADLK, Text: "called from a probe handler",
	Detail: "register, unregister, enable and disable wait for every handler to end"}

// ErrClosed is returned by the methods of an engine after Close.
var ErrClosed error = &Error{Code: CodeClosed, Errno: syscall.ESHUTDOWN, Text: "the probe engine is closed"}

// Error returns text, detail, cause, errno and code in one line.
func (e *Error) Error() string {
	s := e.Text
	if e.Detail != "" {
		s += " (" + e.Detail + ")"
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return fmt.Sprintf("%s: %s [%s]", s, ErrnoName(e.Errno), e.Code)
}

// Unwrap returns the errno, and the cause if there is one.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Errno}
	}
	return []error{e.Errno, e.Cause}
}
