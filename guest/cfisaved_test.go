package guest_test

import (
	"bytes"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// Registers by their numbers in debug information.
const (
	rax, rbx, rdi, rbp, rsp, r12, r13 = 0, 3, 5, 6, 7, 12, 13
)

// TestSavedRegisters follows the prologue of a function of the built-in guest.
func TestSavedRegisters(t *testing.T) {
	img := builtinImage(t)
	s, err := img.Lookup("do_fork")
	if err != nil {
		t.Fatal(err)
	}
	push := s.Addr + guest.GVA(bytes.Index(img.Code(s.Addr, int(s.Size)), []byte{0x55, 0x48, 0x89, 0xe5})) // push %rbp; mov %rsp,%rbp
	for _, c := range []struct {
		name string
		pc   guest.GVA
		want guest.SavedRegisters
	}{
		{"at entry", s.Addr, guest.SavedRegisters{}},
		{"behind push %rbp", push + 1, guest.SavedRegisters{rbp: -2}},
	} {
		if got, ok := img.SavedRegisters(c.pc); !ok || got != c.want {
			t.Errorf("%s: %v, %t, want %v", c.name, got, ok, c.want)
		}
	}
	if _, ok := img.SavedRegisters(1); ok {
		t.Error("there is something at 1")
	}
}

// TestCallersRegisters: the caller's registers are those saved, and those that
// functions preserve; for interrupted code only those saved.
func TestCallersRegisters(t *testing.T) {
	const cfa, gone = 0x1000, -128
	stack := map[uint64]uint64{cfa - 16: 0x16, cfa - 24: 0x24, cfa + 8: 0x8}
	word := func(addr uint64) (uint64, bool) { v, ok := stack[addr]; return v, ok }
	var all guest.KnownRegisters
	for n := range guest.Registers {
		all.Set(n, uint64(100+n))
	}
	for _, c := range []struct {
		name  string
		rule  guest.FrameRule
		saved guest.SavedRegisters
		want  map[int]uint64
	}{
		{"nothing saved", guest.FrameRule{}, guest.SavedRegisters{}, map[int]uint64{rbx: 103, rbp: 106, r12: 112, r13: 113, 14: 114, 15: 115}},
		{"some saved", guest.FrameRule{}, guest.SavedRegisters{rbx: -2, rbp: -3, r12: gone}, map[int]uint64{rbx: 0x16, rbp: 0x24, r13: 113, 14: 114, 15: 115}},
		{"not there", guest.FrameRule{}, guest.SavedRegisters{rbx: -5}, map[int]uint64{rbp: 106, r12: 112, r13: 113, 14: 114, 15: 115}},
		{"interrupted", guest.FrameRule{Trap: true}, guest.SavedRegisters{rax: -2, rdi: 1, rsp: -3}, map[int]uint64{rax: 0x16, rdi: 0x8}},
	} {
		got := all.Caller(cfa, &c.rule, &c.saved, word)
		for n := range guest.Registers {
			v, ok := got.Get(n)
			if want, has := c.want[n]; ok != has || ok && v != want {
				t.Errorf("%s: register %d: %#x, %t, want %#x, %t", c.name, n, v, ok, want, has)
			}
		}
	}
	none := guest.KnownRegisters{}.Caller(cfa, &guest.FrameRule{}, &guest.SavedRegisters{}, word)
	if v, ok := none.Get(rbx); ok {
		t.Errorf("of nothing known: %#x", v)
	}
}
