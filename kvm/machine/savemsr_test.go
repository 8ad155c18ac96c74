package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// savedMSRs are values that a guest may give MSRs, first those that it has when it is saved, and then others. KVM has no list in which most
// of them are.
var savedMSRs = []struct {
	index      uint32
	was, later uint64
	must       bool // every KVM has it
}{
	{0x2ff, 0xc06, 0x806, true},
	{0x200, 0x8000_0001, 0x9000_0006, true},
	{0x201, 0xff_8000_0800, 0, true},
	{0x20e, 6, 1, true},
	{0x20f, 0xff_f000_0800, 0, true},
	{0x250, 0x0606060606060606, 0x0404040404040404, true},
	{0x258, 0x0505050505050505, 0, true},
	{0x26f, 0x0404040404040404, 0x0101010101010101, true},
	{0x277, 0x0007040600070401, 0x0007040600070406, true},
	{0x400, ^uint64(0), 0, true},
	{0x41c, 0, ^uint64(0), true},
	{0x17a, 4, 0, true},
	{0x17b, ^uint64(0), 0, false},
	{0x280, 1 << 30, 0, false},
	{0xc0010015, 1 << 24, 0, false},
	{0xc0000082, 0xffffffff80201234, 0xffffffff80209999, true},
	{0xc0000103, 0x77, 0x78, false},
	{0x1d9, 1, 0, false},
}

// TestSavedMSRs: a guest that goes back to a snapshot, here or in another machine, has all MSRs that it had, also those that are in none of
// KVM's lists; one that boots again has those of a reset.
func TestSavedMSRs(t *testing.T) {
	config := Config{Image: tinyGuest(t, spin, nil), Memory: 16 << 20, Tick: -1}
	m := newMachine(t, config)
	index := make([]uint32, len(savedMSRs))
	for i, x := range savedMSRs {
		index[i] = x.index
	}
	read := func(m *Machine) map[uint32]uint64 {
		t.Helper()
		out := map[uint32]uint64{}
		all, err := m.vcpus[0].kvm.ReadMSRs(index)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			out[r.Index] = r.Data
		}
		return out
	}
	set := func(later bool) {
		t.Helper()
		for _, x := range savedMSRs {
			v := x.was
			if later {
				v = x.later
			}
			err := m.vcpus[0].kvm.SetMSRs([]kvm.MSR{{Index: x.index, Data: v}})
			var refused *kvm.MSRError
			if err != nil && (x.must || !errors.As(err, &refused)) {
				t.Fatal(err)
			}
		}
	}
	compare := func(what string, want map[uint32]uint64, m *Machine) {
		t.Helper()
		if diff := cmp.Diff(want, read(m)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	reset := read(m)
	set(false)
	want := read(m)
	s := reread(t, save(t, m))
	set(true)
	if err := m.ResetTo(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	compare("reset to the snapshot", want, m)
	n := newMachine(t, config)
	if err := n.ResetTo(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	compare("another machine", want, n)
	if err := m.Reset(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	compare("reset", reset, m)
}

// TestSavedCR8: KVM_RUN gives a vCPU the CR8 of the shared page, beside that of its registers.
func TestSavedCR8(t *testing.T) {
	const is, next = uint64(tinyData) + 8, uint64(tinyData) + 16 // what CR8 is, and what it is to be
	abs := func(at uint64) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(at)) }
	code := asm(
		[]byte{0x48, 0x8b, 0x04, 0x25}, abs(next), // 1: mov next, %rax
		[]byte{0x48, 0x85, 0xc0},                // test %rax, %rax
		[]byte{0x74, 0x07},                      // jz 2f
		[]byte{0x48, 0xff, 0xc8},                // dec %rax
		[]byte{0x44, 0x0f, 0x22, 0xc0},          // mov %rax, %cr8
		[]byte{0x44, 0x0f, 0x20, 0xc0},          // 2: mov %cr8, %rax
		[]byte{0x48, 0xff, 0xc0},                // inc %rax
		[]byte{0x48, 0x89, 0x04, 0x25}, abs(is), // mov %rax, is
		[]byte{0xf3, 0x90}, // pause
		[]byte{0xeb, 0xd9}, // jmp 1b
	)
	config := Config{Image: tinyGuest(t, code, nil), Memory: 16 << 20, Tick: -1}
	m := newMachine(t, config)
	word := func(m *Machine, at uint64) uint64 {
		var b [8]byte
		if err := m.Peek(guest.GVA(at), b[:]); err != nil {
			t.Fatal(err)
		}
		return binary.LittleEndian.Uint64(b[:])
	}
	put := func(m *Machine, at, v uint64) {
		if err := m.WriteMemory(0, guest.GVA(at), binary.LittleEndian.AppendUint64(nil, v)); err != nil {
			t.Fatal(err)
		}
	}
	wait := patience.Context(t)
	// cr8 returns what the guest finds there from now on.
	cr8 := func(m *Machine) uint64 {
		t.Helper()
		if err := m.Pause(); err != nil {
			t.Fatal(err)
		}
		put(m, is, 0)
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		for word(m, is) == 0 {
			if s := m.State(); wait.Err() != nil || s.Phase != PhaseRunning {
				t.Fatalf("the guest says nothing: %+v, %v", s, wait.Err())
			}
		}
		if err := m.Pause(); err != nil {
			t.Fatal(err)
		}
		return word(m, is) - 1
	}
	set := func(m *Machine, v uint64) {
		t.Helper()
		put(m, next, v+1)
		for cr8(m) != v {
			if wait.Err() != nil {
				t.Fatalf("CR8 does not become %d", v)
			}
		}
		put(m, next, 0)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	set(m, 5)
	five := reread(t, save(t, m))
	set(m, 0)
	zero := reread(t, save(t, m))
	for _, c := range []struct {
		s    *snapshot.Snapshot
		want uint64
	}{{five, 5}, {zero, 0}, {five, 5}} {
		if err := m.ResetTo(context.Background(), c.s); err != nil {
			t.Fatal(err)
		}
		if got := cr8(m); got != c.want {
			t.Errorf("reset to a snapshot with CR8 %d: the guest finds %d", c.want, got)
		}
	}
	n := newMachine(t, config)
	if err := n.ResetTo(context.Background(), five); err != nil {
		t.Fatal(err)
	}
	if got := cr8(n); got != 5 {
		t.Errorf("in another machine: the guest finds CR8 %d, want 5", got)
	}
}
