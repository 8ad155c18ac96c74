package machine

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// savesFrom returns how many saves TestSaves makes, and the seed: GUESTPROBE_SAVES, GUESTPROBE_SAVES_SEED.
func savesFrom(t *testing.T) (n int, seed uint64) {
	t.Helper()
	n, seed = 200, 1
	if testing.Short() {
		n = 5
	}
	for name, set := range map[string]func(uint64){
		"GUESTPROBE_SAVES": func(v uint64) { n = int(v) }, "GUESTPROBE_SAVES_SEED": func(v uint64) { seed = v },
	} {
		if s := os.Getenv(name); s != "" {
			v, err := strconv.ParseUint(s, 0, 64)
			if err != nil {
				t.Fatal(err)
			}
			set(v)
		}
	}
	return n, seed
}

// savedLoad keeps probes of all kinds on a guest, and changes them at random.
type savedLoad struct {
	t      *testing.T
	m      *Machine
	rng    *rand.Rand
	user   []guest.Symbol
	kernel []guest.Symbol
	data   []guest.Symbol
	on     []func() error // each takes one off
	hits   atomic.Uint64

	watches int // that were put on
	seen    atomic.Uint64
}

// newSavedLoad returns one, without probes yet.
func newSavedLoad(t *testing.T, m *Machine, rng *rand.Rand) *savedLoad {
	t.Helper()
	l := &savedLoad{t: t, m: m, rng: rng}
	for _, s := range m.Image().Symbols() {
		if s.Kind == guest.SymData && s.Size != 0 {
			l.data = append(l.data, s)
		}
		if s.Kind != guest.SymFunc {
			continue
		}
		if _, err := m.Engine().Check(&probe.Kprobe{Symbol: s.Name}); err != nil {
			continue
		}
		if s.User {
			l.user = append(l.user, s)
		} else {
			l.kernel = append(l.kernel, s)
		}
	}
	return l
}

// hotFunctions are those of the built-in guest that are called most.
var hotFunctions = map[bool][]string{
	true:  {"user_hot", "user_hot_loop", "user_checksum", "user_red_zone", "user_memory", "user_syscall"},
	false: {"schedule", "vfs_read", "memcpy", "preempt", "__switch_to", "sched_tick", "timer_interrupt", "do_syscall", "finish_task_switch"},
}

// slowStage is a stage that takes its time: it counts, with a loop, registers on the stack, and a call of its own, so that a vCPU is
// inside it as often as not.
func slowStage(t *testing.T, m *Machine, user, strings bool, loops int) (*probe.Stage, func()) {
	t.Helper()
	block, host, err := m.AllocShared(64*m.NumCPU(), user)
	if err != nil {
		t.Fatal(err)
	}
	const rax, rbx, rsi, rdi, r12 = x86.RAX, x86.RBX, x86.RSI, x86.RDI, x86.R12
	var a x86.Asm
	sub := a.NewLabel()
	for _, r := range []x86.Reg64{rbx, r12, rdi} {
		a.Push(r)
	}
	a.Mov(4, rbx, x86.Imm(loops))
	again := a.LabelHere()
	a.Mov(8, r12, x86.At(rdi, x86.PtSP))
	a.Call(sub)
	a.Dec(4, rbx)
	a.Jcc(x86.CondNE, again)
	for _, r := range []x86.Reg64{rdi, r12, rbx} {
		a.Pop(r)
	}
	a.Ret()
	a.Place(sub)
	a.Mov(8, rdi, r12)
	a.Inc(8, x86.At(rsi, 0))
	a.Mov(8, rdi, x86.At(x86.RSP, 8))
	a.Ret()
	_ = host
	s := &probe.Stage{
		Code: a.Code(), Stack: 48, NoStrings: !strings, Reads: 1 << (x86.PtSP / 8), Block: block, Stride: 64,
		Counts: func(int) (uint64, uint64, uint64) { return 0, 0, 0 },
	}
	return s, func() { m.FreeShared(block) }
}

// symbol returns a function, with half of them one that is called often.
func (l *savedLoad) symbol(user bool) guest.Symbol {
	if hot := hotFunctions[user]; l.rng.IntN(2) == 0 {
		s, err := l.m.Image().Lookup(hot[l.rng.IntN(len(hot))])
		if err == nil {
			return s
		}
	}
	all := l.kernel
	if user {
		all = l.user
	}
	return all[l.rng.IntN(len(all))]
}

