package machine

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// TestStepFaultUndelivered steps over an access that faults in a guest whose IDT has no #BP that could be delivered yet: where the int3s at the
// guest's handlers are the only end of the step, it is refused, and the guest is as it was. Where the step is a debug exit, the guest ends as it does
// without us.
func TestStepFaultUndelivered(t *testing.T) {
	const nowhere = 0x1234_5000_0000                                                      // canonical, and mapped by no guest
	code := append([]byte{0x48, 0xb8}, binary.LittleEndian.AppendUint64(nil, nowhere)...) // 00 mov $nowhere,%rax
	code = append(code,
		0x53,       // 0a push %rbx
		0x8b, 0x08, // 0b mov (%rax),%ecx
		0xeb, 0xfe, // 0d jmp .
	)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, tinySym{"boot", tinyText, uint64(len(code))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	ctx := patience.Of(t)
	for _, next := range []guest.GVA{0x0a, 0x0b} {
		stepTo(ctx, t, m, next)
	}
	before := registers(t, m, 0)
	did, err := m.Step(ctx, 0, 1)
	if m.host.Traps.CPL(0).Int3 != host.DeliveryVector {
		if s := m.State(); err == nil || s.Phase != PhaseCrashed {
			t.Errorf("%d steps, %v, the guest is %v, want a triple fault", did, err, s.Phase)
		}
		return
	}
	if did != 0 || !errors.Is(err, ErrCannotStep) || !errors.Is(err, errUndelivered) {
		t.Errorf("%d steps: %v, want 0 and %v", did, err, errUndelivered)
	}
	if after := registers(t, m, 0); after.Regs != before.Regs {
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
	ctx := patience.Of(t)
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
