package machine

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/kvmtest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// TestCalibrate holds what can be said of every host: each test came to one of
// the known results, and int3 in kernel code reaches the host by some way.
func TestCalibrate(t *testing.T) {
	kvmtest.Require(t)
	start := time.Now()
	r, err := Calibrate(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > 10*calTimeout {
		t.Errorf("calibration took %v", d)
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

// TestRefusalWhereTheHostCannot: a probe that this host cannot serve is refused,
// and the refusal says why.
func TestRefusalWhereTheHostCannot(t *testing.T) {
	kvmtest.Require(t)
	real, err := Calibrate(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	code, fn := counting(1)
	for _, tc := range []struct {
		name       string
		cpl0, cpl3 Delivery
		symbol     string
		want       string // in the refusal; "" = none
	}{
		{"nothing at cpl0", DeliveryNone, DeliveryDebugExit, "fn", "does not deliver an int3 in kernel code (calibration: none)"},
		{"nothing at cpl3", DeliveryDebugExit, DeliveryNone, "user_fn", "does not deliver an int3 in user code (calibration: none)"},
		{"vector without stub", DeliveryDebugExit, DeliveryVector, "user_fn", "no stub"},
		{"debug exit", DeliveryDebugExit, DeliveryDebugExit, "user_fn", ""},
		{"emulation exit", DeliveryEmulation, DeliveryNone, "fn", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host := real
			host.Traps.CPL0.Int3, host.Traps.CPL3.Int3 = tc.cpl0, tc.cpl3
			// Without its last bytes, which are the stub, nothing is forwarded.
			m := newMachine(t, Config{Image: tinyGuest(t, code[:len(code)-len(stub3)], []byte{0x90, 0xc3}, fn), Memory: 16 << 20, Host: &host})
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
