package snapshot

import (
	"slices"

	"github.com/guestprobe/guestprobe/kvm"
)

// A guest's registers are read from one of KVM's vCPUs, or from a vCPU of a
// snapshot. The following functions behave like the methods of kvm.VCPU with
// these names.

// GetMSRs reads the MSRs whose Index is set into Data, up to the first that the snapshot does not have: that is an *kvm.MSRError.
func (c *CPU) GetMSRs(msrs []kvm.MSR) error {
	for i := range msrs {
		at := slices.IndexFunc(c.MSRs, func(m kvm.MSR) bool { return m.Index == msrs[i].Index })
		if at < 0 {
			return &kvm.MSRError{Op: "get", Index: msrs[i].Index}
		}
		msrs[i].Data = c.MSRs[at].Data
	}
	return nil
}

// GetDebugRegs reads the debug registers.
func (c *CPU) GetDebugRegs(d *kvm.DebugRegs) error { *d = c.Debug; return nil }

// GetXCRs reads the extended control registers.
func (c *CPU) GetXCRs(x *kvm.XCRs) error { *x = c.XCRs; return nil }

// GetXSave returns the extended state. The caller may change it.
func (c *CPU) GetXSave() ([]byte, error) { return slices.Clone(c.XSave), nil }
