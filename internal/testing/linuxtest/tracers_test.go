package linuxtest

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

var (
	tracersTurns = flag.Int("tracers.turns", 12, "TestTracers: how often something is switched, on each number of vCPUs")
	tracersTime  = flag.Duration("tracers.time", 0, "TestTracers: end after the first turn past that time; 0 for no bound")
	tracersSeed  = flag.Uint64("tracers.seed", 1, "TestTracers: what is switched, and in which order")
	tracersVCPUs = flag.Int("tracers.vcpus", 2, "TestTracers: vCPUs of the guest")
)

// tracing is where the guest's kernel has its tracers.
const tracing = "/sys/kernel/tracing"

// putKprobes has a kprobe of the guest's own put on each of the first instructions of the function that a jump of ours displaces, and
// taken off again.
func (g *tracers) putKprobes(function string) {
	t := g.t
	t.Helper()
	text := g.Text()
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: function}}
	if err := g.Engine().Register(r); err != nil {
		t.Fatal(err)
	}
	for _, off := range g.boundaries(function, 15) {
		if err := g.Engine().Optimize(); err != nil {
			t.Fatal(err)
		}
		// Where the kernel's own image is where a jump from there has to lead, there is no place: that depends on KASLR.
		if i, _ := g.Engine().Info(&r.Kprobe); i.Unoptimized.Reason == "no_place" {
			t.Logf("no jump, and so the guest's own kprobe beside an int3: %+v", i.Unoptimized)
		} else if !i.Optimized {
			t.Fatalf("no jump: %+v", i.Unoptimized)
		}
		before, _, _ := g.Engine().Stats(&r.Kprobe)
		hits := g.Command(fmt.Sprintf("cd %s; echo 'p:gp/k %s+%d' >kprobe_events && echo 1 >events/gp/k/enable && sleep 0.1 && %s 3 && cat kprobe_profile; echo 0 >events/gp/k/enable; %[4]s 1; echo >kprobe_events", tracing, function, off, g.load))
		after, _, _ := g.Engine().Stats(&r.Kprobe)
		if got := strings.Fields(strings.Join(hits, " ")); len(got) != 3 || got[1] != "3" || after.Hits-before.Hits != 4 {
			t.Errorf("+%d: the guest's own probe says %q of 3 calls, ours has %d hits of 4", off, hits, after.Hits-before.Hits)
		}
	}
	if err := g.Engine().Unregister(&r.Kprobe); err != nil {
		t.Error(err)
	}
	g.checkSameText(g.Text(), text)
	g.checkQuiet("without probes of ours again")
}

// bootTracers boots a guest that waits for commands, and tells of its functions where instructions begin.
func bootTracers(t *testing.T, dir string, vcpus int) *tracers {
	t.Helper()
	g := boot(t, dir, "sh /commands.sh", func(c *machine.Config) {
		c.VCPUs = vcpus
		c.Memory = 512 << 20
		carryInside(t, c)
	})
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("READY")
	return &tracers{Guest: g, load: "sh /tracers.sh"}
}

// tracers is a guest whose own tracers are switched beside our probes.
type tracers struct {
	*Guest
	load      string // what calls the functions, with how often behind it
	module    string // that the functions are of
	away      bool   // it is
	rand      *rand.Rand
	functions []*traced
	ours      []*ourProbe
	theirs    []*theirProbe
	inside    []*insideProbe
	n         int // made so far, for names
	optimizes bool
}

// traced is a function with the places in it that the guest's own kprobes may be at, and how often one
// call of the load comes there.
type traced struct {
	name  string
	addr  guest.GVA
	calls map[int]int // by offset
	offs  []int       // ascending
	kinds []string    // what addProgram may attach to it
}

type ourProbe struct {
	f      *traced
	off    int
	probe  *probe.Kprobe
	before probe.Stats
}

type theirProbe struct {
	f      *traced
	off    int // -1: a return probe
	name   string
	on     bool
	before [2]int // hits and misses
}

