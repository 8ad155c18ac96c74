package kvm

import (
	"slices"
	"testing"
)

// TestReadManyMSRs: a list may be longer than one call of KVM's takes.
func TestReadManyMSRs(t *testing.T) {
	b := newBox(t, []byte{0xf4})
	for _, n := range []int{255, 256, 257, 600} {
		got, err := b.v.ReadMSRs(slices.Repeat([]uint32{0xc0000080}, n)) // EFER
		if err != nil || len(got) != n {
			t.Errorf("%d of %d MSRs were read: %v", len(got), n, err)
		}
	}
}
