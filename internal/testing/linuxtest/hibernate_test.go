package linuxtest

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// TestHibernates: what a guest puts aside has nothing of ours in it, neither breakpoints nor jumps
// nor return addresses of calls that are under way, nor contexts in our code, so that the boot that finds it goes on with
// it: tasks that were switched out under return probes, which are all of them, some in the middle of the code of probes whose programs run in the
// guest, come to their results. Probes are gone and it is said why, then and when memory of another boot comes.
func TestHibernates(t *testing.T) {
	dir := kvmtest.RequireLinux(t)[0]
	swap := filepath.Join(t.TempDir(), "swap")
	if err := os.WriteFile(swap, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(swap, 512<<20); err != nil {
		t.Fatal(err)
	}
	g := boot(t, dir, "sh /hibernate.sh", func(c *machine.Config) {
		c.Linux.Disks = []device.Disk{{Path: swap}}
		c.Cmdline = strings.Replace(c.Cmdline, "quiet", "loglevel=6 hibernate=nocompress preempt=full", 1)
	})
	nothing := func(*probe.Context) int { return 0 }
	open := &probe.Kprobe{Symbol: "do_sys_openat2", Pre: nothing}
	write := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "ksys_write"}}
	sleep := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "hrtimer_nanosleep"}}
	rets := []*probe.Kprobe{&write.Kprobe, &sleep.Kprobe}
	if err := g.Engine().Register(open, write, sleep); err != nil {
		t.Fatal(err)
	}
	// All tasks that do not run are under one of these.
	inGuest := &saver{Guest: g, rng: rand.New(rand.NewPCG(31, 1))}
	var staged []*probe.Kprobe
	stage := func(loops int) *probe.Stage { s, _ := inGuest.slowStage(loops); return s }
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("ready")
	for _, name := range []string{"schedule", "__refrigerator", "worker_thread", "pipe_read", "do_wait"} {
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: name, Stage: stage(2)}, ReturnStage: stage(4), MaxActive: 200}
		if err := g.Engine().Register(r); err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		staged = append(staged, &r.Kprobe)
	}
	for _, name := range []string{"try_to_wake_up", "enqueue_task_fair", "vfs_write", "handle_mm_fault", "process_one_work", "rcu_core"} {
		k := &probe.Kprobe{Symbol: name, Pre: nothing, Stage: stage(8)}
		if err := g.Engine().Register(k); err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		staged = append(staged, k)
	}
	if len(staged) < 5 {
		t.Fatalf("%d probes with programs", len(staged))
	}
	if err := g.Engine().Optimize(); err != nil {
		t.Fatal(err)
	}
	run := 0
	for _, p := range staged {
		if i, _ := g.Engine().Info(p); i.InGuest {
			run++
		} else {
			t.Logf("%s is not in the guest: %+v %s", p.Symbol, i.Unoptimized, i.NoStage)
		}
	}
	if run < 4 {
		t.Errorf("%d of the programs run in the guest", run)
	}
	for _, p := range append(rets, open) {
		if i, _ := g.Engine().Info(p); !i.Armed || i.Stats.Hits == 0 {
			t.Errorf("%s: %+v", p.Symbol, i)
		}
	}
	g.Type("\n")
	// It asks for a reset when its memory is on the disk.
	s, err := g.Wait(patience.Context(t))
	if err != nil || s.Phase != machine.PhaseExited || s.ExitCode != 1 {
		t.Fatalf("ended in %v, %v", s.Phase, err)
	}
	gone := func() {
		t.Helper()
		if k, _ := g.Kernel(); k.System != "hibernated" || len(k.Missing) == 0 || k.Missing[len(k.Missing)-1] != linux.HibernatedText {
			t.Errorf("the kernel is %q: %q", k.System, k.Missing)
		}
		for _, p := range append(append(rets, open), staged...) {
			if i, _ := g.Engine().Info(p); !i.Gone || i.Armed {
				t.Errorf("%s is there: %+v", p.Symbol, i)
			}
		}
	}
	gone()
	for _, p := range rets {
		if i, _ := g.Engine().Info(p); i.Stats.Abandoned == 0 || i.InUse != 0 || i.Stats.Handled != i.Stats.Returns+i.Stats.Abandoned {
			t.Errorf("%s: %d calls under way, %+v", p.Symbol, i.InUse, i.Stats)
		}
	}
	slide := g.Image().(*linux.View).Slide()
	if err := g.Reset(patience.Context(t), nil); err != nil {
		t.Fatal(err)
	}
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	if rest := g.await("back"); rest != " 0" {
		t.Errorf("hibernating ended with%s", rest)
	}
	gone()
	opens, _, _ := g.Engine().Stats(open)
	for range 5 {
		g.await("Linux version ")
	}
	if rest := g.await("end"); rest != " 143" {
		t.Errorf("sleep ended with%s", rest)
	}
	var sums string
	for _, s := range []string{"1", "2", "3"} {
		for i := range 60 {
			s = fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %d\n", s, i)))[:16]
		}
		sums += " " + s
	}
	if got := g.await("sums"); got != sums {
		t.Errorf("the tasks have computed%s, want%s", got, sums)
	}
	if again, _, _ := g.Engine().Stats(open); again.Hits != opens.Hits {
		t.Errorf("%d hits behind the resumption", again.Hits-opens.Hits)
	}
	s, err = g.Wait(patience.Context(t))
	if err != nil || s.Phase != machine.PhaseExited || s.ExitCode != 0 {
		t.Errorf("ended in %v, %v", s.Phase, err)
	}
	t.Logf("slides %v and %v", slide, g.Image().(*linux.View).Slide())
}
