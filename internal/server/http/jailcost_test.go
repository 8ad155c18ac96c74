package http

import (
	"bufio"
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// servesEnv has this binary be guestprobed.
const servesEnv = "GUESTPROBE_TEST_SERVES"

// serving is a guestprobed with a guest whose functions have int3s, paused.
type serving struct {
	b   testing.TB
	c   *remote.Client
	pid int
	ns  []float64 // of the vCPU's processor time for an exit, one for each sample
}

func startServing(b testing.TB, args ...string) *serving {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "gp")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	ready, tell, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	defer ready.Close()
	socket := filepath.Join(dir, "s")
	cmd := exec.Command(self, append([]string{"--socket", socket, "--paused", "--tick", "0", "--ready-fd", "3"}, args...)...)
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), servesEnv+"=1"), []*os.File{tell}
	err = cmd.Start()
	tell.Close()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // else it is waited for
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		b.Fatalf("the daemon does not serve: %q, %v", line, err)
	}
	s := &serving{b: b, c: remote.New(socket), pid: cmd.Process.Pid}
	b.Cleanup(s.c.Close)
	ctx := context.Background()
	off := false
	if _, err := s.c.SetOptimization(ctx, api.SetOptimization{Enabled: &off}); err != nil {
		b.Fatal(err)
	}
	if _, err := s.c.Attach(ctx, api.ProbeSpec{Def: "p:every user_*"}); err != nil {
		b.Fatal(err)
	}
	return s
}

// exits are those of the guest.
func (s *serving) exits() uint64 {
	g, err := s.c.Guest(context.Background())
	if err != nil {
		s.b.Fatal(err)
	}
	return g.CPUs[0].Total
}

// cpuTime is the processor time of the process's threads, in nanoseconds (Documentation/scheduler/sched-stats.rst).
func (s *serving) cpuTime() map[string]uint64 { return threadTimes(s.b, s.pid) }

// threadTimes is that of a process, by thread.
func threadTimes(tb testing.TB, pid int) map[string]uint64 {
	out := map[string]uint64{}
	files, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/schedstat")) // the pattern is right
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		on, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseUint(on, 10, 64)
		if err != nil {
			tb.Fatalf("%s: %v", file, err)
		}
		out[file] = ns
	}
	return out
}

// sample has the guest run for some exits, and notes what one took of its vCPU's time: that is the thread that was busiest.
func (s *serving) sample(exits uint64) {
	ctx, from, before := context.Background(), s.exits(), s.cpuTime()
	if _, err := s.c.Resume(ctx); err != nil {
		s.b.Fatal(err)
	}
	for s.exits() < from+exits {
		time.Sleep(5 * time.Millisecond) // beside the vCPU, whose own time is what counts
	}
	if _, err := s.c.Pause(ctx); err != nil {
		s.b.Fatal(err)
	}
	var most uint64
	for file, ns := range s.cpuTime() {
		most = max(most, ns-before[file])
	}
	s.ns = append(s.ns, float64(most)/float64(s.exits()-from))
}

// BenchmarkConfinedExit compares what an exit costs in the jail and without, in two daemons by turns: processor time of the vCPU's
// thread, the guest's own between two exits with it. The ratio is the median of those of each turn; half of all turns were between
// the quarters.
func BenchmarkConfinedExit(b *testing.B) {
	kvmtest.Require(b)
	jailed, free := startServing(b), startServing(b, "--no-jail")
	const exits = 10_000
	jailed.sample(exits)
	free.sample(exits)
	jailed.ns, free.ns = nil, nil
	var ratios []float64
	for i := 0; b.Loop(); i++ {
		turn := []*serving{jailed, free}
		if i%2 == 1 {
			slices.Reverse(turn)
		}
		for _, s := range turn {
			s.sample(exits)
		}
		ratios = append(ratios, jailed.ns[i]/free.ns[i])
	}
	b.ReportMetric(quantile(jailed.ns, 2), "jailed-ns/exit")
	b.ReportMetric(quantile(free.ns, 2), "free-ns/exit")
	b.ReportMetric(quantile(ratios, 1), "ratio-low")
	b.ReportMetric(quantile(ratios, 2), "ratio")
	b.ReportMetric(quantile(ratios, 3), "ratio-high")
}

// quantile returns the q-th quarter.
func quantile[T cmp.Ordered](of []T, q int) T {
	s := slices.Sorted(slices.Values(of))
	return s[(len(s)-1)*q/4]
}
