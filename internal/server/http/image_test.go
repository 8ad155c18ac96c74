package http

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/host"
)

// TestDebugAtStart: where the debug information of the guest's program is, is known before the daemon
// starts, or that there is none.
func TestDebugAtStart(t *testing.T) {
	dir := t.TempDir()
	if _, err := loadProgram(&options{debug: dir}); err == nil || !strings.HasPrefix(err.Error(), "--debug: read debug information of "+dir+": it has none") {
		t.Errorf("an empty folder: %v", err)
	}
	file := filepath.Join(dir, "lib/modules/1/vmlinux")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, builtin.ELF(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options{debug: dir}
	p, err := loadProgram(&o)
	if err != nil || o.debug != file {
		t.Fatalf("found %q: %v", o.debug, err)
	}
	if _, err := p.readSource(&o); err != nil {
		t.Error(err)
	}
}

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
		refused := err != nil && strings.Contains(err.Error(), h.NoLinuxReason()+" (guestprobe doctor); give --slowly")
		if want := h.Traps.CPL0.Int3 == host.DeliveryEmulation && !slowly; refused != want || !refused && err != nil {
			t.Errorf("slowly %v, int3 of kernel code by %v: %v", slowly, h.Traps.CPL0.Int3, err)
		}
	}
}
