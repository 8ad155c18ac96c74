package machine

import (
	"context"
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// harness is a real guest for the conformance suite.
type harness struct {
	m        *Machine
	patience context.Context // of calls
}

func bootHarness(t testing.TB, o probetest.Options) probetest.Harness {
	t.Helper()
	kvmtest.Require(t)
	m, err := New(Config{Image: probetest.Image(), VCPUs: o.CPUs, Memory: 32 << 20, Tick: -1, Probe: o.Probe})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	return harness{m, patience.Context(t)}
}

// Engine implements probetest.Harness.
func (h harness) Engine() *probe.Engine { return h.m.Engine() }

// Call implements probetest.Harness.
func (h harness) Call(cpu int, fn guest.GVA, args ...uint64) (uint64, error) {
	r, err := h.m.calls.runAtSafePoint(h.patience, cpu, fn, args)
	if s := h.m.State(); err != nil && s.Crash != nil {
		err = errors.Join(err, errors.New(s.Crash.String()))
	}
	return r, err
}

// Symbol implements probetest.Harness.
func (h harness) Symbol(name string) (guest.Symbol, error) { return h.m.Image().Lookup(name) }

// Read implements probetest.Harness.
func (h harness) Read(addr guest.GVA, p []byte) error { return h.m.Peek(addr, p) }

// Write implements probetest.Harness.
func (h harness) Write(addr guest.GVA, p []byte) error { return h.m.WriteMemory(0, addr, p) }

// Can implements probetest.Harness.
func (h harness) Can(c probetest.Capability) bool {
	switch c {
	case probetest.CanUser, probetest.CanNest, probetest.CanInPlace, probetest.CanFault, probetest.CanTrap:
		return true
	}
	return false
}

// Close implements probetest.Harness.
func (h harness) Close() error { return h.m.Close(context.Background()) }

func TestConformance(t *testing.T) {
	kvmtest.Require(t)
	probetest.Run(t, bootHarness)
}
