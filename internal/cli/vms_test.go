package cli

import (
	"encoding/binary"
	"strconv"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/foreign"
)

// TestVMScripts: guests of QEMU, from outside and by QMP.
func TestVMScripts(t *testing.T) {
	kvmtest.RequireRoot(t)
	plain := kvmtest.StartQEMU(t, "../..", "plain", false)
	qmp := kvmtest.StartQEMU(t, "../..", "cooperative", true, "-smp", "2")
	awaitCalls(t, plain)
	awaitCalls(t, qmp)
	runScripts(t, "../../testdata/script/vms", map[string]string{"PID": strconv.Itoa(plain.PID), "QMP": strconv.Itoa(qmp.PID)})
}

// TestVMDaemonScripts: guestprobed --vm. It has VMs of its own, because scripts run at the same time, and a VM that is
// traced is busy for others.
func TestVMDaemonScripts(t *testing.T) {
	kvmtest.RequireRoot(t)
	plain := kvmtest.StartQEMU(t, "../..", "plain", false)
	qmp := kvmtest.StartQEMU(t, "../..", "cooperative", true, "-smp", "2")
	ends := kvmtest.StartQEMU(t, "../..", "ends", true)
	for _, q := range []*kvmtest.QEMU{plain, qmp, ends} {
		awaitCalls(t, q)
	}
	waits := kvmtest.StartQEMU(t, "../..", "waits", false, "-S")
	runScripts(t, "../../testdata/script/vmdaemon", map[string]string{
		"PID": strconv.Itoa(plain.PID), "QMP": strconv.Itoa(qmp.PID), "ENDS": strconv.Itoa(ends.PID), "WAITS": strconv.Itoa(waits.PID),
	})
}

// awaitCalls waits until the guest has counted a call.
func awaitCalls(t *testing.T, q *kvmtest.QEMU) {
	const calls = 0x101038 // in testdata/guests/multiboot.elf
	for {
		var n uint64
		p, err := foreign.Find(strconv.Itoa(q.PID))
		if err == nil {
			var g *foreign.Guest
			if g, err = foreign.Open(p); err == nil {
				err = g.Stop(t.Context(), func([]foreign.CPU) error {
					b, err := g.Memory().Slice(calls, 8)
					if err == nil {
						n = binary.LittleEndian.Uint64(b)
					}
					return err
				})
				_ = g.Close()
			}
		}
		if n > 0 {
			return
		}
		select {
		case <-q.Ended:
			t.Fatalf("QEMU has ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
