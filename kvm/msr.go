package kvm

import (
	"encoding/binary"
	"errors"
	"fmt"

	gokvm "github.com/bobuhiro11/gokvm/kvm"
	"golang.org/x/sys/unix"
)

// MSR is the number of a model specific register and its value: struct
// kvm_msr_entry.
type MSR = gokvm.MSREntry

// maxMSRs is how many MSRs one call accepts. KVM requires fewer than its
// MAX_IO_MSRS, 256 (msr_io in arch/x86/kvm/x86.c).
const maxMSRs = 255

// MSRError is an MSR that KVM does not know or a value that it rejects.
type MSRError struct {
	Op    string // "get" or "set"
	Index uint32
	Value uint64 // of a set
}

// Error names the register and, for a set, the value.
func (e *MSRError) Error() string {
	if e.Op == "get" {
		return fmt.Sprintf("get msr %#x: not known to kvm", e.Index)
	}
	return fmt.Sprintf("set msr %#x to %#x: refused by kvm", e.Index, e.Value)
}

// msrIndexes returns the numbers of the MSRs that belong to a guest's state on
// this host (KVM_GET_MSR_INDEX_LIST, section 4.3).
func (s *System) msrIndexes() ([]uint32, error) {
	for n := 256; ; n *= 2 {
		// struct kvm_msr_list: a count and as many indexes
		buf := make([]uint32, 1+n)
		buf[0] = uint32(n)
		_, err := ioctlPtr(s.fd.num(), ioGetMSRIndexList, &buf[0])
		if errors.Is(err, unix.E2BIG) && n < 1<<16 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get msr index list: %w", err)
		}
		return buf[1 : 1+min(int(buf[0]), n)], nil
	}
}

// GetMSRs reads the MSRs whose Index is set into Data (KVM_GET_MSRS). It stops
// at the first that KVM does not have, with an *MSRError; gokvm's function
// reports success then.
func (v *VCPU) GetMSRs(msrs []MSR) error {
	n, err := v.getMSRs(msrs)
	if err != nil {
		return err
	}
	if n < len(msrs) {
		return &MSRError{Op: "get", Index: msrs[n].Index}
	}
	return nil
}

// SetMSRs writes the MSRs in order (KVM_SET_MSRS). It stops at the first that
// KVM rejects, with an *MSRError; earlier ones are set.
func (v *VCPU) SetMSRs(msrs []MSR) error {
	n, _, err := v.doMSRs("set", ioSetMSRs, msrs)
	if err != nil {
		return err
	}
	if n < len(msrs) {
		return &MSRError{Op: "set", Index: msrs[n].Index, Value: msrs[n].Data}
	}
	return nil
}

// getMSRs reads the MSRs up to the first that KVM does not have, and returns how many.
func (v *VCPU) getMSRs(msrs []MSR) (int, error) {
	n, buf, err := v.doMSRs("get", ioGetMSRs, msrs)
	for i := range n {
		msrs[i].Data = binary.LittleEndian.Uint64(buf[sizeofMSRsHeader+sizeofMSREntry*i+8:])
	}
	return n, err
}

// ReadMSRs returns the MSRs with these numbers, as far as KVM has them for this
// vCPU.
func (v *VCPU) ReadMSRs(indexes []uint32) (msrs []MSR, err error) {
	for len(indexes) > 0 {
		batch := make([]MSR, min(len(indexes), maxMSRs))
		for i := range batch {
			batch[i].Index = indexes[i]
		}
		n, err := v.getMSRs(batch)
		if err != nil {
			return nil, err
		}
		msrs = append(msrs, batch[:n]...)
		if n < len(batch) {
			n++ // KVM has stopped at one that it does not have
		}
		indexes = indexes[n:]
	}
	return msrs, nil
}

// doMSRs passes msrs as struct kvm_msrs and returns how many KVM did.
func (v *VCPU) doMSRs(op string, nr uintptr, msrs []MSR) (int, []byte, error) {
	if len(msrs) > maxMSRs {
		return 0, nil, fmt.Errorf("%s %d msrs: at most %d: %w", op, len(msrs), maxMSRs, unix.E2BIG)
	}
	le := binary.LittleEndian
	buf := make([]byte, sizeofMSRsHeader, sizeofMSRsHeader+sizeofMSREntry*len(msrs))
	le.PutUint32(buf, uint32(len(msrs)))
	for _, m := range msrs {
		buf = le.AppendUint32(buf, m.Index)
		buf = le.AppendUint32(buf, 0)
		buf = le.AppendUint64(buf, m.Data)
	}
	n, err := ioctlPtr(v.fd.num(), nr, &buf[0])
	if err != nil {
		return 0, nil, fmt.Errorf("%s msrs: %w", op, err)
	}
	return min(n, len(msrs)), buf, nil
}