// boundaries returns the offsets of the instructions in the first n bytes of a function.
func (g *Guest) boundaries(function string, n int) (offs []int) {
	g.t.Helper()
	s, err := g.Image().Lookup(function)
	if err != nil {
		g.t.Fatal(err)
	}
	code := g.Image().Code(s.Addr, int(min(s.Size, uint64(n)+x86.MaxLen)))
	for off := 0; off < min(n, len(code)); {
		i, err := x86.Decode(code[off:])
		if err != nil {
			break
		}
		if off > 0 {
			offs = append(offs, off)
		}
		off += int(i.Len)
	}
	return offs
}

// checkExpected fails the test if the text is not what it should be by the image, without kprobes of either side.
func (g *Guest) checkExpected(when string) {
	g.t.Helper()
	view, ok := g.Image().(*linux.View)
	if !ok {
		g.t.Fatal("no Linux")
	}
	err := g.Look(func(*machine.Look) error {
		began, n := time.Now(), 0
		for _, r := range view.Text(false) {
			own := view.Code(r.Start, int(r.End-r.Start))
			want, _, err := view.ExpectedText(r, own)
			if err != nil { // a kernel without BTF
				g.t.Logf("%s: %v", when, err)
			}
			for i := range want {
				if want[i] == own[i] {
					continue
				}
				if n++; n <= 20 {
					s, _ := view.Find(r.Start + guest.GVA(i))
					g.t.Errorf("%s: the text at %s+%#x is %#x, expected %#x", when, s.Name, uint64(r.Start+guest.GVA(i)-s.Addr), own[i], want[i])
				}
			}
		}
		g.t.Logf("%s: %d bytes of the text are not what is expected; compared in %v", when, n, time.Since(began))
		return nil
	})
	if err != nil {
		g.t.Error(err)
	}
}

// checkQuiet fails the test if the guest's kernel has something to complain about.
func (g *Guest) checkQuiet(when string) {
	g.t.Helper()
	if bad := g.Command("dmesg | grep -E 'BUG|WARNING|Oops|invalid opcode|int3:|ftrace bug|RIP:'; true"); len(bad) != 0 {
		g.t.Fatalf("%s: the guest's kernel says\n%s", when, strings.Join(g.Command("dmesg | tail -n 60"), "\n"))
	}
}

// TestTracers: the guest's own kprobe on an instruction that a jump of ours displaces comes and goes, and counts. Then the test switches at random the kprobes of the guest's own, its function tracers, static branches and calls, and
// the optimization of its kprobes, beside probes of ours in the same functions, at the same instructions, and in each other's regions. Its kernel has
// nothing to say, each side counts each call, what may be probed without ours may with them, and in the end the text is what it was.
func TestTracers(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g := bootTracers(t, dir, *tracersVCPUs)
			g.rand = rand.New(rand.NewPCG(*tracersSeed, 7))
			g.checkExpected("at first")
			g.putKprobes("vfs_mkdir")
			g.survey("vfs_mkdir", "vfs_rmdir", "vfs_symlink", "vfs_unlink", "do_mkdirat", "do_unlinkat", "security_inode_mkdir")
			text := g.Text()
			refused := g.runTurns()
			g.checkSameText(g.Text(), text)
			g.checkExpected("at the end")
			t.Logf("ours refused beside the guest's own: %v", refused)
		})
	}
}

// runTurns switches things, and checks after each turn what they count; then it takes all away. It returns which refusals of ours there were.
func (g *tracers) runTurns() map[string]int {
	g.t.Helper()
	begun, refused := time.Now(), map[string]int{}
	for turn := range *tracersTurns {
		if *tracersTime > 0 && time.Since(begun) > *tracersTime {
			g.t.Logf("%d turns in %v", turn, time.Since(begun).Round(time.Second))
			break
		}
		var did []string
		busy := g.rand.IntN(2) == 0
		if busy {
			g.Command("(" + g.load + " 8; echo over >/tmp/over) >/dev/null 2>&1 &")
		}
		for range 2 + g.rand.IntN(4) {
			did = append(did, g.turn(refused))
		}
		if busy {
			g.Command("until [ -e /tmp/over ]; do sleep 0.1; done; rm /tmp/over")
		}
		g.t.Logf("turn %d: %s", turn, strings.Join(did, "; "))
		g.checkExact(fmt.Sprintf("turn %d", turn))
		if g.t.Failed() {
			g.t.Fatalf("it ends here (-tracers.seed %d): ours %s; the guest's %v", *tracersSeed, g.listProbes(), g.Command("cat /sys/kernel/debug/kprobes/list; true"))
		}
	}
	for len(g.ours) > 0 {
		g.detach(0)
	}
	for len(g.inside) > 0 {
		g.removeInside(0)
	}
	g.Command("cd " + tracing + "; echo nop >current_tracer; echo >set_ftrace_filter; echo 0 >events/enable; echo >kprobe_events; echo 0 >/proc/sys/kernel/sched_schedstats; echo 1 >/proc/sys/debug/kprobes-optimization; true")
	g.checkQuiet("at the end")
	return refused
}

