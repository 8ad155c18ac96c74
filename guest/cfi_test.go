package guest_test

import (
	"bytes"
	"debug/elf"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
)

func builtinImage(t testing.TB) *guest.Image {
	t.Helper()
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestFrameRule follows the prologue of a function of the built-in guest. The
// compiler has moved it after a check, so that a walk by frame pointers alone would
// be wrong before it.
func TestFrameRule(t *testing.T) {
	img := builtinImage(t)
	if err := img.FrameError(); err != nil {
		t.Fatal(err)
	}
	s, err := img.Lookup("do_fork")
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(img.Code(s.Addr, int(s.Size)), []byte{0x55, 0x48, 0x89, 0xe5}) // push %rbp; mov %rsp,%rbp
	if at < 0 {
		t.Fatal("do_fork has no frame")
	}
	push := s.Addr + guest.GVA(at)
	for _, c := range []struct {
		name string
		pc   guest.GVA
		want guest.FrameRule
	}{
		{"at entry", s.Addr, guest.FrameRule{CFA: 8, Return: -8}},
		{"at push %rbp", push, guest.FrameRule{CFA: 8, Return: -8}},
		{"behind push %rbp", push + 1, guest.FrameRule{CFA: 16, Return: -8, RBP: -16}},
		{"behind mov %rsp,%rbp", push + 4, guest.FrameRule{Base: guest.FrameRBP, CFA: 16, Return: -8, RBP: -16}},
	} {
		got, ok := img.FrameRule(c.pc)
		if !ok || got != c.want {
			t.Errorf("%s (%v): got %+v, %t; want %+v", c.name, c.pc, got, ok, c.want)
		}
	}
	for _, pc := range []guest.GVA{0, 1, s.Addr - 1<<30, ^guest.GVA(0)} {
		if r, ok := img.FrameRule(pc); ok {
			t.Errorf("%v: got %+v, want none", pc, r)
		}
	}
	if n := testing.AllocsPerRun(100, func() { img.FrameRule(s.Addr + 5) }); n != 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
}

// TestTrapFrameRule: what an interrupt's entry was not called by it has interrupted, wherever it is in its saving of
// registers.
func TestTrapFrameRule(t *testing.T) {
	img := builtinImage(t)
	for _, name := range []string{"timer_entry", "syscall_entry", "exc_handle", "gp_foreign_bp", "trap_return"} {
		s, err := img.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		for off := range guest.GVA(s.Size) {
			r, ok := img.FrameRule(s.Addr + off)
			if !ok || !r.Trap || r.Full || r.Base != guest.FrameRSP || r.Return != -40 || r.CFA < 40 || r.CFA > 40+16+15*8 {
				t.Fatalf("%s+%#x: %+v, %t", name, off, r, ok)
			}
		}
	}
	if r, _ := img.FrameRule(mustLookup(t, img, "timer_entry") + 1); r != (guest.FrameRule{CFA: 56 + 8, Return: -40, Trap: true}) {
		t.Errorf("behind the first push: %+v", r)
	}
}

func mustLookup(t *testing.T, img *guest.Image, name string) guest.GVA {
	t.Helper()
	s, err := img.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return s.Addr
}

// TestFrameRuleCovers: nearly all code of the built-in guest has a rule.
func TestFrameRuleCovers(t *testing.T) {
	img := builtinImage(t)
	n, known := 0, 0
	for _, s := range img.Symbols() {
		if s.Kind != guest.SymFunc || s.Size == 0 || s.Section != ".text" {
			continue
		}
		n++
		if _, ok := img.FrameRule(s.Addr); ok {
			known++
		} else {
			t.Logf("no rule at %s", s.Name)
		}
	}
	if n == 0 || known < n*95/100 {
		t.Errorf("%d of %d functions have a rule at their entry", known, n)
	}
}

// FuzzFrames damages the call frame information of the built-in guest.
func FuzzFrames(f *testing.F) {
	file := builtin.ELF()
	e, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		f.Fatal(err)
	}
	s := e.Section(".debug_frame")
	img, err := guest.ParseELF(file)
	if err != nil {
		f.Fatal(err)
	}
	sym, err := img.Lookup("do_fork")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(0), []byte{0xff})
	f.Add(uint16(0), bytes.Repeat([]byte{0xff}, 12))
	f.Add(uint16(9), []byte("zR\x00\x01\x78\x10\x01\x1b"))
	f.Add(uint16(0x30), []byte{0x3c, 0, 0, 0, 4, 0, 0, 0})
	f.Add(uint16(0x48), []byte{0x0f, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add(uint16(0x48), []byte{0x0b, 0x0a, 0x0b, 0x0b})
	f.Add(uint16(0x48), []byte{0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0x41})
	f.Fuzz(func(t *testing.T, off uint16, b []byte) {
		damaged := bytes.Clone(file)
		at := int(s.Offset) + int(off)%int(s.Size)
		copy(damaged[at:int(s.Offset+s.Size)], b)
		img, err := guest.ParseELF(damaged)
		if err != nil {
			t.Fatalf("an image with other debug sections is refused: %v", err)
		}
		_ = img.FrameError()
		for i := range guest.GVA(sym.Size) {
			img.FrameRule(sym.Addr + i)
		}
	})
}
