package linuxtest

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
	runtime "github.com/guestprobe/guestprobe/probe/program"
)

var (
	savesN    = flag.Int("saves", 20, "TestLinuxSaves: how many saves")
	savesSeed = flag.Uint64("seed", 1, "TestLinuxSaves: which probes, and when")
	savesTime = flag.Duration("saves.time", 0, "TestLinuxSaves: begin no save after that long; 0 for no bound")
)

// busyFunctions are those of the kernel that the load calls most, or that its tasks sleep in.
var busyFunctions = []string{
	"schedule", "vfs_read", "vfs_write", "ksys_read", "do_sys_openat2", "path_openat", "kernel_clone", "wake_up_new_task", "do_exit", "do_wait",
	"handle_mm_fault", "do_anonymous_page", "clear_page_erms", "kmem_cache_alloc", "try_to_wake_up", "enqueue_task_fair", "pick_next_task_fair",
	"hrtimer_interrupt", "update_process_times", "sched_tick", "scheduler_tick", "do_nanosleep", "hrtimer_nanosleep", "pipe_read", "pipe_write",
	"mutex_lock", "dput", "lookup_fast", "link_path_walk", "copy_process", "unmap_page_range", "do_signal", "send_signal_locked", "__x64_sys_rt_sigreturn",
	"n_tty_write", "process_one_work", "worker_thread", "rcu_core", "rcu_gp_kthread", "run_timer_softirq", "__do_softirq", "handle_softirqs",
}

// saver keeps probes of all kinds on a Linux guest, and changes them at random.
type saver struct {
	*Guest
	rng     *rand.Rand
	some    []guest.GVA // functions that may be probed
	busy    []string
	loads   bool // some stages load from memory that may not be there
	imul    uint64
	on      []func() // each takes one off
	hits    atomic.Uint64
	refused map[string]int
	kinds   map[string]int
}

// slowStage is a stage that takes its time: registers on the stack, a loop, and a call of its own.
func (s *saver) slowStage(loops int) (*probe.Stage, func()) {
	s.t.Helper()
	block, _, err := s.AllocShared(64*2, false)
	if err != nil {
		s.t.Fatal(err)
	}
	const rax, rbx, rsi, rdi, r12 = x86.RAX, x86.RBX, x86.RSI, x86.RDI, x86.R12
	var a x86.Asm
	sub := a.NewLabel()
	for _, r := range []x86.Reg64{rbx, r12, rdi} {
		a.Push(r)
	}
	a.Mov(4, rbx, x86.Imm(loops))
	again := a.LabelHere()
	var fixups []probe.Fixup
	if s.loads && s.rng.IntN(2) == 0 { // one that works, and one that faults
		a.Mov(8, r12, x86.At(rdi, x86.PtSP))
		fixups = append(fixups, probe.Fixup{Fault: a.Len()})
		a.Mov(8, r12, x86.At(r12, 0))
		a.Mov(8, r12, x86.Imm([]uint64{0, 0xdead000000000100, 0xffffffffff600000, 0xffff800000000000}[s.rng.IntN(4)]))
		fixups = append(fixups, probe.Fixup{Fault: a.Len()})
		a.Mov(8, r12, x86.At(r12, 0))
		for i := range fixups {
			fixups[i].Resume = a.Len()
		}
	}
	a.Mov(8, r12, x86.At(rdi, x86.PtSP))
	a.Call(sub)
	a.Dec(4, rbx)
	a.Jcc(x86.CondNE, again)
	for _, r := range []x86.Reg64{rdi, r12, rbx} {
		a.Pop(r)
	}
	a.Xor(4, rax, rax)
	a.Ret()
	a.Place(sub)
	a.Mov(8, rdi, r12)
	a.Inc(8, x86.At(rsi, 0))
	a.Mov(8, rdi, x86.At(x86.RSP, 8))
	a.Ret()
	return &probe.Stage{
		Code: a.Code(), Stack: 48, NoStrings: s.rng.IntN(3) != 0, Reads: 1 << (x86.PtSP / 8), Block: block, Stride: 64, Fixups: fixups,
		Counts: func(int) (uint64, uint64, uint64) { return 0, 0, 0 },
	}, func() { s.FreeShared(block) }
}

