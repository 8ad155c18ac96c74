package kvm

import "fmt"

// TSCKHz returns the frequency in kHz at which the guest sees its time stamp
// counter run (KVM_GET_TSC_KHZ, section 4.56). It waits while another thread is
// in Run.
func (v *VCPU) TSCKHz() (uint64, error) {
	n, err := ioctl(v.fd.num(), ioGetTSCKHz, 0)
	if err != nil {
		return 0, fmt.Errorf("guest TSC frequency: %w", err)
	}
	return uint64(n), nil
}

// ReadTSC returns the host's time stamp counter. The counter of a guest differs
// from it by a constant, unless the guest or a snapshot sets its own, because this
// package never scales it (KVM_SET_TSC_KHZ). Any goroutine may call it.
func ReadTSC() uint64
