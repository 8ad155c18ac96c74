package machine

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// TestHandlerEntries: a vCPU that is anywhere between the first instruction of the guest's breakpoint handler and the stub in it,
// with the frame of a probe's int3 on its stack, is not saved in this state. It is moved to where its trap is handled, and from there back to the
// probed instruction. Linux's handlers begin in all of these ways.
func TestHandlerEntries(t *testing.T) {
	endbr, clac, cld := []byte{0xf3, 0x0f, 0x1e, 0xfa}, []byte{0x0f, 0x01, 0xca}, []byte{0xfc}
	nop3, nop4, nops := []byte{0x0f, 0x1f, 0x00}, []byte{0x66, 0x0f, 0x1f, 0x00}, []byte{0x90, 0x90, 0x90}
	stub := guest.TrapStub(guest.PortBreakpoint)
	for _, c := range []struct {
		what  string
		entry [][]byte
	}{
		{"no entry", nil},
		{"5.10 as linked", [][]byte{nops[:1], nops[:1], nops[:1]}},
		{"5.10 without SMAP", [][]byte{nop3}},
		{"5.10", [][]byte{clac}},
		{"6.1 as linked", [][]byte{nops[:1], nops[:1], nops[:1], cld}},
		{"6.1 without SMAP", [][]byte{nop3, cld}},
		{"6.1", [][]byte{clac, cld}},
		{"with ENDBR", [][]byte{endbr, clac, cld}},
		{"sealed", [][]byte{nop4, nop3, cld}},
	} {
		t.Run(c.what, func(t *testing.T) {
			code, fn := countingGuest(1)
			handler := len(code)
			code = append(append(code, slices.Concat(c.entry...)...), stub...)
			code = append(code, 0x50, 0xe6, guest.PortBreakpoint) // push %rax; out: an out after another instruction is not an entry
			m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: -1}})
			if err := m.Engine().Register(&probe.Kprobe{Symbol: fn.name, Pre: func(*probe.Context) int { return 0 }}); err != nil {
				t.Fatal(err)
			}
			v := m.vcpus[0]
			before := *v.regs
			sp := uint64(tinyData) + 2048
			frame := make([]byte, 0, 8*frameWords)
			for _, w := range []uint64{fn.addr + 1, guest.SelKernelCode, x86.Flag1 | x86.FlagDF, sp + 8*frameWords, guest.SelKernelData} {
				frame = binary.LittleEndian.AppendUint64(frame, w)
			}
			if err := m.WriteMemory(0, guest.GVA(sp), frame); err != nil {
				t.Fatal(err)
			}
			at := tinyText + uint64(handler)
			for i := 0; i <= len(c.entry); i++ {
				*v.regs = before
				v.regs.RIP, v.regs.RSP, v.regs.RFLAGS = at, sp, x86.Flag1
				if port, ok := v.handsTrap(); !ok || port != guest.PortBreakpoint {
					t.Errorf("at instruction %d of the handler: port %#x, %v", i, port, ok)
				}
				v.undoHandlerEntry()
				if v.regs.RIP != fn.addr || v.regs.RSP != sp+8*frameWords || v.regs.RFLAGS != x86.Flag1|x86.FlagDF {
					t.Errorf("at instruction %d of the handler: the vCPU goes on at %#x, RSP %#x, RFLAGS %#x", i, v.regs.RIP, v.regs.RSP, v.regs.RFLAGS)
				}
				if i < len(c.entry) {
					at += uint64(len(c.entry[i]))
				}
			}
			*v.regs = before
			for _, at := range []uint64{at + uint64(len(stub)), at + uint64(len(stub)) - 2} { // push, and the iretq of the stub
				v.regs.RIP = at
				if port, ok := v.handsTrap(); ok {
					t.Errorf("%#x is no entry of a handler; port %#x", at, port)
				}
			}
			*v.regs = before
		})
	}
}

