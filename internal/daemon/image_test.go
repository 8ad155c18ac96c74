package daemon

import (
	"context"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/host"
)

// TestLinuxHost: a Linux guest is refused, in a sentence, where the host emulates kernel code, and
// nowhere else; with --slowly it is not.
func TestLinuxHost(t *testing.T) {
	kvmtest.Require(t)
	h, err := host.Calibrate(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, slowly := range []bool{false, true} {
		_, err := checkLinuxHost(&options{slowly: slowly})
		refused := err != nil && strings.Contains(err.Error(), "takes "+slowBoot+" to boot; give --slowly")
		if want := h.Traps.CPL0.Int3 == host.DeliveryEmulation && !slowly; refused != want || !refused && err != nil {
			t.Errorf("slowly %v, int3 of kernel code by %v: %v", slowly, h.Traps.CPL0.Int3, err)
		}
	}
}
