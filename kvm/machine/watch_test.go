package machine

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// seenAccess is what the handler of a watch saw.
type seenAccess struct {
	fn       string
	write    bool
	old, new uint64
	exact    bool
}

// watchSeen makes a watch that notes what its handler sees.
func watchSeen(m *Machine, w probe.Watch, mu *sync.Mutex, seen *[]seenAccess) *probe.Watch {
	w.Handler = func(c *probe.Context) {
		mu.Lock()
		defer mu.Unlock()
		s, _ := m.Image().Find(c.Addr)
		*seen = append(*seen, seenAccess{s.Name, c.Watched.Write, c.Watched.Old, c.Watched.New, c.Watched.Exact})
	}
	return &w
}

// watchedVariables are those of the built-in guest that work_variables writes
// and reads once each.
var watchedVariables = []struct {
	name string
	size int
}{{"watch_u8", 1}, {"watch_u16", 2}, {"watch_u32", 4}, {"watch_u64", 8}}

// runWatched runs the workload with watches on all variables, and checks the
// accounts: each is written once, and with rw read once, per call of the function.
func runWatched(t *testing.T, config Config, access probe.Access, emulate bool) {
	t.Helper()
	want := results(t, newMachine(t, config))
	m := newMachine(t, config)
	var mu sync.Mutex
	seen := make([][]seenAccess, len(watchedVariables))
	var ws []*probe.Watch
	for i, v := range watchedVariables {
		ws = append(ws, watchSeen(m, probe.Watch{Name: v.name, Symbol: v.name, Access: access, Emulate: emulate}, &mu, &seen[i]))
	}
	calls := &probe.Kprobe{Symbol: "work_variables"}
	if err := m.Engine().Register(calls); err != nil {
		t.Fatal(err)
	}
	if err := m.Engine().Watch(ws...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results (-unwatched +watched):\n%s", diff)
	}
	if err := m.Stop(doNothing); err != nil {
		t.Fatal(err)
	}
	s, _, _ := m.Engine().Stats(calls)
	per := uint64(1)
	if access == probe.AccessReadWrite {
		per = 2
	}
	for i, w := range ws {
		info, _ := m.Engine().WatchInfo(w)
		if info.Len != watchedVariables[i].size || info.Symbol != w.Symbol {
			t.Errorf("%s: %+v", w.Name, info)
		}
		if st := info.Stats; st.Hits != per*s.Hits || st.Handled != st.Hits || uint64(len(seen[i])) != st.Hits || s.Hits == 0 {
			t.Errorf("%s: %d calls, %d events, %+v", w.Name, s.Hits, len(seen[i]), st)
		}
		last := uint64(0)
		for n, a := range seen[i] {
			if a.fn != "work_variables" || !a.exact || config.VCPUs == 1 && a.old != last || !a.write && a.old != a.new {
				t.Errorf("%s: access %d: %+v, the value was %#x", w.Name, n, a, last)
				break
			}
			last = a.new
		}
	}
	t.Logf("%v emulate %v: %d calls", access, emulate, s.Hits)
	if err := m.Engine().Unwatch(ws...); err != nil {
		t.Error(err)
	}
	if n := len(m.Engine().Watches()); n != 0 {
		t.Errorf("%d watches are left", n)
	}
}

// TestWatchEmulated: watches that are served by protecting the page.
func TestWatchEmulated(t *testing.T) {
	sizes := []int{1, 2, kvmtest.ChooseSize(4, 8)}
	if testing.Short() {
		sizes = sizes[:2] // emulated hosts: eight vCPUs that take turns take minutes there
	}
	for _, vcpus := range sizes {
		for _, access := range []probe.Access{probe.AccessWrite, probe.AccessReadWrite} {
			t.Run(fmt.Sprintf("%v on %d vcpus", access, vcpus), func(t *testing.T) {
				runWatched(t, Config{Image: builtinImage(t), VCPUs: vcpus, Cmdline: "rounds=8"}, access, true)
			})
		}
	}
}

// TestWatchRegisters: watches that are served by the debug registers, or, where
// calibration has not seen them work, refused with that reason.
func TestWatchRegisters(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "rounds=8"}
	m := newMachine(t, config)
	if m.Host().Traps.CPL0.Watch == host.DeliveryWorks {
		runWatched(t, config, probe.AccessWrite, false)
	} else {
		wantRefused(t, m.Engine().Watch(&probe.Watch{Symbol: "watch_u64", Access: probe.AccessWrite}), probe.CodeHostCannot, syscall.ENODEV)
	}
	if len(m.Engine().Watches()) != 0 {
		t.Error("a refused watch is listed")
	}
}

