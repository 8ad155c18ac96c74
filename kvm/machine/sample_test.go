package machine

import (
	"maps"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// TestSample: each vCPU that runs is asked, on its thread, with its own registers.
func TestSample(t *testing.T) {
	const vcpus = 2
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), VCPUs: vcpus, Memory: 16 << 20})
	var seen [vcpus]atomic.Int64
	look := func(cpu int, s probe.State) {
		if rip := s.Regs.RIP; rip != tinyText && rip != tinyText+2 { // the two instructions of spin
			t.Errorf("vcpu %d stands at %#x", cpu, rip)
		}
		if name, err := os.ReadFile("/proc/thread-self/comm"); err != nil || strings.TrimSpace(string(name)) != kvm.ThreadName(cpu) {
			t.Errorf("the thread of vcpu %d is called %q: %v", cpu, name, err)
		}
		if !m.Engine().Sample(cpu, s, func(c *probe.Context) {
			if c.CPU != cpu || uint64(c.Addr) != s.Regs.RIP {
				t.Errorf("vcpu %d: context of %d at %v", cpu, c.CPU, c.Addr)
			}
			c.Regs.RIP = 0 // has no effect
			seen[cpu].Add(1)
			if m.Engine().Sample(cpu, s, func(*probe.Context) {}) {
				t.Error("a sample in the middle of one")
			}
		}) {
			t.Errorf("vcpu %d: no sample", cpu)
		}
	}
	if n, missed := m.Sample(look); n+missed != 0 || seen[0].Load() != 0 {
		t.Errorf("a machine that does not run: %d missed, %d seen", n, seen[0].Load())
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	ctx := patience.Context(t)
	asked := int64(0)
	for seen[0].Load() < 5 || seen[1].Load() < 5 {
		if ctx.Err() != nil {
			t.Fatalf("looked at %d and %d times", seen[0].Load(), seen[1].Load())
		}
		n, missed := m.Sample(look)
		if asked += int64(n); n+missed > vcpus {
			t.Errorf("%d of %d vCPUs are asked, %d are not", n, vcpus, missed)
		}
		breathe()
	}
	if err := m.Pause(); err != nil {
		t.Fatal(err)
	}
	if n := seen[0].Load() + seen[1].Load(); n > asked {
		t.Errorf("looked at %d times, and asked %d times", n, asked)
	}
}

// TestOnExit: every exit is told, by the name under which it is counted.
func TestOnExit(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), VCPUs: 1, Memory: 16 << 20})
	told := map[string]uint64{}
	m.OnExit(func(cpu int, reason string, s probe.State) { told[reason]++ })
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	// A slow host comes to the guest late.
	for n, ctx := 0, patience.Context(t); n < 10 || len(m.Stats().VCPUs[0].Exits) == 0 && ctx.Err() == nil; n++ {
		breathe()
		if err := m.Stop(doNothing); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Pause(); err != nil {
		t.Fatal(err)
	}
	m.OnExit(nil)
	if counted := m.Stats().VCPUs[0].Exits; !maps.Equal(told, counted) || len(told) == 0 {
		t.Errorf("told %v, counted %v", told, counted)
	}
}
