package host

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm"
)

// TestCalibrate holds what can be said of every host: each test came to one of
// the known results, and int3 in kernel code reaches the host by some way.
func TestCalibrate(t *testing.T) {
	kvmtest.Require(t)
	r, err := Calibrate(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", b)
	if !r.KVM.Usable || r.KVM.API != 12 || r.KVM.Path != kvm.DefaultPath || r.KVM.Reason != "" || len(r.KVM.Vendor) != 12 || r.KVM.MaxVCPUs < 1 {
		t.Errorf("kvm: %+v", r.KVM)
	}
	for cpl, x := range map[string]TrapReport{"cpl0": r.Traps.CPL0, "cpl3": r.Traps.CPL3} {
		if !x.Int3.Breakpoints(true) {
			t.Errorf("%s: int3 is %q: no probe can work", cpl, x.Int3)
		}
		for name, d := range map[string]Delivery{"step": x.Step, "hwbreak": x.HWBreak, "watch": x.Watch} {
			switch d {
			case DeliveryWorks, DeliveryVector, DeliveryNone, DeliveryLoops:
			default:
				t.Errorf("%s: %s is %q", cpl, name, d)
			}
		}
		if exits := x.Int3 != DeliveryVector; exits != (x.Inject != InjectNone) {
			t.Errorf("%s: int3 is %q, but injection is %q", cpl, x.Int3, x.Inject)
		}
	}
	again, err := Calibrate(context.Background(), kvm.DefaultPath)
	if err != nil || again != r {
		t.Errorf("second calibration: %+v, %v; want the first one's result", again, err)
	}
}

func TestCalibrateWithoutKVM(t *testing.T) {
	r, err := Calibrate(context.Background(), t.TempDir()+"/kvm")
	if !errors.Is(err, kvm.ErrNoKVM) {
		t.Errorf("error %v, want %v", err, kvm.ErrNoKVM)
	}
	if r.KVM.Usable || r.KVM.Reason == "" || r.KVM.Hint == "" || !strings.HasSuffix(r.KVM.Path, "/kvm") {
		t.Errorf("report %+v", r.KVM)
	}
}

func TestDeliveryBreakpoints(t *testing.T) {
	for _, tc := range []struct {
		d              Delivery
		plain, forward bool
	}{
		{DeliveryDebugExit, true, true},
		{DeliveryEmulation, true, true},
		{DeliveryVector, false, true},
		{DeliveryNone, false, false},
		{DeliveryHangs, false, false},
		{DeliveryBroken, false, false},
		{"", false, false},
	} {
		if got := tc.d.Breakpoints(false); got != tc.plain {
			t.Errorf("%q without forwarding: %v", tc.d, got)
		}
		if got := tc.d.Breakpoints(true); got != tc.forward {
			t.Errorf("%q with forwarding: %v", tc.d, got)
		}
	}
}
