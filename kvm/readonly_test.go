package kvm

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// Read-only memory is read as memory; a write to it is an MMIO exit and
// changes nothing.
func TestReadOnlyMemory(t *testing.T) {
	for _, cpl := range []string{"cpl0", "cpl3"} {
		t.Run(cpl, func(t *testing.T) {
			b := newBox(t, []byte{
				0x8a, 0x04, 0x25, 0x10, 0x00, 0x20, 0x00, // mov 0x200010,%al
				0xfe, 0xc0, // inc %al
				0x88, 0x04, 0x25, 0x10, 0x00, 0x20, 0x00, // mov %al,0x200010
				0x8a, 0x24, 0x25, 0x10, 0x00, 0x20, 0x00, // mov 0x200010,%ah
				0xf4, // hlt
			})
			if b.vm.Check(CapReadOnlyMemory) == 0 {
				t.Fatalf("this host lacks %v, in linux since 3.7", CapReadOnlyMemory)
			}
			end := ReasonHLT
			if cpl == "cpl3" {
				userMode(b.v.Sregs())
				b.v.SetSregsDirty()
				end = ReasonIO // of the handler of #GP
			}
			rom := newMemory(t, 4096)
			rom[0x10] = 0x41
			if err := b.vm.MapMemory(1, boxHole, rom, MemReadOnly); err != nil {
				t.Fatal(err)
			}
			e := b.want(ReasonMMIO)
			if m := e.MMIO; m.GPA != boxHole+0x10 || m.Len != 1 || !m.Write || m.Data[0] != 0x42 {
				t.Errorf("%v; want a write of 42 to %#x", e, boxHole+0x10)
			}
			b.want(end)
			if got := b.v.Regs().RAX & 0xffff; got != 0x4142 || rom[0x10] != 0x41 {
				t.Errorf("ax %#x, memory %#x; want 0x4142 and 0x41", got, rom[0x10])
			}
			if err := b.vm.UnmapMemory(1); err != nil {
				t.Error(err)
			}
		})
	}
}

// newROM makes a guest at a privilege level with a page of read-only memory at
// boxHole.
func newROM(t *testing.T, cpl int, code []byte) (*box, []byte) {
	t.Helper()
	rom := newMemory(t, 4096)
	b := newBoxAt(t, cpl, code)
	if err := b.vm.MapMemory(1, boxHole, rom, MemReadOnly); err != nil {
		t.Fatal(err)
	}
	return b, rom
}

// Code runs from read-only memory, and what the host changes there between two
// exits is what runs next: slots and detours of probes live in such memory.
func TestReadOnlyMemoryRuns(t *testing.T) {
	for _, cpl := range []int{0, 3} {
		t.Run(fmt.Sprintf("cpl%d", cpl), func(t *testing.T) {
			b, rom := newROM(t, cpl, nil)
			copy(rom, []byte{
				0xb0, 0x01, // mov $1,%al
				0xe6, 0x50, // out %al,$0x50
				0xeb, 0xfa, // jmp back
			})
			b.v.Regs().RIP = boxHole
			b.v.SetRegsDirty()
			for n := byte(1); n < 20; n++ {
				if e := b.wantOut(0x50); e.IO.Data[0] != n {
					t.Fatalf("guest wrote %d, want %d", e.IO.Data[0], n)
				}
				rom[1] = n + 1
			}
			rom[2], rom[3] = 0xe6, 0x51
			b.want(ReasonIO) // the out that RIP may stand at, or the next
			b.wantOut(0x51)
		})
	}
}

// No kind of write gets through: each is one MMIO exit or several, with what
// the guest tried to write, and the guest goes on behind it.
func TestReadOnlyMemoryWrites(t *testing.T) {
	const at = boxHole + 0x20
	for _, tt := range []struct {
		name string
		code []byte // rdi = at, rsi = 0x30000 with 0x01 0x02 ..., rax = 0x1122334455667788, rcx = 2
		want []byte // bytes that arrive, by ascending address from at
	}{
		{"byte", []byte{0x88, 0x07}, []byte{0x88}},                                                             // mov %al,(%rdi)
		{"word", []byte{0x66, 0x89, 0x07}, []byte{0x88, 0x77}},                                                 // mov %ax,(%rdi)
		{"quadword", []byte{0x48, 0x89, 0x07}, []byte{0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11}},         // mov %rax,(%rdi)
		{"read and write", []byte{0x00, 0x07}, []byte{0x88 + 0x5a}},                                            // add %al,(%rdi)
		{"locked", []byte{0xf0, 0x00, 0x07}, []byte{0x88 + 0x5a}},                                              // lock add %al,(%rdi)
		{"exchange", []byte{0x86, 0x07}, []byte{0x88}},                                                         // xchg %al,(%rdi)
		{"string", []byte{0xfc, 0xf3, 0xa4}, []byte{0x01, 0x02}},                                               // cld; rep movsb
		{"push", []byte{0x48, 0x89, 0xfc, 0x48, 0x83, 0xc4, 0x08, 0x6a, 0x05}, []byte{5, 0, 0, 0, 0, 0, 0, 0}}, // mov %rdi,%rsp; add $8,%rsp; push $5
		{"16 bytes", []byte{0xf3, 0x0f, 0x6f, 0x06, 0xf3, 0x0f, 0x7f, 0x07}, // movdqu (%rsi),%xmm0; movdqu %xmm0,(%rdi)
			[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
	} {
		for _, cpl := range []int{0, 3} {
			t.Run(fmt.Sprintf("%s/cpl%d", tt.name, cpl), func(t *testing.T) {
				b, rom := newROM(t, cpl, append(slices.Clone(tt.code), 0xe6, 0x50)) // out %al,$0x50
				for i := range 16 {
					b.mem[0x30000+i] = byte(1 + i)
				}
				for i := range rom {
					rom[i] = 0x5a
				}
				before := slices.Clone(rom)
				r := b.v.Regs()
				r.RDI, r.RSI, r.RCX, r.RAX = at, 0x30000, 2, 0x1122334455667788
				b.v.SetRegsDirty()
				got := map[uint64]byte{}
				for {
					e := b.run()
					if e.Reason == ReasonIO && e.IO.Port == 0x50 {
						break
					}
					if e.Reason != ReasonMMIO || !e.MMIO.Write {
						t.Fatalf("exit %v, want writes and then the out", e)
					}
					for i := range uint64(e.MMIO.Len) {
						got[e.MMIO.GPA+i] = e.MMIO.Data[i]
					}
				}
				if len(got) != len(tt.want) {
					t.Errorf("%d bytes arrive, want %d", len(got), len(tt.want))
				}
				for i, w := range tt.want {
					if g := got[at+uint64(i)]; g != w {
						t.Errorf("byte %d is %#x, want %#x", i, g, w)
					}
				}
				if !bytes.Equal(rom, before) {
					t.Error("the memory was changed")
				}
			})
		}
	}
}
