package kvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Run runs the guest until KVM returns, once: KVM_RUN is never retried. On
// success e says why it returned, and Regs and Sregs hold the registers. A
// signal, for instance from the Go runtime's scheduler, or a Kick gives
// ReasonInterrupted. With interrupt controllers in the kernel (VM.CreateIRQChip)
// Run stays there while the vCPU halts or waits for its start-up signal, and
// returns with ReasonInterrupted when that signal has come.
//
// The errors are *UnknownExitError for an exit that this package does not know
// or that KVM itself calls unknown, and *RunError for an error of the kernel.
// After an error the registers may be out of date.
//
// Effects of the exit before (the value that an in or an MMIO read returns, on
// some hosts the step past an out) take place in this call, before anything
// else, even when it ends at once. See Complete.
func (v *VCPU) Run(e *Exit) error {
	if v.tid.Load() == 0 {
		return fmt.Errorf("run vcpu %d: %w", v.id, ErrNotBound)
	}
	if v.page == nil {
		return fmt.Errorf("run vcpu %d: %w", v.id, ErrClosed)
	}
	if v.dirty != 0 || v.rearm {
		if err := v.flush(); err != nil {
			return fmt.Errorf("run vcpu %d: %w", v.id, err)
		}
	}
	began := beginSlow()
	_, err := ioctl(v.fd.num(), ioRun, 0)
	endSlow(began)
	v.queued, v.cut, v.given = false, err != nil, v.given && err != nil
	if err != nil {
		// With interrupt controllers in the kernel a vCPU that waits for its start-up
		// signal blocks in there, and gets EAGAIN once the signal has come.
		if !errors.Is(err, unix.EINTR) && !(v.irqchip && errors.Is(err, unix.EAGAIN)) {
			return v.runError(err)
		}
		e.Reason, e.Flags, e.Raw = ReasonInterrupted, v.page.flags, v.page.exit[:]
	} else if err := e.decode(v.page, v.mapping); err != nil {
		return fmt.Errorf("run vcpu %d: %w", v.id, err)
	}
	if !v.shared {
		if err := v.fetch(); err != nil {
			return fmt.Errorf("run vcpu %d: %w", v.id, err)
		}
	}
	return nil
}

// Complete has KVM finish the previous exit (see Run) without running the guest,
// so that the registers are those between two instructions. It ends with
// ReasonInterrupted, or with the next part of an access that KVM had to split. A
// Kick in effect stays in effect, and an earlier SetRegsDirty takes effect.
func (v *VCPU) Complete(e *Exit) error {
	if v.page == nil {
		return fmt.Errorf("complete exit of vcpu %d: %w", v.id, ErrClosed)
	}
	atomic.OrUint32(&v.page.in, runImmediateExit)
	err := v.Run(e)
	// A Kick sets kicked before it sets the bit: either it is seen here, or
	// its bit comes after this one was cleared.
	atomic.AndUint32(&v.page.in, ^runImmediateExit)
	if v.kicked.Load() {
		atomic.OrUint32(&v.page.in, runImmediateExit)
	}
	return err
}

// flush hands changed registers to KVM: through the page, or by ioctls where it
// is not shared and where the guest is single-stepped.
//
// KVM_RUN gives a vCPU without a local APIC of KVM's the CR8 of the page,
// whatever the registers say (KVM API document, section 5, cr8).
//
// KVM sets TF when single-stepping is turned on. When registers are loaded after
// that, it keeps TF only if RIP has not changed (kvm_set_rflags in
// arch/x86/kvm/x86.c); otherwise the guest would run away. So single-stepping is
// turned on again after the registers are set.
func (v *VCPU) flush() error {
	if v.shared && !v.stepping() {
		if v.dirty&syncSregsBit != 0 {
			v.page.cr8 = v.sregs.CR8
		}
		v.page.dirtyRegs |= v.dirty
		v.dirty = 0
		return nil
	}
	if v.dirty&syncRegsBit != 0 {
		if err := v.SetRegs(v.regs); err != nil {
			return err
		}
	}
	if v.dirty&syncSregsBit != 0 {
		if err := v.SetSregs(v.sregs); err != nil {
			return err
		}
	}
	if v.rearm {
		return v.SetGuestDebug(v.debug)
	}
	return nil
}

