package machine

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// awaitActivity waits until vCPU 0 does that.
func awaitActivity(t *testing.T, m *Machine, want VCPUActivity) {
	t.Helper()
	for ctx := patience.Context(t); m.State().VCPUs[0].Activity != want; breathe() {
		if ctx.Err() != nil {
			t.Fatalf("%+v, want it %s", m.State(), want)
		}
	}
}

// TestHaltedIsMoved sets registers of a vCPU that waits in hlt: with another RIP it is in no hlt any more, is not told so, can be
// stepped, and goes on; with another IF it waits for interrupts, or no more.
func TestHaltedIsMoved(t *testing.T) {
	code := asm(hltForever, exitCode(5), hltForever)
	exit := guest.GVA(tinyText) + guest.GVA(len(hltForever))
	set := func(m *Machine, change func(*Registers)) {
		t.Helper()
		err := m.Look(func(l *Look) error {
			r, err := l.Registers(0)
			if err != nil {
				return err
			}
			change(&r)
			return l.setRegs(0, r.Regs)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	move := func(r *Registers) { r.Regs.RIP = uint64(exit) }
	for _, paused := range []bool{false, true} {
		m := newMachine(t, Config{Image: tinyGuest(t, code, nil), Memory: 16 << 20, Tick: -1})
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		awaitActivity(t, m, VCPUHalted)
		if paused {
			if err := m.Pause(); err != nil {
				t.Fatal(err)
			}
			awaitActivity(t, m, VCPUHalted)
		}
		set(m, func(r *Registers) { r.Regs.RFLAGS |= x86.FlagIF })
		if !paused {
			awaitActivity(t, m, VCPUIdle)
			set(m, func(r *Registers) { r.Regs.RFLAGS &^= x86.FlagIF })
			awaitActivity(t, m, VCPUHalted)
		}
		set(m, move)
		if paused {
			if s := m.State().VCPUs[0]; s.Activity != VCPUParked || s.RIP != exit {
				t.Errorf("%+v", s)
			}
			if did, err := m.Step(patience.Context(t), 0, 1); did != 1 || err != nil || registers(t, m, 0).Live != exit+5 {
				t.Errorf("%d steps, %v, at %v", did, err, registers(t, m, 0).Live)
			}
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
		}
		if s := waitEnd(t, m); s.Phase != PhaseExited || s.ExitCode != 5 {
			t.Errorf("paused %v: %+v", paused, s)
		}
	}
}