// watch watches memory, by debug registers or by pages.
func (l *savedLoad) watch() {
	e := l.m.Engine()
	w := &probe.Watch{Access: probe.Access(1 + l.rng.IntN(3)), Emulate: l.rng.IntN(3) > 0, Handler: func(*probe.Context) { l.seen.Add(1) }}
	switch l.rng.IntN(3) {
	case 0:
		w.Symbol = watchedVariables[l.rng.IntN(len(watchedVariables))].name
	case 1:
		s := l.data[l.rng.IntN(len(l.data))]
		w.Symbol, w.Len = s.Name, 1<<l.rng.IntN(4)
		w.Offset = uint64(l.rng.IntN(int(s.Size))) &^ uint64(w.Len-1)
	default:
		w.Access, w.Emulate, w.Symbol = probe.AccessExec, false, l.symbol(l.rng.IntN(2) == 0).Name
	}
	if e.Watch(w) != nil {
		return // not every place can be watched, in each way
	}
	l.watches++
	l.on = append(l.on, func() error { return e.Unwatch(w) })
}

// attach puts one probe on.
func (l *savedLoad) attach() {
	e, user := l.m.Engine(), l.rng.IntN(2) == 0
	sym := l.symbol(user)
	nothing := func(*probe.Context) int { l.hits.Add(1); return 0 }
	add := func(p probe.Probe, k *probe.Kprobe, free func()) {
		err := e.Register(p)
		if err != nil {
			if free != nil {
				free()
			}
			return // not every place can have each kind
		}
		l.on = append(l.on, func() error {
			if err := e.Unregister(k); err != nil {
				return err
			}
			if free != nil {
				free()
			}
			return nil
		})
	}
	switch l.rng.IntN(12) {
	case 9, 10, 11:
		l.watch()
	case 0: // at any instruction
		k := &probe.Kprobe{Symbol: sym.Name, Offset: uint64(l.rng.IntN(int(max(1, sym.Size)))), Pre: nothing}
		add(k, k, nil)
	case 1:
		k := &probe.Kprobe{Symbol: sym.Name, Pre: nothing, Post: func(*probe.Context) {}}
		add(k, k, nil)
	case 2:
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: sym.Name}, Return: func(*probe.Context) { l.hits.Add(1) }}
		add(r, &r.Kprobe, nil)
	case 3, 4, 5:
		k := &probe.Kprobe{Symbol: sym.Name, Pre: nothing}
		s, free := slowStage(l.t, l.m, user, l.rng.IntN(3) == 0, 1+l.rng.IntN(12))
		k.Stage = s
		add(k, k, func() { _ = e.NotifyUnused(free, s) })
	case 6, 7:
		s := newStagedReturns(l.t, l.m, sym.Name, user, 1+l.rng.IntN(8))
		if l.rng.IntN(2) == 0 {
			slow, free := slowStage(l.t, l.m, user, l.rng.IntN(3) == 0, 1+l.rng.IntN(12))
			s.ReturnStage = slow
			add(&s.Kretprobe, &s.Kprobe, func() { _ = s.free(); _ = e.NotifyUnused(free, slow) })
			return
		}
		add(&s.Kretprobe, &s.Kprobe, func() { _ = s.free() })
	default:
		j := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: sym.Name}, Entry: func(*probe.Context, probe.Args) { l.hits.Add(1) }}
		add(j, &j.Kprobe, nil)
	}
}

// change takes some probes off, and puts others on.
func (l *savedLoad) change() {
	for len(l.on) > 0 && (len(l.on) > 8 || l.rng.IntN(2) == 0) {
		i := l.rng.IntN(len(l.on))
		if err := l.on[i](); err != nil {
			l.t.Fatal(err)
		}
		l.on = append(l.on[:i], l.on[i+1:]...)
	}
	for len(l.on) < 4 || l.rng.IntN(2) == 0 {
		n := len(l.on)
		l.attach()
		if len(l.on) == n && l.rng.IntN(50) == 0 {
			break
		}
	}
	switch l.rng.IntN(4) {
	case 0, 1:
		if err := l.m.Engine().Optimize(); err != nil {
			l.t.Fatal(err)
		}
	case 2:
		if err := l.m.Engine().Collect(); err != nil {
			l.t.Fatal(err)
		}
	}
}

