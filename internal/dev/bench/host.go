package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// describeHost describes the machine and how its KVM delivers traps.
func describeHost(rep host.Report, now time.Time) Host {
	h := Host{
		CPU: "unknown", Cores: runtime.NumCPU(), Date: now.UTC().Format(time.DateOnly), Version: "unknown",
		KVM: fmt.Sprintf("int3 at CPL0: %s, at CPL3: %s", rep.Traps.CPL0.Int3, rep.Traps.CPL3.Int3),
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				h.CPU = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel = string(bytes.TrimRight(u.Release[:], "\x00"))
	}
	if git := api.Build().Git; git != "" {
		h.Version = git[:min(12, len(git))]
	}
	return h
}
