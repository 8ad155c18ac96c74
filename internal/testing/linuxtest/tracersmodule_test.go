package linuxtest

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// TestTracersModule: what TestTracers does, in the functions of a module, which is unloaded and loaded meanwhile: probes of both
// sides wait for it, and come back with it.
func TestTracersModule(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g := bootTracers(t, dir, *tracersVCPUs)
			g.rand = rand.New(rand.NewPCG(*tracersSeed, 8))
			g.module, g.load, g.away = "dummy", "sh /tracersmodule.sh", true
			g.switchModule()
			g.checkExpected("at first")
			g.putKprobes("dummy:dummy_setup")
			g.survey("dummy:dummy_setup", "dummy:dummy_validate", "dummy:dummy_dev_init", "dummy:dummy_dev_uninit", "dummy:dummy_get_stats64")
			refused := g.runTurns()
			if g.away {
				g.switchModule()
			}
			g.checkExpected("at the end")
			g.switchModule()
			g.checkQuiet("without the module")
			t.Logf("ours refused beside the guest's own: %v", refused)
		})
	}
}

// switchModule loads the module, or unloads it, and then takes away first what would hold it.
func (g *tracers) switchModule() string {
	g.t.Helper()
	if !g.away {
		for len(g.inside) > 0 {
			g.removeInside(0)
		}
		g.Command("echo nop >" + tracing + "/current_tracer; echo >" + tracing + "/set_ftrace_filter; until rmmod " + g.module + "; do sleep 0.1; done")
		g.away = true
		return "unload"
	}
	g.Command(fmt.Sprintf("insmod /lib/modules/%s.ko numdummies=0", g.module))
	g.away = false
	g.await(g.module + ":" + g.module + "_setup")
	for _, f := range g.functions {
		f.addr = g.await(f.name)
	}
	return "load"
}

// await returns the address of a function of a module that has been loaded, as soon as the host has seen that.
func (g *tracers) await(function string) guest.GVA {
	g.t.Helper()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		s, err := g.Image().Lookup(function)
		if err == nil {
			return s.Addr
		}
		if time.Since(begun) > time.Minute {
			g.t.Fatal(err)
		}
	}
}

// shortName is its name without the module's.
func (f *traced) shortName() string { return f.name[strings.IndexByte(f.name, ':')+1:] }

// beside reports whether there is a kprobe of the guest's own at the instruction of p.
func (g *tracers) beside(p *ourProbe) bool {
	return slices.ContainsFunc(g.theirs, func(q *theirProbe) bool { return q.on && q.f == p.f && q.off == p.off })
}
