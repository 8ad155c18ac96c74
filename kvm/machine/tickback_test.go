package machine

import (
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm"
)

// TestTicksAtRest holds a guest again and again that gets ticks all the time: none is on its way in then, for the guest
// would take it before the instruction that a debugger steps, or with registers that have interrupts off.
func TestTicksAtRest(t *testing.T) {
	const vcpus = 2
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: vcpus, Memory: 16 << 20, Cmdline: "busy quiet", Tick: 100 * time.Microsecond})
	ctx := patience.Context(t)
	taken := func() (n uint64) {
		for _, c := range m.Stats().VCPUs {
			n += c.Ticks
		}
		return n
	}
	for range 300 {
		was := taken()
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		for taken() < was+2 {
			if ctx.Err() != nil {
				t.Fatal("no tick")
			}
			breathe()
		}
		if err := m.Pause(); err != nil {
			t.Fatal(err)
		}
		if err := m.Look(func(l *Look) error {
			for cpu, v := range l.m.vcpus {
				var e kvm.Events
				if err := v.kvm.GetEvents(&e); err != nil {
					return err
				}
				if e.I.Inject != 0 {
					t.Errorf("vcpu %d rests with interrupt %d on its way in", cpu, e.I.Nr)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