// TestCodeSegments: a vCPU that returns from a stub to 32-bit code gets the segments in the guest's descriptor tables. It gets flat ones for
// 64-bit code, and if an iretq could not load the descriptors.
func TestCodeSegments(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), Memory: 16 << 20, Tick: -1})
	v := m.vcpus[0]
	var table []byte
	for _, d := range []uint64{
		0, 0x00af9a000000ffff, 0x00cf92000000ffff, // 00 null; 08 64-bit code; 10 data
		0x00affa000000ffff, // 18 64-bit user code
		0x00cffa000000ffff, // 20 32-bit user code
		0x00cf7a000000ffff, // 28 not present
		0x0000f30000000000, // 30 no code
		0x00cfba000000ffff, // 38 code of another privilege
		0x00cf9e000000ffff, // 40 conforming code of the kernel
		0x0040f2345678ffff, // 48 data with a base and a limit of 64 KiB
		0x0002f8000000abcd, // 50 a code segment of 16 bits
	} {
		table = binary.LittleEndian.AppendUint64(table, d)
	}
	if err := m.WriteMemory(0, guest.GVA(tinyData), table); err != nil {
		t.Fatal(err)
	}
	v.sregs.GDT = kvm.Descriptor{Base: tinyData, Limit: uint16(len(table) - 1)}
	v.sregs.LDT = kvm.Segment{Base: tinyData + 16, Limit: 23}
	seg := func(sel uint16, typ, dpl, l, db, g uint8, base uint64, limit uint32) kvm.Segment {
		return kvm.Segment{Selector: sel, Typ: typ, DPL: dpl, L: l, DB: db, G: g, Base: base, Limit: limit, Present: 1, S: 1}
	}
	const all = ^uint32(0)
	user := kvm.DataSegment(0x13)
	for _, c := range []struct {
		cs, ss      uint16
		code, stack kvm.Segment
	}{
		{0x08, 0x10, kvm.CodeSegment(0x08), kvm.DataSegment(0x10)},
		{0x1b, 0x13, kvm.CodeSegment(0x1b), user},
		{0x1b, 0x4b, kvm.CodeSegment(0x1b), kvm.DataSegment(0x4b)}, // 64-bit code's stack is flat
		{0x23, 0x4b, seg(0x23, 11, 3, 0, 1, 1, 0, all), seg(0x4b, 3, 3, 0, 1, 0, 0x345678, 0xffff)},
		{0x23, 0x03, seg(0x23, 11, 3, 0, 1, 1, 0, all), kvm.DataSegment(0x03)},                      // no segment
		{0x17, 0x4b, seg(0x17, 11, 3, 0, 1, 1, 0, all), seg(0x4b, 3, 3, 0, 1, 0, 0x345678, 0xffff)}, // of the LDT
		{0x43, 0x03, seg(0x43, 15, 0, 0, 1, 1, 0, all), kvm.DataSegment(0x03)},
		{0x53, 0x03, seg(0x53, 9, 3, 0, 0, 0, 0, 0x2abcd), kvm.DataSegment(0x03)},
		{0x2b, 0x4b, kvm.CodeSegment(0x2b), kvm.DataSegment(0x4b)},
		{0x33, 0x4b, kvm.CodeSegment(0x33), kvm.DataSegment(0x4b)},
		{0x3b, 0x4b, kvm.CodeSegment(0x3b), kvm.DataSegment(0x4b)},
		{0x103, 0x4b, kvm.CodeSegment(0x103), kvm.DataSegment(0x4b)}, // beyond the GDT
		{0x1f, 0x4b, kvm.CodeSegment(0x1f), kvm.DataSegment(0x4b)},   // beyond the LDT
		{0x03, 0x4b, kvm.CodeSegment(0x03), kvm.DataSegment(0x4b)},
	} {
		if code, stack := v.segments(c.cs, c.ss); code != c.code || stack != c.stack {
			t.Errorf("selectors %#x, %#x:\n%+v\n%+v, want\n%+v\n%+v", c.cs, c.ss, code, stack, c.code, c.stack)
		}
	}
}
