package machine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// compareMemory compares the memory of two snapshots, page by page, but for where KVM writes its clock when it is told what that is.
func compareMemory(t *testing.T, what string, want, got *snapshot.Snapshot) {
	t.Helper()
	const (
		wallClock  = 0x4b564d00 // MSR_KVM_WALL_CLOCK_NEW: where
		systemTime = 0x4b564d01 // MSR_KVM_SYSTEM_TIME_NEW: where, and a bit whether
		clockSize  = 32         // the larger: struct pvclock_vcpu_time_info
	)
	clocks := map[guest.GPA]bool{}
	for i := range want.CPUs {
		for _, r := range want.CPUs[i].MSRs {
			if r.Index == wallClock && r.Data != 0 || r.Index == systemTime && r.Data&1 != 0 {
				clocks[guest.GPA(r.Data&^1)] = true
			}
		}
	}
	var zeros [guest.PageSize]byte
	page := func(s *snapshot.Snapshot, at guest.GPA) []byte {
		if b := snapshot.Find(s.Memory, at); b != nil {
			return b[:guest.PageSize]
		}
		return zeros[:]
	}
	timeless := func(b []byte, at guest.GPA) []byte {
		b = bytes.Clone(b)
		for clock := range clocks {
			if off := clock - at; off < guest.PageSize {
				clear(b[off:min(off+clockSize, guest.PageSize)])
			}
		}
		return b
	}
	for _, s := range []*snapshot.Snapshot{want, got} {
		for _, r := range s.Memory {
			for at := r.At; at < r.At+guest.GPA(len(r.Bytes)); at += guest.PageSize {
				w, g := page(want, at), page(got, at)
				if bytes.Equal(w, g) {
					continue
				}
				if diff := cmp.Diff(timeless(w, at), timeless(g, at)); diff != "" {
					t.Fatalf("%s: the page at %v differs (-want +got):\n%s", what, at, diff)
				}
			}
		}
	}
}

// processorTime is what the process has taken.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// TestLinuxAgain repeats the same stretch of a Linux guest, with other probes each time, which count the same. Devices write to the
// guest's memory meanwhile, and probes are in its text; then it is back byte by byte.
func TestLinuxAgain(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { testLinuxAgain(t, dir) })
	}
}

// againLine is what a run does: it opens files, starts a program, and reads from a disk, which only the host writes to memory.
const againLine = "i=0;while [ $i -lt 20 ];do i=$((i+1));echo $i >/dev/null;done;busybox dd if=/dev/vda bs=4096 count=16 iflag=direct of=/dev/null 2>/dev/null"

// againCounts is how often it comes to these functions.
var againCounts = map[string]uint64{"__x64_sys_openat": 23, "do_filp_open": 24, "__x64_sys_execve": 1, "__x64_sys_exit_group": 1}

func testLinuxAgain(t *testing.T, dir string) {
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	m := bootLinux(t, dir, "echo ready;sh", func(c *Config) {
		c.Linux.Disks = []device.Disk{{Path: disk, ReadOnly: true}}
		c.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	await(t, m, "ready")
	ask(t, m, "once", againLine, "once 1") // what is read only once is read then
	if err := m.Pause(); err != nil {
		t.Fatal(err)
	}
	s := save(t, m)

	var bare, probed []time.Duration // processor time of the ways back, without probes and with them
	var last []*probe.Kprobe
	for i := range linuxAgainRuns {
		if i%2 == 0 { // probes go before the way back, or behind it
			resetTo(t, m, s, &last, nil, &bare)
			if i%4 == 2 {
				compareMemory(t, fmt.Sprint("run ", i), s, save(t, m))
			}
		} else {
			resetTo(t, m, s, nil, &last, &probed)
		}
		var got map[string]*atomic.Uint64
		last, got = putProbes(t, m, i)
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		done := fmt.Sprint("done ", i)
		if _, err := m.Input(patience.Context(t), []byte(againLine+";echo "+done+"\n")); err != nil {
			t.Fatal(err)
		}
		await(t, m, done)
		for f, n := range got {
			switch n, want := n.Load(), againCounts[f]; {
			case n < want || n > 2*want:
				t.Errorf("run %d: %s: %d, want %d", i, f, n, want)
			case n > want: // something else in the guest opens a file as well, in all runs from that moment or in some
				t.Logf("run %d: %s: %d instead of %d", i, f, n, want)
			}
		}
	}
	for what, took := range map[string][]time.Duration{"without probes": bare, "with probes": probed} {
		slices.Sort(took)
		t.Logf("processor time of %d ways back %s: %v to %v, median %v", len(took), what, took[0], took[len(took)-1], took[len(took)/2])
	}
}

// linuxAgainRuns is how often the guest comes back: a run takes an emulated host seconds. The built-in guest's test does it 100 times.
const linuxAgainRuns = 12

// resetTo has the guest come back to s, with probes taken off before or behind it, and notes what that takes.
func resetTo(t *testing.T, m *Machine, s *snapshot.Snapshot, before, after *[]*probe.Kprobe, took *[]time.Duration) {
	t.Helper()
	off := func(ps *[]*probe.Kprobe) {
		if ps != nil && len(*ps) > 0 {
			if err := m.Engine().Unregister(*ps...); err != nil {
				t.Fatal(err)
			}
		}
	}
	off(before)
	start := processorTime(t)
	if err := m.ResetTo(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	*took = append(*took, processorTime(t)-start)
	off(after)
}

// putProbes puts probes on some functions that the guest calls the same number of times in each run: others each time, of two kinds.
func putProbes(t *testing.T, m *Machine, run int) (all []*probe.Kprobe, counts map[string]*atomic.Uint64) {
	t.Helper()
	counts = map[string]*atomic.Uint64{}
	var ps []probe.Probe
	for i, f := range []string{"__x64_sys_openat", "do_filp_open", "__x64_sys_execve", "__x64_sys_exit_group"} {
		if i > 0 && (run+i)%3 == 0 {
			continue
		}
		n := new(atomic.Uint64)
		counts[f] = n
		k := probe.Kprobe{Symbol: f}
		if (run+i)%2 == 0 || i > 1 { // those do not return
			k.Pre = func(*probe.Context) int { n.Add(1); return 0 }
			ps, all = append(ps, &k), append(all, &k)
		} else {
			r := &probe.Kretprobe{Kprobe: k, Return: func(*probe.Context) { n.Add(1) }}
			ps, all = append(ps, r), append(all, &r.Kprobe)
		}
	}
	if err := m.Engine().Register(ps...); err != nil {
		t.Fatal(err)
	}
	return all, counts
}
