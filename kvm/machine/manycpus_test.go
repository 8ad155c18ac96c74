package machine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestManyVCPUs runs the built-in guest on many more vCPUs than the host has
// processors: the workload computes what it computes on two, and each vCPU hits the
// probes on its way; and probes of all kinds, on the host and in the guest, come and go as
// in the storms on fewer.
func TestManyVCPUs(t *testing.T) {
	kvmtest.Require(t)
	sizes, span := []int{16, guest.MaxVCPUs}, 500*time.Millisecond
	if testing.Short() {
		sizes = []int{9} // emulated hosts
	}
	two := results(t, newMachine(t, Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=1", Tick: slowTick}))
	for _, n := range sizes {
		t.Run(fmt.Sprintf("%d vcpus", n), func(t *testing.T) {
			t.Run("rounds", func(t *testing.T) {
				m := newMachine(t, Config{Image: builtinImage(t), VCPUs: n, Cmdline: "rounds=1 quiet", Tick: slowTick, Memory: builtin.MinRAMMax})
				var probes []probe.Probe
				for _, name := range []string{"do_fork", "vfs_read", "schedule", "user_round", "user_files"} {
					probes = append(probes, &probe.Kprobe{Name: name, Symbol: name, Pre: func(*probe.Context) int { return 0 }})
				}
				if err := m.Engine().Register(probes...); err != nil {
					t.Fatal(err)
				}
				got := results(t, m)
				if len(got) != n {
					t.Errorf("%d results: %q", len(got), got)
				}
				for _, line := range two {
					if !slices.Contains(got, line) {
						t.Errorf("no %q in %q", line, got)
					}
				}
				for cpu := range n {
					if m.Engine().Totals(cpu).Breakpoints+m.Engine().Totals(cpu).Detours == 0 {
						t.Errorf("vCPU %d has hit nothing", cpu)
					}
				}
			})
			if testing.Short() || n != guest.MaxVCPUs && !kvmtest.ChooseSize(false, true) {
				return
			}
			t.Run("returns", func(t *testing.T) { storm(t, n, span, 200) })
			t.Run("jumps", func(t *testing.T) { optimizeStorm(t, n, span) })
			t.Run("in the guest", func(t *testing.T) { returnStageStorm(t, n, true, span, 0) })
		})
	}
}

// TestTooLittleMemory: what a guest cannot start with is said by whoever finds it.
func TestTooLittleMemory(t *testing.T) {
	kvmtest.Require(t)
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: guest.MaxVCPUs, Memory: builtin.MinRAM})
	s := run(t, m)
	if s.Phase != PhaseExited || s.ExitCode != builtin.ExitBoot || s.Exit == nil || s.Exit.CPU != 0 || !strings.HasPrefix(s.Exit.Symbol, "guest_exit+") ||
		len(s.Exit.Console) != 1 || !strings.Contains(s.Exit.Console[0], "64 vCPUs (at most 64) with 8192 KiB of memory (at least ") {
		t.Errorf("phase %s, exit code %d, %+v", s.Phase, s.ExitCode, s.Exit)
	}
}