// survey finds out where the guest's own kprobes may be, and what they count, without ours.
func (g *tracers) survey(functions ...string) {
	g.t.Helper()
	const reach, loops = 48, 2
	g.Command("cd " + tracing + "; echo 0 >events/enable; echo 0 >/proc/sys/kernel/sched_schedstats; mount -t debugfs none /sys/kernel/debug 2>/dev/null; cat current_tracer; true")
	for _, name := range functions {
		s, err := g.Image().Lookup(name)
		if err != nil {
			continue
		}
		f := &traced{name: name, addr: s.Addr, calls: map[int]int{}}
		for _, o := range g.Command(fmt.Sprintf("cd %s; for o in 0 %s; do echo p:gp/o${o} %s+$o >>kprobe_events && echo $o; done 2>/dev/null; true", tracing, strings.Trim(fmt.Sprint(g.boundaries(name, reach)), "[]"), name)) {
			if n, err := strconv.Atoi(o); err == nil {
				f.offs = append(f.offs, n)
			}
		}
		if len(f.offs) == 0 {
			continue
		}
		g.Command(fmt.Sprintf("cd %s; echo 1 >events/gp/enable; %s %d", tracing, g.load, loops))
		for event, n := range g.profile() {
			off, _ := strconv.Atoi(strings.TrimPrefix(event, "o"))
			f.calls[off] = n[0] / loops
		}
		g.Command("cd " + tracing + "; echo 0 >events/gp/enable; echo >kprobe_events")
		f.offs = slices.DeleteFunc(f.offs, func(off int) bool { return f.calls[off] == 0 })
		if len(f.offs) > 1 {
			g.functions = append(g.functions, f)
		}
		g.t.Logf("%s: %v", name, f.calls)
	}
	if len(g.functions) < 3 {
		g.t.Fatalf("%d functions can be probed", len(g.functions))
	}
	g.surveyInside(loops)
	g.optimizes = true
}

// profile reads what the guest's own kprobes have counted: hits and misses by event.
func (g *tracers) profile() map[string][2]int {
	g.t.Helper()
	all := map[string][2]int{}
	for _, l := range g.Command("cat " + tracing + "/kprobe_profile") {
		if w := strings.Fields(l); len(w) == 3 {
			hits, _ := strconv.Atoi(w[1])
			misses, _ := strconv.Atoi(w[2])
			all[w[0]] = [2]int{hits, misses}
		}
	}
	return all
}

