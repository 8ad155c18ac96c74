package machine

import (
	"sync/atomic"
	"testing"

	"golang.org/x/arch/x86/x86asm"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestRestBetween stops a guest some thousand times whose every function has a breakpoint: nobody ever finds a vCPU inside of a
// probed instruction. The stops fall behind an int3 that the processor has executed and the guest has not been told of.
func TestRestBetween(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "busy", Tick: slowTick})
	var hits atomic.Int64
	all := functionProbes(t, m, func(*probe.Context) int { hits.Add(1); return 0 }, nil)
	inside := map[guest.GVA]string{}
	for _, k := range all {
		text := make([]byte, 16)
		if err := m.ReadText(k.Addr, text); err != nil {
			t.Fatal(err)
		}
		in, err := x86asm.Decode(text, 64)
		if err != nil {
			continue
		}
		for n := 1; n < in.Len; n++ {
			inside[k.Addr+guest.GVA(n)] = k.Name
		}
	}
	if err := m.Engine().SetOptimization(false); err != nil {
		t.Fatal(err)
	}
	if err := m.Engine().Register(probe.Probes(all)...); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	for n := range 1000 {
		for next := hits.Load() + int64(n%40); hits.Load() < next; {
			breathe()
		}
		if err := m.Look(func(l *Look) error {
			for cpu := range l.NumVCPU() {
				r, _, err := l.GeneralRegisters(cpu)
				if err != nil {
					return err
				}
				if name, ok := inside[guest.GVA(r.RIP)]; ok {
					t.Errorf("look %d: vCPU %d is at %#x, inside the first instruction of %s", n, cpu, r.RIP, name)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := m.State().Checks.Count; n != 0 {
		t.Errorf("%d failed checks", n)
	}
}
