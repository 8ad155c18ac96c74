package machine

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// TestRefusalWhereTheHostCannot: a probe that this host cannot serve is refused,
// and the refusal says why.
func TestRefusalWhereTheHostCannot(t *testing.T) {
	kvmtest.Require(t)
	real, err := host.Calibrate(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	code, fn := countingGuest(1)
	for _, tc := range []struct {
		name       string
		cpl0, cpl3 host.Delivery
		symbol     string
		want       string // in the refusal; "" = none
	}{
		{"nothing at cpl0", host.DeliveryNone, host.DeliveryDebugExit, "fn", "does not deliver an int3 in kernel code (calibration: none)"},
		{"nothing at cpl3", host.DeliveryDebugExit, host.DeliveryNone, "user_fn", "does not deliver an int3 in user code (calibration: none)"},
		{"vector without stub", host.DeliveryDebugExit, host.DeliveryVector, "user_fn", "no stub"},
		{"debug exit", host.DeliveryDebugExit, host.DeliveryDebugExit, "user_fn", ""},
		{"emulation exit", host.DeliveryEmulation, host.DeliveryNone, "fn", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := real
			h.Traps.CPL0.Int3, h.Traps.CPL3.Int3 = tc.cpl0, tc.cpl3
			// Without its last bytes, which are the stub, nothing is forwarded.
			m := newMachine(t, Config{Image: tinyGuest(t, code[:len(code)-len(stub3)], []byte{0x90, 0xc3}, fn), Memory: 16 << 20, Host: &h})
			err := m.Engine().Register(&probe.Kprobe{Symbol: tc.symbol})
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var e *probe.Error
			if !errors.As(err, &e) || e.Code != probe.CodeHostCannot || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want code %s and %q", err, probe.CodeHostCannot, tc.want)
			}
		})
	}
}
