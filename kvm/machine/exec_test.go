package machine

import (
	"bytes"
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

func TestWithin(t *testing.T) {
	const reach = rel32Reach
	for _, tc := range []struct {
		name    string
		a, near guest.GVA
		n       uint64
		want    bool
	}{
		{"same place", 0x1000, 0x1000, 64, true},
		{"just above", 0x1000 + reach - 65, 0x1000, 64, true},
		{"end at the limit", 0x1000 + reach - 64, 0x1000, 64, false},
		{"just below", 0x1_0000_0000 - reach + 1, 0x1_0000_0000, 64, true},
		{"start at the limit", 0x1_0000_0000 - reach, 0x1_0000_0000, 64, false},
		{"across zero upwards", 0x1000, 0xffff_ffff_ffff_f000, 64, true},
		{"across zero downwards", 0xffff_ffff_ffff_f000, 0x1000, 64, true},
		{"half the address space away", 0x7fff_ffff_ffff_ffff, 0, 1, false},
	} {
		if got := within(tc.a, tc.near, tc.n); got != tc.want {
			t.Errorf("%s: within(%v, %v, %d) = %v", tc.name, tc.a, tc.near, tc.n, got)
		}
	}
}

func TestAllocExec(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, []byte{0xc3}), Memory: 16 << 20})
	kernel, user := m.exec.kernel.Area, m.exec.user.Area
	for _, tc := range []struct {
		name string
		near guest.GVA
		area guest.Area
	}{{"kernel", tinyText, kernel}, {"user", tinyUser, user}} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := m.AllocExec(tc.near, 1)
			if err != nil {
				t.Fatal(err)
			}
			b, err := m.AllocExec(tc.near, 65)
			if err != nil {
				t.Fatal(err)
			}
			if !tc.area.Contains(a) || !tc.area.Contains(b) || b-a != 64 {
				t.Errorf("allocated %v and %v, want neighbours in %v", a, b, tc.area)
			}
			code := []byte{1, 2, 3}
			if err := m.WriteExec(b+62, code); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 66)
			if err := m.Peek(b, got); err != nil {
				t.Fatal(err)
			}
			if want := append(bytes.Repeat([]byte{x86.Int3}, 62), 1, 2, 3, x86.Int3); !bytes.Equal(got, want) {
				t.Errorf("memory is % x, want % x", got, want)
			}
			// The guest may not write there.
			if err := m.WriteMemory(0, b, code); err == nil {
				t.Error("a data write to executable memory went through")
			}
			var out *outOfExecError
			left := int(tc.area.End() - b - 128)
			for _, size := range []int{0, -1, int(tc.area.Size), left + 1} {
				if _, err := m.AllocExec(tc.near, size); !errors.As(err, &out) {
					t.Errorf("allocation of %d bytes: %v", size, err)
				}
			}
			if _, err := m.AllocExec(tc.near, left); err != nil {
				t.Errorf("allocation of all that is left: %v", err)
			}
			if _, err := m.AllocExec(tc.near, 1); !errors.As(err, &out) {
				t.Errorf("allocation from a full area: %v", err)
			}
			if err := m.WriteExec(tc.area.End()-1, code); err == nil {
				t.Error("a write across the area's end went through")
			}
		})
	}
	if err := m.WriteExec(tinyText, []byte{0}); err == nil {
		t.Error("a write outside the areas went through")
	}
	if _, err := m.AllocExec(0x7000_0000_0000, 1); err == nil {
		t.Error("an allocation near nowhere succeeded")
	}
}