// turn switches something, and says what.
func (g *tracers) turn(refused map[string]int) string {
	g.t.Helper()
	e := g.Engine()
	some := func(n int) int { return g.rand.IntN(max(n, 1)) }
	if g.module != "" && some(4) == 0 {
		return g.switchModule()
	}
	switch k := g.rand.IntN(30); {
	case k < 6 && len(g.ours) < 8, len(g.ours) < 3:
		return g.attach(refused)
	case k < 8 && len(g.ours) > 0:
		i := some(len(g.ours))
		what := "detach " + g.ours[i].String()
		g.detach(i)
		return what
	case k < 11:
		if err := e.Optimize(); err != nil {
			g.t.Fatal(err)
		}
		return "our jumps"
	case k < 12:
		on := !e.Optimization()
		if err := e.SetOptimization(on); err != nil {
			g.t.Fatal(err)
		}
		return fmt.Sprintf("our optimization %v", on)
	case k < 16 && len(g.theirs) < 8:
		return g.add()
	case k < 18 && len(g.theirs) > 0:
		p := g.theirs[some(len(g.theirs))]
		p.on = !p.on
		g.Command(fmt.Sprintf("echo %d >%s/events/gp/%s/enable", map[bool]int{true: 1}[p.on], tracing, p.name))
		return fmt.Sprintf("theirs %s on %v", p, p.on)
	case k < 20 && len(g.theirs) > 0:
		i := some(len(g.theirs))
		p := g.theirs[i]
		g.theirs = slices.Delete(g.theirs, i, i+1)
		g.Command(fmt.Sprintf("cd %s; echo 0 >events/gp/%s/enable; echo -:gp/%s >>kprobe_events", tracing, p.name, p.name))
		return "remove theirs " + p.String()
	case k < 21:
		g.optimizes = !g.optimizes
		g.Command(fmt.Sprintf("[ ! -e /proc/sys/debug/kprobes-optimization ] || echo %d >/proc/sys/debug/kprobes-optimization; sleep 0.2", map[bool]int{true: 1}[g.optimizes]))
		return fmt.Sprintf("their optimization %v", g.optimizes)
	case k < 26 && len(g.inside) < 8 && !g.away:
		return g.addInside()
	case k < 29 && len(g.inside) > 0:
		return g.removeInside(some(len(g.inside)))
	}
	switch n := g.rand.IntN(3); {
	case n == 0 && !g.away:
		tracer := []string{"nop", "function", "function_graph"}[g.rand.IntN(3)]
		g.Command(fmt.Sprintf("cd %s; [ ! -e set_ftrace_filter ] || { echo %s >set_ftrace_filter; echo %s >current_tracer; }", tracing, g.functions[some(len(g.functions))].shortName(), tracer))
		return "tracer " + tracer
	case n == 1:
		n := g.rand.IntN(2)
		g.Command(fmt.Sprintf("[ ! -e /proc/sys/kernel/sched_schedstats ] || echo %d >/proc/sys/kernel/sched_schedstats", n))
		return fmt.Sprintf("static branches %d", n)
	}
	n := g.rand.IntN(2)
	g.Command(fmt.Sprintf("echo %d >%s/events/sched/enable", n, tracing))
	return fmt.Sprintf("static calls %d", n)
}

// place returns a function and an offset in it, near one of those that are taken if there is any.
func (g *tracers) place() (f *traced, off int) {
	f = g.functions[g.rand.IntN(len(g.functions))]
	off = f.offs[g.rand.IntN(len(f.offs))]
	var near []int
	switch k := g.rand.IntN(4); {
	case k == 0:
		return f, off
	case k == 1 && len(g.theirs) > 0:
		p := g.theirs[g.rand.IntN(len(g.theirs))]
		f, off = p.f, max(p.off, 0)
	case len(g.ours) > 0:
		p := g.ours[g.rand.IntN(len(g.ours))]
		f, off = p.f, p.off
	}
	for _, o := range f.offs {
		if o > off-6 && o < off+6 {
			near = append(near, o)
		}
	}
	if len(near) == 0 {
		return f, f.offs[g.rand.IntN(len(f.offs))]
	}
	return f, near[g.rand.IntN(len(near))]
}

// attach puts a probe of ours somewhere.
func (g *tracers) attach(refused map[string]int) string {
	g.t.Helper()
	f, off := g.place()
	p := &ourProbe{f: f, off: off}
	var r probe.Probe
	if off == 0 && g.rand.IntN(2) == 0 {
		k := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: f.name}}
		p.probe, r = &k.Kprobe, k
	} else {
		p.probe = &probe.Kprobe{Symbol: f.name, Offset: uint64(off), Pre: func(*probe.Context) int { return 0 }}
		r = p.probe
	}
	if err := g.Engine().Register(r); err != nil {
		var no *probe.Error
		if !errors.As(err, &no) {
			g.t.Fatal(err)
		}
		refused[string(no.Code)]++
		return fmt.Sprintf("ours %s+%d refused: %s", f.name, off, no.Code)
	}
	g.ours = append(g.ours, p)
	return "attach " + p.String()
}

func (g *tracers) detach(i int) {
	g.t.Helper()
	if err := g.Engine().Unregister(g.ours[i].probe); err != nil {
		g.t.Errorf("detach %s: %v", g.ours[i], err)
	}
	g.ours = slices.Delete(g.ours, i, i+1)
}

