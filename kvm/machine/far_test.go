package machine

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

func TestMapExec(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, []byte{0xc3}), Memory: 16 << 20})
	for _, tc := range []struct {
		name string
		near guest.GVA
		user bool
	}{{"kernel", tinyText, false}, {"user", tinyUser, true}} {
		t.Run(tc.name, func(t *testing.T) {
			at := tc.near - 700<<20 + 0xffd // across a page boundary
			for range 2 {                   // what is ours may be asked for again
				if err := m.MapExec(tc.near, at, 5); err != nil {
					t.Fatal(err)
				}
			}
			for _, a := range []guest.GVA{at, at + 4} {
				pa, err := m.space(0).Translate(a)
				if err != nil || pa.User != tc.user || pa.Writable || pa.NoExec {
					t.Errorf("%v is %+v, %v", a, pa, err)
				}
			}
			code := []byte{1, 2, 3}
			if err := m.WriteExec(at, code); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 5)
			if err := m.Peek(at-1, got); err != nil || !bytes.Equal(got, []byte{x86.Int3, 1, 2, 3, x86.Int3}) {
				t.Errorf("memory is % x, %v", got, err)
			}
			if err := m.MapExec(tc.near, tc.near, 1); !errors.Is(err, guest.ErrMapped) {
				t.Errorf("mapping over the guest's text: %v", err)
			}
		})
	}
}

// TestFarPagesUsedUp: when all pages of a privilege are in use, what is mapped
// stays, the other privilege has its own, and a reset gives all of them back.
func TestFarPagesUsedUp(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, []byte{0xc3}), Memory: 16 << 20})
	for range 2 {
		// 256 KiB apart, as boards are, so that most of them need a table.
		at := guest.GVA(tinyText + 1<<30)
		var err error
		n := 0
		for i := guest.GVA(0); err == nil; i++ {
			if err = m.MapExec(tinyText, at-i<<18, 5); err == nil {
				n++
			} else if errors.Is(err, guest.ErrMapped) {
				err = nil // the guest's own
			}
		}
		if n != guest.FarSize/guest.PageSize || !strings.Contains(err.Error(), "all 4096 pages are in use") {
			t.Errorf("%d pages, then %v", n, err)
		}
		if err := errors.Join(m.MapExec(tinyText, at, 5), m.WriteExec(at, []byte{1})); err != nil {
			t.Errorf("what is mapped: %v", err)
		}
		if err := m.MapExec(tinyUser, tinyUser+3<<29, 5); err != nil {
			t.Errorf("the other privilege: %v", err)
		}
		if err := m.Reset(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAllocShared(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, []byte{0xc3}), Memory: 16 << 20})
	for _, user := range []bool{false, true} {
		testAllocShared(t, m, user)
	}
}

func testAllocShared(t *testing.T, m *Machine, user bool) {
	a, b, err := m.AllocShared(100, user)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := m.AllocShared(1, user)
	if err != nil || c-a != 128 || a%64 != 0 || len(b) != 100 {
		t.Errorf("%v, then %v, of %d bytes: %v", a, c, len(b), err)
	}
	if err := m.WriteMemory(0, a+99, []byte{7}); err != nil || b[99] != 7 {
		t.Errorf("the host sees %d, %v", b[99], err)
	}
	if err := m.WriteUser(0, a+99, []byte{7}); (err == nil) != user {
		t.Errorf("as code of CPL3 would: %v", err)
	}
	if p, err := m.space(0).Translate(a); err != nil || !p.NoExec || p.User != user || !p.Writable {
		t.Errorf("%+v, %v", p, err)
	}
	for _, size := range []int{0, -1, guest.DataSize} {
		if _, _, err := m.AllocShared(size, user); !errors.Is(err, unix.ENOMEM) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if err := m.Reset(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	d, _, err := m.AllocShared(100, user)
	if err != nil || d == a || b[99] != 0 {
		t.Errorf("after a reset: %v, byte %d, %v", d, b[99], err)
	}
	b[99] = 7
	m.FreeShared(a)
	m.FreeShared(a) // not held any more
	again, b, err := m.AllocShared(100, user)
	if err != nil || again != a || b[99] != 0 {
		t.Errorf("given back: %v, byte %d, %v", again, b[99], err)
	}
	for _, a := range []guest.GVA{again, c, d} {
		m.FreeShared(a)
	}
	if a, _, err := m.AllocShared(guest.DataSize, user); err != nil || a != again {
		t.Errorf("all of it: %v, %v", a, err)
	}
}
