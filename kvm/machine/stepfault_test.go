package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// TestStepFaultUndelivered steps over an access that faults in a guest whose #PF has a handler, and whose #BP has a stack that no TSS names yet. Where
// the int3s at the guest's handlers are the only end of a step they would not be delivered: the step is refused, and the guest is as it was. Elsewhere it
// ends in the handler.
func TestStepFaultUndelivered(t *testing.T) {
	const (
		nowhere = 0x1234_5000_0000 // canonical, and mapped by no guest
		idt     = 0x100            // in the data
		handler = 0x20             // in the text
	)
	code := append([]byte{0x48, 0xbf}, binary.LittleEndian.AppendUint64(nil, tinyData)...)                // 00 mov $,%rdi
	code = append(append(code, 0x48, 0xb8), binary.LittleEndian.AppendUint64(nil, nowhere)...)            // 0a mov $nowhere,%rax
	code = append(code, 0x0f, 0x01, 0x1f /* 14 lidt (%rdi) */, 0x8b, 0x08 /* 17 mov (%rax),%ecx */)       // the fault
	code = append(append(code, bytes.Repeat([]byte{0x90}, handler-len(code))...), 0xff, 0xc2, 0xeb, 0xfc) // 20 inc %edx; jmp 20
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, tinySym{"boot", tinyText, uint64(len(code))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	var d [idt + 16*16]byte
	binary.LittleEndian.PutUint16(d[:], 16*16-1)
	binary.LittleEndian.PutUint64(d[2:], tinyData+idt)
	guest.PutGate(d[idt+16*x86.VectorPF:], tinyText+handler, 0)
	guest.PutGate(d[idt+16*x86.VectorBP:], tinyText+handler, 1)
	if err := m.Look(func(l *Look) error { return l.Write(0, tinyData, d[:]) }); err != nil {
		t.Fatal(err)
	}
	ctx := patience.Context(t)
	for _, next := range []guest.GVA{0x0a, 0x14, 0x17} {
		stepTo(ctx, t, m, next)
	}
	before := registers(t, m, 0)
	did, err := m.Step(ctx, 0, 1)
	after := registers(t, m, 0)
	switch {
	case err == nil && did == 1 && after.Live == tinyText+handler && m.host.Traps.CPL(0).Int3 != host.DeliveryVector:
	case did != 0 || !errors.Is(err, ErrCannotStep) || !errors.Is(err, errUndelivered):
		t.Errorf("%d steps to %v: %v, want 0 and %v", did, after.Live, err, errUndelivered)
	case after.Regs != before.Regs:
		t.Errorf("the registers are\n%+v after the refusal, before it\n%+v", after.Regs, before.Regs)
	}
}

// TestStepPortText steps over what tells the host that text has changed. The vCPU has stopped the world for the step, so the engine compares the text
// when the step is over, and before the next one.
func TestStepPortText(t *testing.T) {
	const f = 0x02
	code := asm(
		[]byte{0xeb, 0x0c}, // 00 jmp over the function
		[]byte{0xbb, 1, 0, 0, 0, 0x89, 0xd8, 0x90, 0x90, 0x90, 0x90, 0xc3}, // 02 f: mov $1,%ebx; mov %ebx,%eax; nops; ret
		[]byte{0xc6, 0x04, 0x25, 0x03, 0x00, tinyPhys >> 16, 0x00, 0x07},   // 0e movb $7,f+1, by the identity map
		outAL(guest.PortText),                // 16
		[]byte{0xe8, 0xe5, 0xff, 0xff, 0xff}, // 18 call f
		[]byte{0xe7, guest.PortExit}, hltForever)
	m := newMachine(t, Config{Memory: 16 << 20, Tick: -1, Image: tinyGuest(t, code, nil, tinySym{"f", tinyText + f, 12})})
	k := &probe.Kprobe{Addr: tinyText + f, Pre: func(*probe.Context) int { return 0 }}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	ctx := patience.Context(t)
	for _, next := range []guest.GVA{0x0e, 0x16, 0x18, f, 0x07} {
		stepTo(ctx, t, m, next)
	}
	if r := registers(t, m, 0); r.Regs.RBX != 7 {
		t.Errorf("f was executed with %#x, want 7", r.Regs.RBX)
	}
	if i, _ := m.Engine().Info(k); !i.Changed || i.Stats.Hits != 0 {
		t.Errorf("%v, %d hits, want a site whose text has changed, and none", i, i.Stats.Hits)
	}
	got := []byte{0}
	if err := m.Peek(tinyText+f, got); err != nil || got[0] == x86.Int3 {
		t.Errorf("the text is % x (%v)", got, err)
	}
}
