package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// TestStepUntilTablesAreLoaded steps through code that loads an IDT whose #BP has a stack of its own before it loads the TSS that names
// that stack, and then through code on that stack. Where int3s are delivered in the guest none can be there, or one would overwrite a frame in use:
// each step is one instruction all the same, and changes nothing else.
func TestStepUntilTablesAreLoaded(t *testing.T) {
	const (
		descriptors = 0x400 // in the data: of lgdt, of lidt
		gdt         = 0x500
		tss         = 0x600
		idt         = 0x700
		stack       = 0xf00
		selTSS      = 0x40
		stub        = 0x40 // in the text
	)
	code := append([]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, tinyData+descriptors)...) // 00 mov $,%rax
	code = append(code,
		0x0f, 0x01, 0x10, // 0a lgdt (%rax)
		0x0f, 0x01, 0x58, 0x10, // 0d lidt 0x10(%rax)
		0x89, 0x48, 0x20, // 11 mov %ecx,0x20(%rax)
		0x53,       // 14 push %rbx
		0x0f, 0xa2, // 15 cpuid
		0x59,                           // 17 pop %rcx
		0xb9, selTSS, 0x00, 0x00, 0x00, // 18 mov $selTSS,%ecx
		0x0f, 0x00, 0xd9, // 1d ltr %cx
		0x53,       // 20 push %rbx
		0x0f, 0xa2, // 21 cpuid
		0x5b,       // 23 pop %rbx
		0xeb, 0xfe, // 24 jmp .
	)
	code = append(append(code, make([]byte, stub-len(code))...), guest.TrapStub(guest.PortBreakpoint)...)
	code = append(code, 0x0f, 0x0b)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, tinySym{"boot", tinyText, stub}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	var d [stack - descriptors]byte
	le := binary.LittleEndian
	at := func(off int) []byte { return d[off-descriptors:] }
	le.PutUint16(at(descriptors), selTSS+15)
	le.PutUint64(at(descriptors+2), tinyData+gdt)
	le.PutUint16(at(descriptors+0x10), 16*4-1)
	le.PutUint64(at(descriptors+0x12), tinyData+idt)
	le.PutUint64(at(gdt+guest.SelKernelCode), 0x00af_9b00_0000_ffff)
	le.PutUint64(at(gdt+guest.SelKernelData), 0x00cf_9300_0000_ffff)
	le.PutUint64(at(gdt+selTSS), 0x67|(tinyData+tss)&0xff_ffff<<16|0x89<<40|(tinyData+tss)>>24&0xff<<56)
	le.PutUint64(at(gdt+selTSS+8), (tinyData+tss)>>32)
	le.PutUint64(at(tss+tssIST), tinyData+stack)
	guest.PutGate(at(idt+16*x86.VectorBP), tinyText+stub, 1)
	if err := m.Look(func(l *Look) error { return l.Write(0, tinyData+descriptors, d[:]) }); err != nil {
		t.Fatal(err)
	}
	ctx := patience.Context(t)
	for _, next := range []guest.GVA{0x0a, 0x0d, 0x11, 0x14, 0x15, 0x17, 0x18, 0x1d, 0x20, 0x21, 0x23, 0x24, 0x24} {
		stepTo(ctx, t, m, next)
	}
	// Code on that stack, as a handler of #BP is: what its top has is the frame that it will return by.
	want := bytes.Repeat([]byte("frame...")[:8], 5)
	top := guest.GVA(tinyData + stack)
	if err := m.Look(func(l *Look) error {
		r, _, err := l.GeneralRegisters(0)
		if err != nil {
			return err
		}
		r.RIP, r.RSP = tinyText+0x20, uint64(top)-64
		return errors.Join(l.setRegs(0, r), l.Write(0, top-40, want))
	}); err != nil {
		t.Fatal(err)
	}
	for _, next := range []guest.GVA{0x21, 0x23, 0x24, 0x24} {
		stepTo(ctx, t, m, next)
	}
	got := make([]byte, len(want))
	if err := m.Look(func(l *Look) error { _, err := l.Read(0, top-40, got, true); return err }); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("steps on the stack of #BP left %x at its top, want %x", got, want)
	}
}

// TestStepOwnInt3 steps onto the guest's own int3 with instructions before it that do not leave the guest, and that KVM executes: its handler
// finds the RIP after the int3, not that of the instruction of which KVM knows the length.
func TestStepOwnInt3(t *testing.T) {
	const stub, foreign = 0x20, 0x24
	code := append([]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, tinyData+0x200)...) // 00 mov $,%rax
	code = append(code,
		0x0f, 0x01, 0x18, // 0a lidt (%rax)
		0x53,       // 0d push %rbx
		0x0f, 0xa2, // 0e cpuid
		0x5b,                   // 10 pop %rbx
		0x48, 0x8d, 0x71, 0x01, // 11 lea 1(%rcx),%rsi
		0x48, 0x8d, 0x79, 0x02, // 15 lea 2(%rcx),%rdi
		0xcc,       // 19 int3
		0xeb, 0xf1, // 1a jmp 0d
	)
	code = append(append(code, make([]byte, stub-len(code))...), guest.TrapStub(guest.PortBreakpoint)...)
	code = append(append(code, make([]byte, foreign-len(code))...), 0x48, 0xcf) // 24 iretq
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, tinySym{"main", tinyText, stub}, tinySym{"gp_foreign_bp", tinyText + foreign, 2}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	var idt [0x210]byte
	guest.PutGate(idt[16*x86.VectorBP:], tinyText+stub, 0)
	binary.LittleEndian.PutUint16(idt[0x200:], 16*4-1)
	binary.LittleEndian.PutUint64(idt[0x202:], tinyData)
	if err := m.Look(func(l *Look) error { return l.Write(0, tinyData, idt[:]) }); err != nil {
		t.Fatal(err)
	}
	ctx := patience.Context(t)
	for _, next := range []guest.GVA{0x0a, 0x0d} {
		stepTo(ctx, t, m, next)
	}
	for round := range 4 {
		for _, next := range []guest.GVA{0x0e, 0x10, 0x11, 0x15, 0x19} {
			stepTo(ctx, t, m, next)
		}
		r := stepTo(ctx, t, m, foreign) // the stub hands it to the host, and gets it back
		var frame [8]byte
		if err := m.Look(func(l *Look) error { _, err := l.Read(0, guest.GVA(r.RSP), frame[:], true); return err }); err != nil {
			t.Fatal(err)
		}
		if rip := binary.LittleEndian.Uint64(frame[:]); rip != tinyText+0x1a {
			t.Fatalf("round %d: the handler's frame has RIP %#x, want %#x", round, rip, uint64(tinyText+0x1a))
		}
		stepTo(ctx, t, m, 0x1a)
		stepTo(ctx, t, m, 0x0d)
	}
}