func wantRefused(t *testing.T, err error, code probe.Code, errno syscall.Errno) {
	t.Helper()
	var x *probe.Error
	if !errors.As(err, &x) || x.Code != code || !errors.Is(err, errno) {
		t.Errorf("got %v, want %s, %v", err, code, errno)
	}
}

// TestWatchExecute: by a debug register where the host goes on behind it, and by
// a breakpoint.
func TestWatchExecute(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "rounds=8"}
	want := results(t, newMachine(t, config))
	for _, emulate := range []bool{false, true} {
		m := newMachine(t, config)
		var mu sync.Mutex
		var seen []seenAccess
		calls := &probe.Kprobe{Symbol: "work_variables"}
		i, err := m.Engine().Check(calls)
		if err != nil {
			t.Fatal(err)
		}
		w := watchSeen(m, probe.Watch{Addr: i.Addr, Access: probe.AccessExec, Emulate: emulate}, &mu, &seen)
		if err := m.Engine().Register(calls); err != nil {
			t.Fatal(err)
		}
		err = m.Engine().Watch(w)
		if r := m.Host().Traps.CPL0; !emulate && (r.HWBreak != host.DeliveryWorks || r.Int3 != host.DeliveryDebugExit) {
			wantRefused(t, err, probe.CodeHostCannot, syscall.ENODEV)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, results(t, m)); diff != "" {
			t.Errorf("results (-unwatched +watched):\n%s", diff)
		}
		if err := m.Stop(doNothing); err != nil {
			t.Fatal(err)
		}
		s, _, _ := m.Engine().Stats(calls)
		info, _ := m.Engine().WatchInfo(w)
		if s.Hits == 0 || info.Stats.Hits != s.Hits || uint64(len(seen)) != s.Hits || seen[0].fn != "work_variables" {
			t.Errorf("emulate %v: %d calls, %d events, %+v", emulate, s.Hits, len(seen), info)
		}
		if err := m.Engine().Unwatch(w); err != nil {
			t.Error(err)
		}
		if err := m.Engine().Unregister(calls); err != nil {
			t.Error(err)
		}
		checkText(t, m)
	}
}

// TestWatchReset: watches stay when the guest is reset, and see all of its
// second life.
func TestWatchReset(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=2"})
	w := &probe.Watch{Symbol: "watch_u32", Access: probe.AccessReadWrite, Emulate: true}
	calls := &probe.Kprobe{Symbol: "work_variables"}
	if err := errors.Join(m.Engine().Register(calls), m.Engine().Watch(w)); err != nil {
		t.Fatal(err)
	}
	want := results(t, m)
	if err := m.Reset(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results (-first +second):\n%s", diff)
	}
	if err := m.Stop(doNothing); err != nil {
		t.Fatal(err)
	}
	s, _, _ := m.Engine().Stats(calls)
	if i, _ := m.Engine().WatchInfo(w); i.Gone || s.Hits != 4 || i.Stats.Hits != 2*s.Hits {
		t.Errorf("%d calls, %+v", s.Hits, i)
	}
}

// TestWatchYields: a guest with breakpoints of its own is noticed, and what it
// has set stays.
func TestWatchYields(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=1"})
	own := kvm.DebugRegs{DR6: 0xffff0ff0, DR7: 0x402}
	own.DB[0] = 0x1234
	if err := m.vcpus[1].kvm.SetDebugRegs(&own); err != nil {
		t.Fatal(err)
	}
	for cpu, want := range []bool{false, true} {
		if busy, err := m.GuestDebugs(cpu); err != nil || busy != want {
			t.Errorf("vCPU %d: %v, %v; want %v", cpu, busy, err, want)
		}
	}
	if m.Host().Traps.CPL0.Watch == host.DeliveryWorks {
		err := m.Engine().Watch(&probe.Watch{Symbol: "watch_u64", Access: probe.AccessWrite})
		wantRefused(t, err, probe.CodeDebugRegsInUse, syscall.EBUSY)
	}
	var now kvm.DebugRegs
	if err := m.vcpus[1].kvm.GetDebugRegs(&now); err != nil || now.DR7 != own.DR7 || now.DB != own.DB {
		t.Errorf("the guest's debug registers are %+v, %v", now, err)
	}
}
