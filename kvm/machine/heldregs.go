package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// Components of extended state that are used as they are in the area (SDM Vol.
// 1, 13.1): the data of tiles, and R16 to R31.
var flatComponents = []int{18, 19}

// addressMSRs are the MSRs in which a guest keeps linear addresses (SDM Vol. 4,
// table 2-2). Others can hold any number: clocks, counters.
var addressMSRs = map[uint32]bool{
	0x175: true, 0x176: true, // SYSENTER_ESP, SYSENTER_EIP
	0x600: true,                                                     // DS_AREA
	0x6a4: true, 0x6a5: true, 0x6a6: true, 0x6a7: true, 0x6a8: true, // PL0_SSP to PL3_SSP, INTERRUPT_SSP_TABLE
	0xc0000082: true, 0xc0000083: true, // LSTAR, CSTAR
	0xc0000102: true, // KERNEL_GS_BASE
}

// forEachHeld calls f with the bytes of each register in c that can hold an
// address of code, except the general registers. Changes that f makes are stored
// in c. See probe.Memory.
func forEachHeld(c *snapshot.CPU, cpuid []kvm.CPUIDEntry, f func(reg []byte, ip bool)) {
	le := binary.LittleEndian
	var b [8]byte
	word := func(v *uint64, ip bool) {
		le.PutUint64(b[:], *v)
		f(b[:], ip)
		*v = le.Uint64(b[:])
	}
	x := unpackVectors(c.XSave, cpuid)
	word(&x.IP, true)
	for i := range x.ST {
		f(x.ST[i][:], false)
	}
	for i := range x.Regs {
		f(x.Regs[i][:x.Width], false)
	}
	for i := range x.Mask {
		word(&x.Mask[i], false)
	}
	packVectors(c.XSave, cpuid, x)
	for _, n := range flatComponents {
		if part := xsaveComponent(c.XSave, cpuid, n); part != nil && le.Uint64(c.XSave[xsaveBV:])>>n&1 != 0 {
			f(part, false)
		}
	}
	for _, v := range []*uint64{&c.Sregs.FS.Base, &c.Sregs.GS.Base, &c.Sregs.CR2} {
		word(v, false)
	}
	for i := range c.Debug.DB {
		word(&c.Debug.DB[i], false)
	}
	for i := range c.MSRs {
		if addressMSRs[c.MSRs[i].Index] {
			word(&c.MSRs[i].Data, false)
		}
	}
}

// Registers implements probe.Memory.
func (w world) Registers(f func(reg []byte, ip bool)) error {
	for _, v := range w.m.vcpus {
		if v.kvm == nil {
			continue
		}
		if err := v.heldRegisters(f); err != nil {
			return fmt.Errorf("vcpu %d: %w", v.id, err)
		}
	}
	return nil
}

// heldRegisters is Registers of one vCPU.
func (v *trapFrame) heldRegisters(f func(reg []byte, ip bool)) error {
	msrs, err := v.m.snapshots.stateMSRs()
	if err != nil {
		return err
	}
	c := &snapshot.CPU{Sregs: *v.sregs}
	if c.XSave, err = v.kvm.GetXSave(); err != nil {
		return err
	}
	if err := v.kvm.GetDebugRegs(&c.Debug); err != nil {
		return err
	}
	if c.MSRs, err = v.kvm.ReadMSRs(msrs); err != nil {
		return err
	}
	was := *c
	was.XSave, was.MSRs = bytes.Clone(c.XSave), append([]kvm.MSR(nil), c.MSRs...)
	forEachHeld(c, v.m.cpuid, f)
	if !bytes.Equal(c.XSave, was.XSave) {
		if err := v.kvm.SetXSave(c.XSave); err != nil {
			return err
		}
	}
	if c.Debug != was.Debug {
		if err := v.kvm.SetDebugRegs(&c.Debug); err != nil {
			return err
		}
	}
	for i, x := range c.MSRs {
		if x != was.MSRs[i] {
			if err := v.kvm.SetMSRs(c.MSRs[i : i+1]); err != nil {
				return err
			}
		}
	}
	if c.Sregs != was.Sregs {
		*v.sregs = c.Sregs
		v.kvm.SetSregsDirty()
	}
	return nil
}

var _ probe.Memory = world{}
