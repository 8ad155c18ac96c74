package guest_test

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// frameRegs are registers by FrameRegister.
func frameRegs(rsp, rbp, r10, r13, rdi, rdx uint64) (r [6]uint64) {
	r[guest.FrameRSP], r[guest.FrameRBP], r[guest.FrameR10], r[guest.FrameR13], r[guest.FrameRDI], r[guest.FrameRDX] = rsp, rbp, r10, r13, rdi, rdx
	return r
}

// TestFrameCaller takes one step on a stack at 0x1000 to 0x2000, where each word is
// its address plus 1, except for the given ones.
func TestFrameCaller(t *testing.T) {
	now := guest.Frame{PC: 5, Exact: true, Known: true, Regs: frameRegs(0x1000, 0x1100, 0x1200, 0x1300, 0x1400, 0x1500)}
	call := func(pc, rsp, rbp uint64) *guest.Frame {
		return &guest.Frame{PC: pc, Regs: frameRegs(rsp, rbp, 0x1200, 0x1300, 0x1400, 0x1500)}
	}
	unknown := now
	unknown.Known = false
	for _, c := range []struct {
		name  string
		from  guest.Frame
		rule  guest.FrameRule
		words map[uint64]uint64
		want  *guest.Frame // nil: no caller
	}{
		{"call", now, guest.FrameRule{CFA: 0x20, Return: -8}, nil, call(0x1019, 0x1020, 0x1100)},
		{"saved rbp", now, guest.FrameRule{CFA: 0x20, Return: -8, RBP: -0x10}, nil, call(0x1019, 0x1020, 0x1011)},
		{"rbp at rbp", now, guest.FrameRule{CFA: 0x20, Return: -8, RBP: -0x10, AtRBP: true}, nil, call(0x1019, 0x1020, 0x10f1)},
		{"from rbp", now, guest.FrameRule{Base: guest.FrameRBP, CFA: 0x10, Return: -8}, nil, call(0x1109, 0x1110, 0x1100)},
		{"from r10", now, guest.FrameRule{Base: guest.FrameR10, Return: -8}, nil, call(0x11f9, 0x1200, 0x1100)},
		{"from r13", now, guest.FrameRule{Base: guest.FrameR13, Return: -8}, nil, call(0x12f9, 0x1300, 0x1100)},
		{"from rdi", now, guest.FrameRule{Base: guest.FrameRDI, Return: -8}, nil, call(0x13f9, 0x1400, 0x1100)},
		{"from rdx", now, guest.FrameRule{Base: guest.FrameRDX, Return: -8}, nil, call(0x14f9, 0x1500, 0x1100)},
		{"from rdx, which a call has changed", unknown, guest.FrameRule{Base: guest.FrameRDX, Return: -8}, nil, nil},
		{"another stack, by rsp", now, guest.FrameRule{Indirect: true, CFA: 8, Return: -8}, map[uint64]uint64{0x1000: 0x800, 0x800: 77}, call(77, 0x808, 0x1100)},
		{"another stack, by rbp", now, guest.FrameRule{Base: guest.FrameRBP, Indirect: true, Inner: -8, Return: -8}, map[uint64]uint64{0x10f8: 0x1800}, call(0x17f9, 0x1800, 0x1100)},
		{"interrupt", now, guest.FrameRule{CFA: 0x10, Trap: true}, map[uint64]uint64{0x1018: 0x10, 0x1028: 0x500},
			&guest.Frame{PC: 0x1011, Exact: true, Known: true, Regs: frameRegs(0x500, 0x1100, 0x1200, 0x1300, 0x1400, 0x1500)}},
		{"interrupt of user code", now, guest.FrameRule{CFA: 0x10, Trap: true}, map[uint64]uint64{0x1018: 0x33, 0x1028: 0x7ff0},
			&guest.Frame{PC: 0x1011, Exact: true, User: true, Known: true, Regs: frameRegs(0x7ff0, 0x1100, 0x1200, 0x1300, 0x1400, 0x1500)}},
		{"all registers", unknown, guest.FrameRule{Trap: true, Full: true, Return: 128, RBP: 32}, map[uint64]uint64{0x1000 + 136: 0x10, 0x1000 + 152: 0x1ff0},
			&guest.Frame{PC: 0x1081, Exact: true, Known: true, Regs: frameRegs(0x1ff0, 0x1021, 0x1039, 0x1011, 0x1071, 0x1061)}},
		{"outermost", now, guest.FrameRule{CFA: 0x20, Return: -8, Outer: true}, nil, nil},
		{"not a stack's", now, guest.FrameRule{CFA: 0x21, Return: -8}, nil, nil},
		{"no frame", now, guest.FrameRule{}, nil, nil},
		{"down", now, guest.FrameRule{CFA: -8, Return: -8}, nil, nil},
		{"far up", now, guest.FrameRule{CFA: 8<<20 + 8, Return: -8}, map[uint64]uint64{0x1000 + 8<<20: 1}, nil},
		{"no return address", now, guest.FrameRule{CFA: 0x1000 + 8, Return: -8}, nil, nil},
		{"no rbp", now, guest.FrameRule{CFA: 0x20, Return: -8, RBP: 0x1000}, nil, nil},
		{"no other stack", now, guest.FrameRule{Indirect: true, Inner: -8, Return: -8}, nil, nil},
		{"half an interrupt", now, guest.FrameRule{CFA: 0xff8, Trap: true}, nil, nil},
		{"no stack pointer", now, guest.FrameRule{CFA: 0xfe8, Trap: true}, nil, nil},
		{"half the registers", now, guest.FrameRule{Base: guest.FrameRDX, CFA: -0x578, Return: 128, Trap: true, Full: true}, nil, nil},
	} {
		f := c.from
		ok := f.Caller(c.rule, func(addr uint64) (uint64, bool) {
			if w, ok := c.words[addr]; ok {
				return w, true
			}
			return addr + 1, addr >= 0x1000 && addr < 0x2000
		})
		if ok != (c.want != nil) || ok && f != *c.want {
			t.Errorf("%s: %v %+v, want %+v", c.name, ok, f, c.want)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		f, base := now, uint64(8)
		f.Caller(guest.FrameRule{CFA: 0x20, Return: -8}, func(addr uint64) (uint64, bool) { return addr + base, true })
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if at := now.RuleAddr(); at != 5 {
		t.Errorf("the rule of the next instruction is at %v", at)
	}
	if at := call(9, 0, 0).RuleAddr(); at != 8 {
		t.Errorf("the rule behind a call is at %v", at)
	}
}