// fetch reads all registers from KVM.
func (v *VCPU) fetch() error {
	if err := v.getRegs(v.regs); err != nil {
		return err
	}
	return v.GetSregs(v.sregs)
}

// SetMMIO sets the result of the MMIO read that Run ended with: the guest reads
// the first MMIO.Len bytes of data when it resumes.
func (v *VCPU) SetMMIO(data [8]byte) { copy(v.page.exit[8:16], data[:]) }

// SetMSRResult answers the ReasonRDMSR or ReasonWRMSR that Run ended with:
// data for a read, and whether the instruction faults with #GP instead.
func (v *VCPU) SetMSRResult(data uint64, fault bool) {
	v.page.exit[0] = 0
	if fault {
		v.page.exit[0] = 1
	}
	binary.LittleEndian.PutUint64(v.page.exit[16:], data)
}

// SetHypercallResult sets the return value of the hypercall that Run ended with.
func (v *VCPU) SetHypercallResult(ret uint64) {
	binary.LittleEndian.PutUint64(v.page.exit[56:], ret)
}

// runError returns the error of a KVM_RUN that failed.
func (v *VCPU) runError(err error) error {
	e := &RunError{VCPU: v.id, Err: err}
	// For these two alone KVM fills in an exit as well (section 5,
	// KVM_EXIT_MEMORY_FAULT).
	if (errors.Is(err, unix.EFAULT) || errors.Is(err, unix.EHWPOISON)) && Reason(v.page.exitReason) == ReasonMemoryFault {
		e.Fault = new(MemoryFaultExit)
		e.Fault.decode(&v.page.exit)
	}
	return e
}

// RunError is a KVM_RUN that the kernel rejected.
type RunError struct {
	VCPU  int
	Err   error            // the kernel's error
	Fault *MemoryFaultExit // where host memory failed, or nil
}

// Error returns which vCPU, the kernel's error, and what it means here.
func (e *RunError) Error() string {
	s := fmt.Sprintf("run vcpu %d: %v", e.VCPU, e.Err)
	switch {
	case e.Fault != nil:
		s += fmt.Sprintf(" (guest memory at gpa %#x, %#x bytes, flags %#x)", e.Fault.GPA, e.Fault.Size, e.Fault.Flags)
	case errors.Is(e.Err, unix.EFAULT):
		s += " (memory of a slot is no longer mapped in this process)"
	case errors.Is(e.Err, unix.EAGAIN):
		s += " (the vcpu waits for its start-up signal: set its mp state)"
	case errors.Is(e.Err, unix.EINVAL):
		s += " (registers that no processor can hold)"
	}
	return s
}

// Unwrap returns the kernel's error.
func (e *RunError) Unwrap() error { return e.Err }

// UnknownExitError is an exit that this package cannot decode, with all that
// KVM said.
type UnknownExitError struct {
	Reason   Reason
	Hardware uint64    // hardware exit reason, with ReasonUnknown
	Raw      [256]byte // the exit union of struct kvm_run
}

// Error prints the reason and the exit data up to the last byte that is not
// zero.
func (e *UnknownExitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "unknown kvm exit %d (%v)", uint32(e.Reason), e.Reason)
	if e.Reason == ReasonUnknown {
		fmt.Fprintf(&b, ", hardware exit reason %#x", e.Hardware)
	}
	n := len(e.Raw)
	for n > 0 && e.Raw[n-1] == 0 {
		n--
	}
	if n == 0 {
		b.WriteString(", no data")
	} else {
		fmt.Fprintf(&b, ", data % x", e.Raw[:n])
	}
	return b.String()
}
