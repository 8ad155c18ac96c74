package machine

import (
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/program"
	"github.com/guestprobe/guestprobe/probe/session"
)

// sessionGuest is a real guest for the suite of probe/session. Programs can run in it.
type sessionGuest struct {
	harness
	program.Shared
	calls *sync.RWMutex // held for writing while a session has paused the guest, so that no call starts
}

// Target implements session.Guest.
func (g sessionGuest) Target() probe.Target { return g.m.Target() }

// Image implements session.Guest.
func (g sessionGuest) Image() guest.View { return g.m.Image() }

// Call implements probetest.Harness.
func (g sessionGuest) Call(cpu int, fn guest.GVA, args ...uint64) (uint64, error) {
	g.calls.RLock()
	defer g.calls.RUnlock()
	return g.harness.Call(cpu, fn, args...)
}

// hold implements session.Options.Hold.
func (g sessionGuest) hold() (resume func() error, err error) {
	g.calls.Lock()
	if err := g.m.Pause(); err != nil {
		g.calls.Unlock()
		return nil, err
	}
	return func() error { defer g.calls.Unlock(); return g.m.Resume() }, nil
}

// ownStacks prepares the stacks that functions are called on: it stores the number of the vCPU where the image's profile has it, so that programs in the guest
// find it.
func (g sessionGuest) ownStacks(t *testing.T) {
	t.Helper()
	p, err := g.m.Image().Profile()
	if err != nil {
		t.Fatal(err)
	}
	user := address(t, g.m, "user_stacks")
	if err := g.m.Stop(func(w probe.World) error {
		for cpu := range g.m.target().NumCPU() {
			sp := w.CPU(cpu).Regs.RSP - redZone - 8
			for _, base := range []guest.GVA{guest.GVA(sp & p.StackMask), user + guest.GVA(cpu)<<12} {
				for off, v := range map[int32][]byte{p.MagicOff: le64(p.StackMagic), p.CPUOff: le64(uint64(cpu))[:4]} {
					if err := g.m.WriteMemory(0, base+guest.GVA(off), v); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestSessionSuite runs the suite of probe/session on guests under KVM.
func TestSessionSuite(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) (sessiontest.Guest, session.Options) {
		kvmtest.Require(t)
		m, err := New(Config{Image: probetest.Image(), VCPUs: 2, Memory: 32 << 20, Tick: -1, EmulatedStages: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		g := sessionGuest{harness{m, patience.Context(t)}, m, new(sync.RWMutex)}
		for cpu := range 2 { // both have booted
			if _, err := g.Call(cpu, address(t, m, "kprobe_target"), 1); err != nil {
				t.Fatal(err)
			}
		}
		g.ownStacks(t)
		return g, session.Options{
			Clock: func(now func() int64) (session.Clock, error) { c, err := m.Clock(now); return session.Clock(c), err },
			Hold:  g.hold,
		}
	}, nil)
}