// randomPlace returns a place in the kernel; half of them are in functions that are called often.
func (s *saver) randomPlace(offset bool) probe.Kprobe {
	k := probe.Kprobe{}
	if s.rng.IntN(4) > 0 && len(s.busy) > 0 {
		k.Symbol = s.busy[s.rng.IntN(len(s.busy))]
		if sym, err := s.Image().Lookup(k.Symbol); err == nil && offset && sym.Size > 1 {
			k.Offset = uint64(s.rng.IntN(int(min(sym.Size, 200))))
		}
		return k
	}
	k.Addr = s.some[s.rng.IntN(len(s.some))]
	return k
}

// attach puts one probe on.
func (s *saver) attach() {
	e := s.Engine()
	nothing := func(*probe.Context) int { s.hits.Add(1); return 0 }
	add := func(kind string, p probe.Probe, k *probe.Kprobe, stages ...*probe.Stage) {
		var free []func()
		for _, st := range stages {
			free = append(free, func() { s.FreeShared(st.Block) })
		}
		if err := e.Register(p); err != nil { // not every place can have each kind
			for _, f := range free {
				f()
			}
			s.refused[kind]++
			return
		}
		s.kinds[kind]++
		s.on = append(s.on, func() {
			if err := e.Unregister(k); err != nil {
				s.t.Fatal(err)
			}
			for i, f := range free {
				if err := e.NotifyUnused(f, stages[i]); err != nil {
					s.t.Fatal(err)
				}
			}
		})
	}
	stage := func() *probe.Stage { st, _ := s.slowStage(1 + s.rng.IntN(12)); return st }
	switch s.rng.IntN(13) {
	case 0:
		k := s.randomPlace(true)
		k.Pre = nothing
		add("kprobe inside", &k, &k)
	case 1:
		k := s.randomPlace(s.rng.IntN(2) == 0)
		k.Pre, k.Post = nothing, func(*probe.Context) {}
		add("post", &k, &k)
	case 2:
		r := &probe.Kretprobe{Kprobe: s.randomPlace(false), Return: func(*probe.Context) { s.hits.Add(1) }}
		add("return", r, &r.Kprobe)
	case 3, 4, 5:
		k := s.randomPlace(s.rng.IntN(3) == 0)
		k.Pre, k.Stage = nothing, stage()
		add("stage", &k, &k, k.Stage)
	case 6, 7, 8:
		r := &probe.Kretprobe{Kprobe: s.randomPlace(false), Return: func(*probe.Context) { s.hits.Add(1) }, ReturnStage: stage(), MaxActive: 1 + s.rng.IntN(64)}
		if s.rng.IntN(2) == 0 {
			r.Stage = stage()
			add("staged return", r, &r.Kprobe, r.Stage, r.ReturnStage)
			return
		}
		add("return stage", r, &r.Kprobe, r.ReturnStage)
	case 9:
		j := &probe.Jprobe{Kprobe: s.randomPlace(false), Entry: func(*probe.Context, probe.Args) { s.hits.Add(1) }}
		add("jprobe", j, &j.Kprobe)
	case 10:
		k := &probe.Kprobe{Symbol: "/prog:work", Offset: []uint64{0, s.imul}[s.rng.IntN(2)], Pre: nothing}
		add("user", k, k)
	default:
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "/prog:work"}, Return: func(*probe.Context) { s.hits.Add(1) }}
		add("user return", r, &r.Kprobe)
	}
}

