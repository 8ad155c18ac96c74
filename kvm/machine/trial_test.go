package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// TestImpossibleStates: a snapshot with a state that no processor can have is refused, and the guest continues.
func TestImpossibleStates(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=1", Tick: slowTick}
	want := results(t, newMachine(t, config))
	m := newMachine(t, config)
	first := save(t, m)
	for name, spoil := range map[string]func(c *snapshot.CPU){
		"MXCSR": func(c *snapshot.CPU) {
			c.XSave[512] |= 2 // SSE is not in its initial state
			binary.LittleEndian.PutUint32(c.XSave[24:], 0xffff0000)
		},
		"RFLAGS reserved bits":    func(c *snapshot.CPU) { c.Regs.RFLAGS |= 1 << 30 },
		"virtual-8086, long mode": func(c *snapshot.CPU) { c.Regs.RFLAGS |= 1 << 17 },
		"RIP not canonical":       func(c *snapshot.CPU) { c.Regs.RIP = 1 << 63 },
		"FS not canonical":        func(c *snapshot.CPU) { c.Sregs.FS.Base = 1 << 63 },
		"GDT not canonical":       func(c *snapshot.CPU) { c.Sregs.GDT.Base = 1 << 63 },
		"IDT not canonical":       func(c *snapshot.CPU) { c.Sregs.IDT.Base = 1 << 63 },
		"TR not canonical":        func(c *snapshot.CPU) { c.Sregs.TR.Base = 1 << 63 },
		"LDT not canonical":       func(c *snapshot.CPU) { c.Sregs.LDT.Base, c.Sregs.LDT.Unusable = 1<<63, 0 },
		"CS of 64 and 32 bits":    func(c *snapshot.CPU) { c.Sregs.CS.L, c.Sregs.CS.DB = 1, 1 },
		"an exception 255":        func(c *snapshot.CPU) { c.Events.E.Inject, c.Events.E.Nr = 1, 255 },
		"too many XCRs":           func(c *snapshot.CPU) { c.XCRs.NrXRCS = 1000 },
		"CR3 too large":           func(c *snapshot.CPU) { c.Sregs.CR3 = 1 << 60 },
		"DR7":                     func(c *snapshot.CPU) { c.Debug.DR7 = 1 << 40 },
		"DR6":                     func(c *snapshot.CPU) { c.Debug.DR6 = 1 << 40 },
		"XCR0 without x87":        func(c *snapshot.CPU) { c.XCRs.Registers[0].Value = 0 },
		"CR0 paged, unprotected":  func(c *snapshot.CPU) { c.Sregs.CR0 &^= 1 },
		"CR0 reserved bits":       func(c *snapshot.CPU) { c.Sregs.CR0 |= 1 << 40 },
		"CR4 reserved bits":       func(c *snapshot.CPU) { c.Sregs.CR4 |= 1 << 40 },
		"long mode without PAE":   func(c *snapshot.CPU) { c.Sregs.CR4 &^= 1 << 5 },
		"EFER reserved bits":      func(c *snapshot.CPU) { c.Sregs.EFER |= 1 << 40 },
		"an unknown MP state":     func(c *snapshot.CPU) { c.State = 99 },
		"XSTATE_BV":               func(c *snapshot.CPU) { binary.LittleEndian.PutUint64(c.XSave[512:], 1<<62) },
	} {
		s := reread(t, first)
		spoil(&s.CPUs[1])
		err := m.ResetTo(context.Background(), s)
		if !errors.Is(err, ErrOtherGuest) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Logf("%s: %v", name, err)
		if p := m.State().Phase; p != PhaseCreated {
			t.Fatalf("%s: the guest is %s", name, p)
		}
	}
	for range 2 {
		if err := m.ResetTo(context.Background(), reread(t, first)); err != nil {
			t.Fatal(err)
		}
	}
	if got := results(t, m); !slices.Equal(got, want) {
		t.Errorf("results %+v, want %+v", got, want)
	}
}
