package kvm

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// The reasons why a host cannot be used, for errors.Is on errors of Open and
// CreateVM.
var (
	// ErrNoKVM: there is no device, or no driver for it.
	ErrNoKVM = errors.New("no kvm")
	// ErrPermission: the device exists, and this process may not open it.
	ErrPermission = errors.New("permission denied")
	// ErrNotKVM: the path names something that is not the KVM device.
	ErrNotKVM = errors.New("not a kvm device")
	// ErrAPIVersion: the kernel speaks another version of the KVM API.
	ErrAPIVersion = errors.New("wrong kvm api version")
	// ErrCapability: the kernel lacks a capability; see CapabilityError.
	ErrCapability = errors.New("missing kvm capability")
	// ErrBusy: another hypervisor holds the processor's virtualization.
	ErrBusy = errors.New("virtualization in use")
)

// Errors of use.
var (
	// ErrClosed: the system, VM or vCPU was closed before.
	ErrClosed = errors.New("closed")
	// ErrNotBound: Run before Bind.
	ErrNotBound = errors.New("vcpu is not bound to a thread")
	// ErrNotReady: the vCPU cannot take an interrupt now; ask for an interrupt
	// window.
	ErrNotReady = errors.New("vcpu cannot take an interrupt now")
	// ErrEventPending: an exception, interrupt or NMI is already on its way
	// into the guest.
	ErrEventPending = errors.New("another event is being delivered")
)

// OpenError says why a KVM device cannot be used, and what to do.
type OpenError struct {
	Path   string // of the device
	Reason error  // ErrNoKVM, ErrPermission, ErrNotKVM, ErrAPIVersion, ErrCapability or ErrBusy, or nil
	Err    error  // the kernel's error, or nil
	Detail string // the exact fault, may be empty
	Hint   string // what to do about it, may be empty
}

// Error returns the path, the cause and the hint on one line.
func (e *OpenError) Error() string {
	s := "open " + e.Path
	if e.Reason != nil {
		s += ": " + e.Reason.Error()
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	// The text of ErrPermission is that of EACCES; say it once.
	if e.Err != nil && (e.Reason == nil || e.Err.Error() != e.Reason.Error()) {
		s += ": " + e.Err.Error()
	}
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the reason and the kernel's error.
func (e *OpenError) Unwrap() []error {
	var errs []error
	if e.Reason != nil {
		errs = append(errs, e.Reason)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// openError classifies an error of open(2) on path, or of the first ioctls after
// it.
func openError(path string, err error) *OpenError {
	e := &OpenError{Path: path, Err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Reason = ErrNoKVM
		e.Hint = "load the module: modprobe kvm_intel or modprobe kvm_amd; in the firmware setup, virtualization (VT-x, SVM) must be on; in a virtual machine, its host must offer nested virtualization"
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		e.Reason = ErrNoKVM
		e.Detail = "the device node exists, but has no driver"
		e.Hint = "load the module: modprobe kvm_intel or modprobe kvm_amd"
	case errors.Is(err, fs.ErrPermission):
		e.Reason = ErrPermission
		e.Hint = "add the user to the device's group, then log in again: usermod -aG kvm USER; in a container, pass the device in"
	case errors.Is(err, unix.EBUSY):
		e.Reason = ErrBusy
		e.Hint = "another hypervisor on this host holds it: stop that first"
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EISDIR):
		e.Reason = ErrNotKVM
		e.Hint = "the device is /dev/kvm, character device 10:232"
	}
	return e
}

// CapabilityError names a capability that the host's KVM lacks. It is
// ErrCapability.
type CapabilityError struct {
	Cap   Capability
	Since string // the first Linux with it, may be empty
}

// Error names the capability and the kernel that brought it.
func (e *CapabilityError) Error() string {
	if e.Since == "" {
		return fmt.Sprintf("%v: %v", ErrCapability, e.Cap)
	}
	return fmt.Sprintf("%v: %v, in linux since %s", ErrCapability, e.Cap, e.Since)
}

// Is reports whether target is ErrCapability.
func (e *CapabilityError) Is(target error) bool { return target == ErrCapability }
