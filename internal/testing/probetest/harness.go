package probetest

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// Options describes the guest that a test of the suite needs.
type Options struct {
	CPUs  int           // number of vCPUs, 1 to 8
	Probe probe.Options // for probe.New
}

// Capability is a feature that not every guest or host has. The suite skips
// cases that need a missing one, and logs it.
type Capability uint8

// The capabilities.
const (
	CanNest    Capability = iota + 1 // Context.Call works
	CanInPlace                       // probe.StepInPlace works
	CanFault                         // exceptions of the guest reach Engine.Hit, or its own handler with the frame rewritten
	CanTrap                          // an int3 of the guest's own reaches its gp_foreign_bp
	CanUser                          // probes work on code at CPL3
)

// Harness is a guest with an engine on it. A guest that is not the Fake boots
// the suite's image (Image), lets each vCPU run to its hlt, and then obeys the
// methods.
type Harness interface {
	// Engine returns the engine on the guest.
	Engine() *probe.Engine
	// Call runs the function at fn on vCPU cpu with at most six integer
	// arguments and returns its RAX. Calls on different vCPUs run at the same
	// time; two on the same one must not. IF is clear at entry.
	Call(cpu int, fn guest.GVA, args ...uint64) (uint64, error)
	// Symbol returns a symbol of the image.
	Symbol(name string) (guest.Symbol, error)
	// Read and Write access guest memory (not text) through the kernel's tables.
	Read(addr guest.GVA, p []byte) error
	Write(addr guest.GVA, p []byte) error
	// Can reports whether the guest and its host can do c.
	Can(c Capability) bool
	// Close ends the guest.
	Close() error
}

// Boot starts a guest for one test; it fails the test if it cannot. Closing is the
// suite's business.
type Boot func(t testing.TB, o Options) Harness

// bootFake is Boot for the Fake.
func bootFake(t testing.TB, o Options) Harness {
	t.Helper()
	f, err := NewFake(FakeOptions{CPUs: o.CPUs, Probe: o.Probe})
	if err != nil {
		t.Fatalf("boot the fake: %v", err)
	}
	return f
}
