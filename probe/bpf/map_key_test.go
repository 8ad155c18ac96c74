package bpf

import (
	"errors"
	"testing"
)

// TestLongKeys says where programs run whose maps have long keys.
func TestLongKeys(t *testing.T) {
	for size, want := range map[uint32]string{
		512: "", 513: `map "keys" has keys of 513 bytes, which only the host handles: at most 512 in the guest`,
	} {
		maps := testMaps(t, Heap{}, MapSpec{Name: "keys", Kind: Hash, KeySize: size, ValueSize: 8, MaxEntries: 4})
		p, err := New(Spec{Kind: Kprobe, Insns: mustAssemble(t, "mov r0, 0\nexit"), Maps: maps})
		if err != nil {
			t.Fatal(err)
		}
		if got := p.HostReason(); got != want {
			t.Errorf("keys of %d bytes: %q, want %q", size, got, want)
		}
	}
}

// TestMapMemory compares the memory of a specification with a map's.
func TestMapMemory(t *testing.T) {
	s := MapSpec{Name: "m", Kind: PerCPUHash, KeySize: 600, ValueSize: 12, MaxEntries: 100}
	want := testMaps(t, Heap{}, s)[0].Size()
	if got, err := s.Memory(2); got != want || err != nil {
		t.Errorf("%d bytes, %v, want %d", got, err, want)
	}
	s.MaxEntries = 1 << 20
	if _, err := s.Memory(2); !errors.Is(err, ErrMapLimit) {
		t.Errorf("error %v, want %v", err, ErrMapLimit)
	}
}
