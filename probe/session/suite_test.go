package session_test

import (
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/session"
)

// TestSuiteOnFake runs the suite on a guest in plain Go; kvm/machine runs it on guests under KVM.
func TestSuiteOnFake(t *testing.T) {
	sessiontest.Run(t, func(t *testing.T) (sessiontest.Guest, session.Options) {
		g, err := probetest.NewFake(probetest.FakeOptions{CPUs: 2, Probe: probe.Options{OptimizeDelay: -1}})
		if err != nil {
			t.Fatal(err)
		}
		return g, session.Options{Hold: func() (func() error, error) { return func() error { return nil }, nil }}
	}, session.CountLeft)
}
