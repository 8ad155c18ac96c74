package machine

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// TestLinuxTells compares what is read of a running kernel with what that says of itself:
// its tasks, and the stack of a system call from the function up to the user's code; and
// its modules come and go.
func TestLinuxTells(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m := bootLinux(t, dir, "ps -o pid,ppid,comm; echo listed; read a; insmod /lib/modules/dummy.ko; echo loaded; read a; "+
				"ip link add dummy9 type dummy; ip link del dummy9; rmmod dummy; echo unloaded; read a", func(c *Config) { c.VCPUs = 2 })
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			next := func() {
				t.Helper()
				if _, err := m.Input(patience.Context(t), []byte("\r")); err != nil {
					t.Fatal(err)
				}
			}
			await(t, m, "listed")
			view := m.Image().(*linux.View)
			if missing := view.MissingFeatures(); missing != nil {
				t.Errorf("missing: %q", missing)
			}
			compareTasks(t, view, lines(m))

			var stack atomic.Pointer[[]guest.GVA]
			var user atomic.Int64
			open := &probe.Kprobe{Symbol: "do_sys_openat2", Pre: func(c *probe.Context) int {
				pcs := make([]guest.GVA, 32)
				k, u := c.Stacks(pcs)
				pcs = pcs[:k]
				user.Store(int64(u))
				stack.Store(&pcs)
				return 0
			}}
			if err := m.Engine().Register(open); err != nil {
				t.Fatal(err)
			}
			next()
			await(t, m, "loaded")
			if pcs := stack.Load(); pcs == nil {
				t.Error("nothing was opened")
			} else {
				var names []string
				for i, pc := range *pcs {
					if i > 0 {
						pc-- // behind a call
					}
					s, _ := view.Find(pc)
					names = append(names, s.Name)
				}
				if n := len(names); n < 4 || names[0] != "do_sys_openat2" || !slices.Contains(names, "do_syscall_64") || !strings.HasPrefix(names[n-1], "entry_SYSCALL_64") || user.Load() == 0 {
					t.Errorf("stack %q, and %d of the user", names, user.Load())
				}
			}

			const symbol = "dummy:dummy_setup"
			module := func(there bool) {
				t.Helper()
				ctx, look := patience.Context(t), time.NewTicker(modulePoll)
				defer look.Stop()
				for range look.C {
					_, err := view.Lookup(symbol)
					if (err == nil) == there {
						return
					}
					if !errors.Is(err, guest.ErrSymbolNotFound) && err != nil || ctx.Err() != nil {
						t.Fatalf("%s, want %v: %v", symbol, there, err)
					}
				}
			}
			module(true)
			var hits atomic.Uint64
			setup := &probe.Kprobe{Symbol: symbol, Pre: func(*probe.Context) int { hits.Add(1); return 0 }}
			if err := m.Engine().Register(setup); err != nil {
				t.Error(err)
			}
			next()
			await(t, m, "unloaded")
			if hits.Load() != 1 {
				t.Errorf("%d hits in the module, want 1", hits.Load())
			}
			module(false)
			next()
			if s, err := m.Wait(patience.Context(t)); err != nil || s.Phase != PhaseExited || !slices.Contains(lines(m), "GP-DONE rc=0") {
				t.Errorf("ended in %v, %v\n%s", s.Phase, err, strings.Join(lines(m), "\n"))
			}
		})
	}
}

// compareTasks compares the guest's tasks with what its ps has printed: number, parent,
// name, which ps has longer for some threads of the kernel. ps itself is gone by then.
func compareTasks(t *testing.T, view *linux.View, console []string) {
	t.Helper()
	tasks, more, err := view.Tasks(10_000)
	if err != nil || more {
		t.Fatalf("tasks: more %v, %v", more, err)
	}
	read := map[string]string{}
	for _, x := range tasks {
		if x.PID == x.TGID {
			read[fmt.Sprint(x.PID, " ", x.Parent)] = x.Comm
		}
	}
	compared := 0
	for _, l := range console {
		f := strings.Fields(l)
		if len(f) != 3 || f[2] == "ps" || strings.HasPrefix(f[2], "kworker") || strings.Trim(f[0]+f[1], "0123456789") != "" {
			continue
		}
		compared++
		if comm, ok := read[f[0]+" "+f[1]]; !ok || !strings.HasPrefix(f[2], comm) || comm == "" {
			t.Errorf("the guest has %q, read was %q", l, comm)
		}
	}
	if compared < 20 {
		t.Errorf("%d tasks compared:\n%s", compared, strings.Join(console, "\n"))
	}
}