// add puts a kprobe of the guest's own somewhere: it may be there, because it may without ours.
func (g *tracers) add() string {
	g.t.Helper()
	f, off := g.place()
	g.n++
	p := &theirProbe{f: f, off: off, name: fmt.Sprintf("k%d", g.n)}
	definition := fmt.Sprintf("p:gp/%s %s+%d", p.name, f.name, off)
	if g.rand.IntN(6) == 0 {
		p.off, definition = -1, fmt.Sprintf("r:gp/%s %s", p.name, f.name)
	}
	p.on = g.rand.IntN(4) > 0
	g.Command(fmt.Sprintf("cd %s; echo '%s' >>kprobe_events && echo %d >events/gp/%s/enable", tracing, definition, map[bool]int{true: 1}[p.on], p.name))
	g.theirs = append(g.theirs, p)
	return fmt.Sprintf("theirs %s on %v", p, p.on)
}

func (p *ourProbe) String() string { return fmt.Sprintf("%s+%d", p.f.name, p.off) }

func (p *theirProbe) String() string {
	if p.off < 0 {
		return p.name + " of returns of " + p.f.name
	}
	return fmt.Sprintf("%s %s+%d", p.name, p.f.name, p.off)
}

// listProbes says what is with our probes.
func (g *tracers) listProbes() string {
	var out []string
	for _, p := range g.ours {
		i, _ := g.Engine().Info(p.probe)
		out = append(out, fmt.Sprintf("%s %s optimized %v %s %s", p, i.Flags(), i.Optimized, i.Unoptimized.Reason, i.Unoptimized.Detail))
	}
	return strings.Join(out, ", ")
}

// checkExact has the load run some times, and checks that each probe of both sides counts each call.
func (g *tracers) checkExact(when string) {
	g.t.Helper()
	const loops = 3
	if g.away {
		g.checkQuiet(when)
		return
	}
	before := g.profile()
	g.countInside(func(p *insideProbe, n int) { p.before = n })
	for _, p := range g.ours {
		p.before, _, _ = g.Engine().Stats(p.probe)
	}
	g.Command(fmt.Sprintf("%s %d", g.load, loops))
	after := g.profile()
	for _, p := range g.ours {
		now, _, _ := g.Engine().Stats(p.probe)
		want, got := uint64(loops*p.f.calls[p.off]), now.Hits-p.before.Hits
		i, _ := g.Engine().Info(p.probe)
		if got == 0 && g.module != "" && !i.Armed && g.beside(p) {
			continue // theirs came first with the module
		}
		if got != want && !i.Changed {
			g.t.Errorf("%s: %d hits of ours at %s, want %d", when, got, p, want)
		} else if i.Changed && !g.under(p) {
			g.t.Errorf("%s: %s is changed, and no jump of the guest's own is over it", when, p)
		}
	}
	for _, p := range g.theirs {
		want := 0
		if p.on {
			want = loops * p.f.calls[max(p.off, 0)]
		}
		if got, misses := after[p.name][0]-before[p.name][0], after[p.name][1]-before[p.name][1]; got != want || misses != 0 {
			g.t.Errorf("%s: %d hits and %d misses by the guest's own %s, want %d", when, got, misses, p, want)
		}
	}
	g.countInside(func(p *insideProbe, n int) {
		want := loops
		if p.f != nil {
			want *= p.f.calls[p.off]
		}
		if got := n - p.before; got != want && !g.hidden(p) {
			g.t.Errorf("%s: %d hits by the guest's own %s, want %d", when, got, p, want)
		}
	})
	g.checkQuiet(when)
}

// under reports whether the place of p is in what a kprobe of the guest's own may displace by its jump.
func (g *tracers) under(p *ourProbe) bool {
	displaces := func(f *traced, off int) bool { return f == p.f && off >= 0 && off < p.off && p.off < off+x86.JmpLen }
	return slices.ContainsFunc(g.theirs, func(q *theirProbe) bool { return q.on && displaces(q.f, q.off) }) ||
		slices.ContainsFunc(g.inside, func(q *insideProbe) bool { return q.kind == "kprobe" && displaces(q.f, q.off) })
}
