package machine

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// TestLinuxFirstInstructions: what a CPU runs before it has a handler of breakpoints is probed
// where they exit, and refused by name where the host hands them to that handler; with
// probes on each twentieth function of the text that only boots, where that may be probed, and on those that other
// CPUs begin with, the guest boots.
func TestLinuxFirstInstructions(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m := bootLinux(t, dir, "echo end; read x", func(c *Config) { c.VCPUs = 2 })
			vector := m.Host().Traps.CPL0.Int3 == host.DeliveryVector
			first := map[string]*probe.Kprobe{}
			for _, s := range m.Image().Match("*startup_64*") {
				first[s.Name] = nil // of some kernels
			}
			for name := range first {
				if strings.HasPrefix(name, "_") || strings.Contains(name, ".") {
					delete(first, name)
				}
			}
			for _, name := range []string{"verify_cpu", "x86_64_start_kernel", "reset_early_page_tables", "start_secondary"} {
				first[name] = nil
			}
			for name := range first {
				p := &probe.Kprobe{Symbol: name}
				err := m.Engine().Register(p)
				var e *probe.Error
				switch refused := errors.As(err, &e) && strings.Contains(err.Error(), "before the kernel has a handler for breakpoints"); {
				case refused != vector || err != nil && !refused:
					t.Errorf("%s: %v", name, err)
				case err == nil:
					first[name] = p
				}
			}
			var all []*probe.Kprobe
			refused := map[string]int{}
			for i, s := range m.Image().Symbols() {
				if s.Kind != guest.SymFunc || (s.Section != ".init.text" || i%20 != 0) && !strings.HasPrefix(s.Name, "cpu_init") && !strings.HasPrefix(s.Name, "cr4_") {
					continue
				}
				p := &probe.Kprobe{Addr: s.Addr}
				if err := m.Engine().Register(p); err == nil {
					all = append(all, p)
				} else if errors.As(err, new(*probe.Error)) {
					refused[err.Error()[strings.LastIndex(err.Error(), "(")+1:]]++
				} else {
					t.Fatal(err)
				}
			}
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			await(t, m, "end")
			hits := func(p *probe.Kprobe) uint64 {
				i, _ := m.Engine().Info(p)
				return i.Stats.Hits
			}
			n := 0
			for _, p := range all {
				if hits(p) != 0 {
					n++
				}
			}
			for name, want := range map[string]uint64{"startup_64": 1, "x86_64_start_kernel": 1, "start_secondary": 1} {
				if p := first[name]; p != nil && hits(p) != want {
					t.Errorf("%s: %d hits", name, hits(p))
				}
			}
			if len(all) < 50 || n < len(all)/4 {
				t.Errorf("%d functions, %d were hit", len(all), n)
			}
			t.Logf("%d functions, %d were hit; refused %v; %+v", len(all), n, refused, m.Stats())
		})
	}
}
