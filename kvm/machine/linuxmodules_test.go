package machine

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// awaitState waits until now is so.
func awaitState(t *testing.T, now func() bool) {
	t.Helper()
	ctx, look := patience.Context(t), time.NewTicker(modulePoll)
	defer look.Stop()
	for !now() {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatal("it never comes")
		}
	}
}

// TestLinuxModule: probes on functions of a module that is not there count each call from
// its first instruction on, each time that it comes, however short it stays, and in the next
// boot: what it starts with, a function that this calls, and the returns from that.
func TestLinuxModule(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			const loads = 6 // of a boot
			m := bootLinux(t, dir, "echo ready; read a; for i in 1 2 3 4 5; do insmod /lib/modules/dummy.ko; rmmod dummy; done; insmod /lib/modules/dummy.ko; echo loaded; read a; rmmod dummy; echo end; read a", nil)
			e := m.Engine()
			var started, called, returned atomic.Uint64
			where := make(chan guest.GVA, 4*loads)
			count := func(n *atomic.Uint64) func(*probe.Context) int {
				return func(c *probe.Context) int {
					n.Add(1)
					return 0
				}
			}
			start := &probe.Kprobe{Name: "start", Symbol: "dummy:dummy_init_module", Pre: count(&started)}
			setup := &probe.Kprobe{Name: "setup", Symbol: "dummy:dummy_setup", Pre: func(c *probe.Context) int {
				where <- c.Addr
				return count(&called)(c)
			}}
			ret := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: "ret", Symbol: "dummy:dummy_setup"}, Return: func(c *probe.Context) { count(&returned)(c) }}
			if err := e.Register(start, setup, ret); err != nil {
				t.Fatal(err)
			}
			check := func(what string, n uint64, pending bool) {
				t.Helper()
				if a, b, c := started.Load(), called.Load(), returned.Load(); a != n || b != n || c != n {
					t.Errorf("%s: started %d, called %d, returned %d times, want %d", what, a, b, c, n)
				}
				list := e.List()
				for _, i := range list {
					// What it starts with is freed when it has started.
					if i.Stats.Hits != n || !pending && (i.Pending || i.Gone != (i.Name == "start") || i.Armed != (i.Name != "start")) {
						t.Errorf("%s: %+v", what, i)
					}
				}
				if len(list) != 3 {
					t.Errorf("%s: listed %+v", what, list)
				}
			}
			pending := func(want bool) {
				t.Helper()
				awaitState(t, func() bool {
					i, _ := e.Info(setup)
					return i.Pending == want
				})
			}
			next := func() {
				t.Helper()
				if _, err := m.Input(context.Background(), []byte("\n")); err != nil {
					t.Fatal(err)
				}
			}
			for boot := range uint64(2) {
				if boot > 0 {
					if err := m.Reset(context.Background(), nil); err != nil {
						t.Fatal(err)
					}
				}
				check("before it boots", boot*loads, true)
				pending(true)
				before := len(lines(m))
				if err := m.Resume(); err != nil {
					t.Fatal(err)
				}
				awaitAfter(t, m, before, "ready")
				next()
				awaitAfter(t, m, before, "loaded")
				awaitState(t, func() bool { i, _ := e.Info(start); return i.Gone })
				check("loaded", (boot+1)*loads, false)
				next()
				awaitAfter(t, m, before, "end")
				pending(true)
				check("gone", (boot+1)*loads, true)
				s, err := m.Image().Lookup("dummy:dummy_setup")
				if err == nil {
					t.Errorf("%+v is still there", s)
				}
			}
			places := map[guest.GVA]bool{}
			for len(where) > 0 {
				places[<-where] = true
			}
			t.Logf("at %d addresses: %v", len(places), places)
			for _, p := range []*probe.Kprobe{start, setup, &ret.Kprobe} {
				if err := e.Unregister(p); err != nil {
					t.Error(err)
				}
			}
			if l := strings.Join(lines(m), "\n"); strings.Contains(l, "BUG:") || strings.Contains(l, "WARNING:") {
				t.Error(l)
			}
		})
	}
}
