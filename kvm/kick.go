package kvm

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// kickSignal interrupts a thread in KVM_RUN. SIGURG is the signal that the Go
// runtime uses for preemption: its handler is always installed, and a spurious
// one is harmless by design.
const kickSignal = unix.SIGURG

// Bind makes the calling thread the owner of the vCPU, and sets its name to
// ThreadName. The goroutine must be locked to it (runtime.LockOSThread) until it
// stops using the vCPU.
func (v *VCPU) Bind() {
	v.threadHad = nameThread(ThreadName(v.id))
	v.tid.Store(int32(unix.Gettid()))
}

// Unbind takes the vCPU from its thread and restores the thread's name.
// Afterwards another thread may Bind it, and no signal is sent to a thread that
// is about to end. The owner calls it.
func (v *VCPU) Unbind() {
	if v.tid.Swap(0) != 0 {
		nameThread(v.threadHad)
	}
}

// Kick, from any thread, makes the Run in progress and every later one return
// with ReasonInterrupted until ClearKick (section 5, immediate_exit). It does
// not wait. Kicking before Bind counts for the first Run; kicking a closed vCPU
// does nothing.
func (v *VCPU) Kick() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mapping == nil {
		return nil
	}
	// The flag first and the signal second: a thread that is not yet in the kernel
	// finds the flag, and a thread that is gets the signal.
	v.kicked.Store(true)
	atomic.OrUint32(&v.page.in, runImmediateExit)
	tid := v.tid.Load()
	if tid == 0 {
		return nil
	}
	// ESRCH: the thread has ended, so it is not in Run.
	if err := unix.Tgkill(os.Getpid(), int(tid), kickSignal); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kick vcpu %d: %w", v.id, err)
	}
	return nil
}

// Kicked, from any thread, reports whether a Kick is in effect.
func (v *VCPU) Kicked() bool { return v.kicked.Load() }

// ClearKick ends the effect of every Kick so far. Look for work after this, not
// before: a thread that kicks writes down the reason first. Owner thread only.
func (v *VCPU) ClearKick() {
	if v.page == nil {
		return
	}
	v.kicked.Store(false)
	atomic.AndUint32(&v.page.in, ^runImmediateExit)
}