// change takes some probes off, and puts others on.
func (s *saver) change() {
	for len(s.on) > 0 && (len(s.on) > 24 || s.rng.IntN(2) == 0) {
		i := s.rng.IntN(len(s.on))
		s.on[i]()
		s.on = append(s.on[:i], s.on[i+1:]...)
	}
	for tries := 0; tries < 60 && (len(s.on) < 12 || s.rng.IntN(3) == 0); tries++ {
		s.attach()
	}
	var err error
	switch s.rng.IntN(4) {
	case 0, 1:
		err = s.Engine().Optimize()
	case 2:
		err = s.Engine().Collect()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// readRounds reads what the load says, checks it, and returns its last line, which begins with END, if end is set. Else it reads what is there.
func (g *Guest) readRounds(want string, end bool) (last string) {
	g.t.Helper()
	for end || len(g.lines.C()) > 0 {
		l := g.line("the end of the load")
		w := strings.Fields(l)
		switch {
		case len(w) == 3 && w[0] == "ROUND" && !strings.HasPrefix(want, w[2]): // a reset may have cut it off; the sum has all
			g.t.Errorf("%s, want the answer %s", l, want)
		case len(w) == 4 && w[0] == "END":
			return l
		}
	}
	return ""
}

// finish lets the load come to its end, and the guest with it.
func (g *Guest) finish(want string) {
	g.t.Helper()
	g.Type("\n")
	l := g.readRounds(want, true)
	var n, sum, words, right, answer int
	if _, err := fmt.Sscanf(l, "END %d %d %d", &n, &sum, &words); err != nil {
		g.t.Fatalf("%q: %v", l, err)
	}
	fmt.Sscanf(want, "%x", &answer)
	for range n {
		right = (right*31 + answer) % 1000003
	}
	if sum != right || words != 0 || n == 0 {
		g.t.Errorf("%s: want the sum %d, and no words of the kernel's", l, right)
	}
	if st, err := g.Wait(patience.Context(g.t)); err != nil || st.Phase != machine.PhaseExited || st.ExitCode != 0 {
		g.t.Errorf("ended in %+v, %v", st, err)
	}
	g.readRounds(want, false)
}

// TestLinuxSaves saves a Linux guest at random moments while probes of all kinds come and go on it, in its kernel and in its processes. Another
// machine, which has no probes, or the same one with them goes on from each snapshot: every answer of the load, the sum of all of them, and what
// the kernel says are those of a guest that was never probed, and no register has an address of the engine's code. make saves-linux makes it longer.
func TestLinuxSaves(t *testing.T) {
	n := *savesN
	if testing.Short() {
		n = min(n, 4)
	}
	dir := kvmtest.RequireLinux(t)[0]
	prog, imul, _ := program(t)
	config := func(c *machine.Config) {
		c.VCPUs, c.Memory, c.Cmdline = 2, 128<<20, strings.Replace(c.Cmdline, "quiet", "quiet preempt=full", 1)
		c.Probe.OptimizeDelay = time.Millisecond
		var err error
		if c.Linux.Initrd, err = AddFiles(c.Linux.Initrd, fstest.MapFS{"prog": {Data: prog}}); err != nil {
			t.Fatal(err)
		}
	}
	m := boot(t, dir, "sh /saves.sh", config)
	other := boot(t, dir, "sh /saves.sh", func(c *machine.Config) { config(c); c.Linux.Initrd = nil })
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(m.Resume())
	m.await("ROUND 1 ") // the first one reads files
	want := strings.TrimSpace(m.await("ROUND 2 "))
	began := time.Now()
	if again := strings.TrimSpace(m.await("ROUND 3 ")); again != want {
		t.Fatalf("the load answers %s, then %s", want, again)
	}
	round := time.Since(began)
	t.Logf("%s, seed %d: a round takes %v unprobed", filepath.Base(dir), *savesSeed, round.Round(time.Millisecond))
	rng := rand.New(rand.NewPCG(*savesSeed, 31))
	s := &saver{Guest: m, rng: rng, imul: imul, refused: map[string]int{}, kinds: map[string]int{}}
	check(m.Pause())
	s.some, _ = candidates(m, rng, 0, 400)
	for _, name := range busyFunctions {
		if _, err := m.Engine().Check(&probe.Kprobe{Symbol: name}); err == nil {
			s.busy = append(s.busy, name)
		}
	}
	if p, err := m.Image().Profile(); err == nil && p.Faults != nil {
		check(m.Engine().Register(runtime.FaultProbe(m.Engine(), p.Faults)))
		s.loads = true
	}
	check(m.Resume())
	wait, left, start := patience.Context(t), 0, time.Now()
	var slowest time.Duration
	passed := 0
	var last *snapshot.Snapshot
	defer func() { // other.finish ends the test where it finds something
		if !t.Failed() || last == nil {
			return
		}
		t.Logf("save %d (-seed %d): on were %s", passed, *savesSeed, s.listProbes())
		for i, c := range last.CPUs {
			t.Logf("vCPU %d was saved at %s: %+v, events %+v, asleep %v", i, s.place(guest.GVA(c.Regs.RIP)), c.Regs, c.Events, c.Asleep)
		}
	}()
	for i := range n {
		if *savesTime > 0 && time.Since(start) > *savesTime {
			break
		}
		if wait.Err() != nil {
			t.Errorf("%d of %d saves: no time left", i, n)
			break
		}
		s.change()
		time.Sleep(time.Duration(rng.Int64N(int64(round))))
		began := time.Now()
		snap, err := m.Save(nil)
		took := time.Since(began)
		slowest = max(slowest, took)
		if err != nil {
			t.Fatalf("save %d, behind %v: %v", i, took, err)
		}
		last = snap
		m.readRounds(want, false)
		check(m.Pause())
		registers, words := s.engineWords(snap)
		left += words
		if len(registers) > 0 {
			t.Errorf("save %d: %q", i, registers)
		}
		if rng.IntN(8) == 0 {
			check(m.ResetTo(wait, snap))
		}
		check(other.ResetTo(wait, snap))
		check(other.Resume())
		other.finish(want)
		if t.Failed() {
			t.Fatalf("save %d (-seed %d): on were %s", i, *savesSeed, s.listProbes())
		}
		if passed++; passed%10 == 0 {
			t.Logf("%d saves in %v; %d hits on the host", passed, time.Since(start).Round(time.Second), s.hits.Load())
		}
		check(m.Resume())
	}
	for _, off := range s.on {
		off()
	}
	m.finish(want)
	t.Logf("%d saves in %v, the longest took %v; %d words of memory had an address of the engine's code; %d hits on the host; probes %v, refused %v; %+v",
		passed, time.Since(start).Round(time.Second), slowest, left, s.hits.Load(), s.kinds, s.refused, m.Engine().Totals(-1))
}

// place says where an address is.
func (s *saver) place(at guest.GVA) string {
	if sym, ok := s.Image().Find(at); ok {
		return fmt.Sprintf("%v (%s+%#x)", at, sym.Name, uint64(at-sym.Addr))
	}
	return at.String()
}

// listProbes says which probes are on.
func (s *saver) listProbes() string {
	var out []string
	for i := range s.Engine().All() {
		out = append(out, fmt.Sprintf("%s+%#x optimized %v in guest %v hits %d", i.Symbol, i.Offset, i.Optimized, i.InGuest, i.Stats.Hits))
	}
	return strings.Join(out, "; ")
}

// engineWords returns the registers of a snapshot that have addresses of the engine's code, and how many words of its memory do.
func (s *saver) engineWords(snap *snapshot.Snapshot) (registers []string, memory int) {
	inside := func(v uint64) bool { return v>>47 != 0 && s.Engine().InCode(guest.GVA(v)) }
	for i, c := range snap.CPUs {
		regs := probe.Regs(c.Regs)
		for k, v := range regs.Values() {
			if inside(v) {
				registers = append(registers, fmt.Sprintf("%#x in register %d of vCPU %d", v, k, i))
			}
		}
	}
	for _, r := range snap.Memory {
		for off := 0; off+8 <= len(r.Bytes); off += 8 {
			if inside(binary.LittleEndian.Uint64(r.Bytes[off:])) {
				memory++
			}
		}
	}
	return registers, memory
}