// sumsOf lets a guest run to its end, and returns what it has computed: its variable sums.
func sumsOf(t *testing.T, m *Machine) []uint64 {
	t.Helper()
	if st := run(t, m); st.Phase != PhaseExited || st.ExitCode != builtin.ExitOK || st.Checks.Count != 0 {
		t.Errorf("phase %s, exit code %d, %d failed checks, crash %v, console %q", st.Phase, st.ExitCode, st.Checks.Count, st.Crash, texts(m.Console().tail(5)))
	}
	sym, err := m.Image().Lookup("sums")
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 16*m.NumCPU())
	if err := m.Peek(sym.Addr, b); err != nil {
		t.Fatal(err)
	}
	var out []uint64
	for ; len(b) > 0; b = b[8:] {
		out = append(out, littleEndian(b[:8]))
	}
	return out
}

// TestSaves saves the built-in guest at random moments while probes of all kinds come and go on it. Another machine, without probes, goes
// on from each snapshot, and comes to the results of a guest that was never probed; no register has an address of the engine's code.
// GUESTPROBE_SAVES=10000 makes it longer (make saves), GUESTPROBE_SAVES_SEED another run.
func TestSaves(t *testing.T) {
	n, seed := savesFrom(t)
	rng := rand.New(rand.NewPCG(seed, 31))
	config := Config{Image: builtinImage(t), VCPUs: 2, Memory: 16 << 20, Cmdline: "rounds=3 quiet", Tick: time.Millisecond, EmulatedStages: true,
		Log: slog.New(slog.DiscardHandler), Probe: probe.Options{OptimizeDelay: time.Millisecond}}
	want := sumsOf(t, newMachine(t, config))
	m, other := newMachine(t, config), newMachine(t, config)
	l := newSavedLoad(t, m, rng)
	start, boots, dead, slowest, saving := time.Now(), 0, 0, time.Duration(0), time.Duration(0)
	wait := patience.Context(t)
	for i := 0; i < n; i++ {
		if wait.Err() != nil {
			t.Fatalf("%d of %d saves: no time left", i, n)
		}
		switch m.Phase() {
		case PhaseExited:
			if st := m.State(); st.ExitCode != 0 || st.Checks.Count != 0 {
				t.Fatalf("seed %d, save %d: the probed guest has ended in %+v", seed, i, st)
			}
			if err := m.Reset(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
			boots++
			fallthrough
		case PhaseCreated, PhasePaused:
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
		case PhaseCrashed:
			t.Fatalf("seed %d, save %d: the probed guest has crashed: %+v", seed, i, m.State().Crash)
		}
		l.change()
		time.Sleep(time.Duration(rng.IntN(8000)) * time.Microsecond)
		began := time.Now()
		s, err := m.Save(nil)
		took := time.Since(began)
		slowest, saving = max(slowest, took), saving+took
		if err != nil {
			t.Fatalf("seed %d, save %d, behind %v: %v", seed, i, took, err)
		}
		if s.Config.Ended != "" {
			i--
			continue
		}
		if err := m.Pause(); err != nil && m.Phase() == PhaseRunning { // it takes no processor time from the other one
			t.Fatal(err)
		}
		if err := other.ResetTo(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		live, below := engineWords(t, m, other, s)
		if dead += below; len(live) > 0 {
			t.Errorf("seed %d, save %d: %d addresses of the engine's: %q", seed, i, len(live), live)
		}
		if diff := gocmp.Diff(want, sumsOf(t, other)); diff != "" {
			t.Errorf("seed %d, save %d: results (-never probed +restored):\n%s", seed, i, diff)
		}
		if t.Failed() {
			break
		}
		if (i+1)%1000 == 0 {
			t.Logf("%d of %d saves after %v", i+1, n, time.Since(start).Round(time.Second))
		}
	}
	if st := m.State(); st.Checks.Count != 0 || st.Phase == PhaseCrashed {
		t.Errorf("the guest that was saved: %+v", st)
	}
	x := m.Engine().Totals(-1)
	t.Logf("seed %d: %d saves in %v, %d boots, a save took %v, the longest %v; %d hits on the host, %d watches with %d accesses, %d words in dead memory, %+v", seed, n, time.Since(start), boots, saving/time.Duration(max(1, n)), slowest, l.hits.Load(), l.watches, l.seen.Load(), dead, x)
	if errors.Is(wait.Err(), context.DeadlineExceeded) {
		t.Error("no time left")
	}
}

// TestSavedWords: words in memory that are addresses of the engine's code are the guest's own in a snapshot, in frames of interrupts, among what
// stacks have, and by themselves; numbers that are no such address stay.
func TestSavedWords(t *testing.T) {
	code, fn := countingGuest(5)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: -1}})
	k := &probe.Kprobe{Symbol: "fn", Pre: func(*probe.Context) int { return 0 }, Post: func(*probe.Context) {}}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	sym, err := m.Image().Lookup("fn")
	if err != nil {
		t.Fatal(err)
	}
	slot, ok := m.Engine().SlotOf(k)
	if !ok { // the instruction is emulated: that of another one
		for off := range sym.Size {
			q := &probe.Kprobe{Symbol: "fn", Offset: off, Pre: func(*probe.Context) int { return 0 }, Post: func(*probe.Context) {}}
			if m.Engine().Register(q) != nil {
				continue
			}
			if slot, ok = m.Engine().SlotOf(q); ok {
				sym.Addr += guest.GVA(off)
				break
			}
		}
	}
	if !ok {
		t.Fatal("no instruction of this guest runs in a slot here")
	}
	const alone, frame, crossing, stack, fxsave = 12 << 20, 12<<20 + 0x1000, 12<<20 + 0x2ff0, 12<<20 + 0x4000, 12<<20 + 0x5000
	put := func(at guest.GPA, words ...uint64) {
		t.Helper()
		b, err := m.mem.Slice(at, 8*len(words))
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range words {
			binary.LittleEndian.PutUint64(b[8*i:], w)
		}
	}
	s, home := uint64(slot), uint64(sym.Addr)
	unused := uint64(m.exec.kernel.GVA) + uint64(m.exec.kernel.Size) - 8
	put(alone, 1, s, 2, 0, unused, 0xffffffff)
	put(frame, s, 8, 0x02, 0x123450, 0x10)
	put(crossing, s, 8, 0x46, 0x123450, 0x10)
	put(stack, 7, s, uint64(sym.Addr)+1, 9)
	put(fxsave, 0x37f, s, 0, 0x0000ffff_00001f80)
	snap := save(t, m)
	get := func(at guest.GPA, n int) (out []uint64) {
		b := snapshot.Find(snap.Memory, at)
		for i := range n {
			out = append(out, binary.LittleEndian.Uint64(b[8*i:]))
		}
		return out
	}
	for _, x := range []struct {
		what string
		at   guest.GPA
		want []uint64
	}{
		{"by itself", alone, []uint64{1, home, 2, 0, unused, 0xffffffff}},
		{"frame", frame, []uint64{home, 8, 0x02, 0x123450, 0x10}},
		{"frame over two pages", crossing, []uint64{home, 8, 0x46, 0x123450, 0x10}},
		{"stack", stack, []uint64{7, home, uint64(sym.Addr) + 1, 9}},
		{"FXSAVE area", fxsave, []uint64{0x37f, home, 0, 0x0000ffff_00001f80}},
	} {
		if diff := gocmp.Diff(x.want, get(x.at, len(x.want))); diff != "" {
			t.Errorf("%s (-want +saved):\n%s", x.what, diff)
		}
	}
}

// TestSaveAsItEnds: a guest that ends while a save waits for its turn to stop the world is saved as one that has ended. One
// that goes on from behind the instruction that has ended it would never end.
func TestSaveAsItEnds(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), Memory: 16 << 20, Cmdline: "rounds=1000000 quiet"})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	var s *snapshot.Snapshot
	done := make(chan error, 1)
	err := m.Target().Stop(func(probe.World) error {
		go func() {
			var err error
			s, err = m.Save(nil)
			done <- err
		}()
		queued := func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.stoppers.next > m.stoppers.serving+1
		}
		for wait := patience.Context(t); !queued(); time.Sleep(time.Millisecond) {
			if wait.Err() != nil {
				return wait.Err()
			}
		}
		m.vcpus[0].endExited(7)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s.Config.Ended != string(PhaseExited) || s.Config.ExitCode != 7 {
		t.Errorf("saved as %q with exit code %d, want it exited with 7", s.Config.Ended, s.Config.ExitCode)
	}
}
