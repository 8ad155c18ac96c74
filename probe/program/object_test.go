package program

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
	bounds "github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

func u64(vals [][]byte) (n uint64) {
	for _, v := range vals {
		n += binary.LittleEndian.Uint64(v)
	}
	return n
}

func key(v uint64, n int) []byte { return binary.LittleEndian.AppendUint64(nil, v)[:n] }

// TestCount attaches the example that counts, and wants true numbers in its
// maps and of its runs.
func TestCount(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	o, err := rt.Load(example(t, "count.o"), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := o.Programs[0]
	if p.Name != "count" || p.AttachTo != "vfs_read" || p.Kind != bpf.Kprobe || p.Place != bpf.InGuest || p.Why != "" || !o.Shared(o.Maps()["hits"]) {
		t.Errorf("loaded %+v, shared %v", p, o.shared)
	}
	k := &probe.Kprobe{Symbol: "vfs_read"}
	p.Attach(k, text, false, true, "")
	if k.Stage == nil || k.Stage.Block == 0 || k.Stage.Stride == 0 || k.Stage.Lost < k.Stage.Block+2*guest.GVA(k.Stage.Stride) {
		t.Fatalf("stage %+v", k.Stage)
	}
	if err := f.engine.Register(k); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		f.hit(i%2, &probe.Regs{RDI: uint64(i % 3), RFLAGS: 2})
	}
	hits, err := o.Maps()["hits"].Lookup(key(0, 4))
	if err != nil || len(hits) != 2 || u64(hits) != 10 || u64(hits[:1]) != 5 {
		t.Errorf("hits %v, %v", hits, err)
	}
	for arg, want := range []uint64{4, 3, 3} {
		if n, err := o.Maps()["by_arg"].Lookup(key(uint64(arg), 8)); err != nil || u64(n) != want {
			t.Errorf("argument %d: %v, %v, want %d", arg, n, err, want)
		}
	}
	if s := p.Stats(); s != (Stats{Runs: 10}) {
		t.Errorf("stats %+v", s)
	}
	if n := testing.AllocsPerRun(100, func() { f.hit(0, &probe.Regs{RDI: 1, RFLAGS: 2}) }); n > 1 { // the registers
		t.Errorf("%v allocations", n)
	}
	if err := f.engine.Unregister(k); err != nil {
		t.Fatal(err)
	}
	o.Close()
	o.Close()
	if s := p.Stats(); s.Runs != 111 {
		t.Errorf("stats behind the end %+v", s)
	}
}

// TestLatency runs an entry and a return program, which share maps and tell
// tasks apart.
func TestLatency(t *testing.T) {
	f := newFake(t)
	now := int64(0)
	cfg := f.config()
	cfg.Now = func() int64 { now += 1000; return now }
	rt := newRuntime(t, cfg)
	o, err := rt.Load(example(t, "latency.o"), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, m := o.Programs[0], o.Programs[1]; n.Name != "enter" || n.Place != bpf.InGuest || m.Name != "leave" || m.Kind != bpf.Kretprobe ||
		m.Place != bpf.InGuest {
		t.Errorf("%+v, %+v", n, m)
	}
	k, r := &probe.Kprobe{Symbol: "vfs_read"}, &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "vfs_read"}}
	o.Programs[0].Attach(k, text, false, true, "")
	o.Programs[1].AttachReturn(r, text, false, "")
	if err := f.engine.Register(k, r); err != nil {
		t.Fatal(err)
	}
	f.task(7, 5, "reader")
	sp := stack + 0x800
	f.set(sp, key(uint64(text)+0x300, 8))
	regs := &probe.Regs{RSP: uint64(sp), RFLAGS: 2}
	f.hit(0, regs)
	started, err := o.Maps()["started"].Lookup(key(5<<32|7, 8))
	if err != nil || u64(started) == 0 {
		t.Fatalf("started: %v, %v", started, err)
	}
	var ret [8]byte
	if err := f.ReadMemory(0, sp, ret[:]); err != nil {
		t.Fatal(err)
	}
	regs.RIP, regs.RSP = binary.LittleEndian.Uint64(ret[:]), uint64(sp)+8
	if v := f.engine.Hit(0, probe.State{Regs: regs}, probe.Trap{Kind: probe.TrapBreakpoint}); v.Action != probe.Resume {
		t.Fatalf("return: %+v", v)
	}
	h, err := o.Maps()["nanoseconds"].Hist()
	if err != nil || h.Total() != 1 || h[9] != 1 { // 1000 is in the bucket of 512 to 1023
		t.Errorf("histogram %v, %v", h, err)
	}
	if _, err := o.Maps()["started"].Lookup(key(5<<32|7, 8)); !errors.Is(err, bpf.ErrKeyNotFound) {
		t.Errorf("started still has it: %v", err)
	}
	if s := o.Programs[1].Stats(); s.Runs != 1 || s.Faults != 0 {
		t.Errorf("%+v", s)
	}
}

// TestRecord: the records of a ring, in order, and the count of lost ones, from the
// time that there is a reader; before that they stay in the ring, and wake no thread.
func TestRecord(t *testing.T) {
	f := newFake(t)
	var wakes atomic.Uint64
	cfg := f.config()
	cfg.Wake = func() { wakes.Add(1) }
	rt := newRuntime(t, cfg)
	o, err := rt.Load(example(t, "record.o"), LoadOptions{OnHost: true})
	if err != nil {
		t.Fatal(err)
	}
	p := o.Programs[0]
	if p.Place != bpf.OnHost || p.Why != "it was asked for" || len(o.shared) != 0 {
		t.Errorf("%+v", p)
	}
	s := newSink(1)
	o.Emit(func(name string) Emitter {
		if name != "records" {
			t.Errorf("ring %q", name)
		}
		return s
	})
	k := &probe.Kprobe{Symbol: "vfs_read"}
	p.Attach(k, text, false, true, "")
	if k.Stage != nil {
		t.Error("a stage, although the host was asked for")
	}
	if err := f.engine.Register(k); err != nil {
		t.Fatal(err)
	}
	ring := o.Maps()["records"]
	wakes.Store(0)
	for range 20000 {
		f.hit(0, &probe.Regs{RDX: 100, RFLAGS: 2})
	}
	if n, _, active := rt.Poll(); n != 0 || active || wakes.Load() != 0 || ring.RingStats().Read != 0 || ring.RingStats().Lost == 0 {
		t.Errorf("nobody wants records: %d come, active %v, %d wakes, %+v", n, active, wakes.Load(), ring.RingStats())
	}
	rt.Want(true)
	if n, _, _ := rt.Poll(); n != 0 || wakes.Load() != 1 || ring.RingStats().Pending != 0 {
		t.Errorf("somebody wants records: %d old ones come, %d wakes, %+v", n, wakes.Load(), ring.RingStats())
	}
	if recs, lost := s.take(); len(recs) != 0 || lost != 0 {
		t.Errorf("%d old records, %d lost", len(recs), lost)
	}
	wakes.Store(0)
	f.hit(1, &probe.Regs{RDI: 1, RSI: uint64(strings_), RDX: 99, RFLAGS: 2})
	f.hit(1, &probe.Regs{RDI: 2, RSI: uint64(strings_), RDX: 100, RFLAGS: 2})
	if rt.Poll(); wakes.Load() != 2 {
		t.Errorf("%d hits have woken whoever polls", wakes.Load())
	}
	recs, _ := s.take()
	if len(recs) != 1 || s.cpus[0] != 1 || binary.LittleEndian.Uint64(recs[0]) != 1000 || binary.LittleEndian.Uint64(recs[0][8:]) != 2 ||
		!strings.HasPrefix(string(recs[0][64:]), "/etc/passwd\x00") {
		t.Errorf("records %x on %v", recs, s.cpus)
	}
	// More than the ring holds.
	for range 20000 {
		f.hit(0, &probe.Regs{RDX: 100, RFLAGS: 2})
	}
	rt.Poll()
	rt.Poll()
	recs, lost := s.take()
	if uint64(len(recs)-1)+lost != 20000 || lost == 0 {
		t.Errorf("%d records, %d lost, want 20000 together", len(recs)-1, lost)
	}
	if err := f.engine.Unregister(k); err != nil {
		t.Fatal(err)
	}
	o.Close()
}

// TestLoadRefusals is a table of objects that do not load, and of reasons why
// programs do not run in the guest.
func TestLoadRefusals(t *testing.T) {
	f := newFake(t)
	count := example(t, "count.o")
	for name, tt := range map[string]struct {
		file []byte
		opt  LoadOptions
		want string
	}{
		"empty":     {nil, LoadOptions{}, "load object: "},
		"text":      {[]byte("hello"), LoadOptions{}, "load object: "},
		"cut":       {count[:len(count)/2], LoadOptions{}, "load object: "},
		"too large": {make([]byte, bpf.MaxObjectSize+1), LoadOptions{}, "load object of 16777217 bytes: larger than 16777216 bytes"},
		"section":   {count, LoadOptions{Section: "kprobe/nope"}, `load object: no such section "kprobe/nope": it has ["kprobe/vfs_read"]`},
		"budget":    {count, LoadOptions{Budget: -1}, `make program "count": negative budget`},
	} {
		if _, err := newRuntime(t, f.config()).Load(tt.file, tt.opt); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
	for want, change := range map[string]func(*Config){
		"too old": func(c *Config) { c.Refuse = "too old" },
		"this guest has no memory that host and guest share":         func(c *Config) { c.Shared = nil },
		"the guest has no profile that says which vCPU code runs on": func(c *Config) { c.Engine = nil },
		"the time in the guest is not known":                         func(c *Config) { c.Clock = nil },
		"the time in the guest is not known: broken":                 func(c *Config) { c.Clock = func() (Clock, error) { return Clock{}, errors.New("broken") } },
		"no memory is left: cannot allocate memory":                  func(c *Config) { f.left = 1000 },
	} {
		cfg := f.config()
		change(&cfg)
		o, err := newRuntime(t, cfg).Load(example(t, "latency.o"), LoadOptions{Section: "kprobe/vfs_read"})
		if err != nil {
			t.Fatal(err)
		}
		if p := o.Programs[0]; p.Place != bpf.OnHost || !strings.HasSuffix(p.Why, want) && p.Why != want {
			t.Errorf("%v because %q, want %q", p.Place, p.Why, want)
		}
		f.left = 64 << 20
	}
}

// TestFaultsUnseen: where faults are the guest's own, programs run in the guest that
// cannot fault: the task is where the kernel says. Others run on the host.
func TestFaultsUnseen(t *testing.T) {
	p := guest.Profile{GS: true, CPUOff: 4, TaskOff: 8, PIDOff: 12, TGIDOff: 16, CommOff: 24}
	f := newFakeOf(t, p, probe.Capabilities{NoFault: "its handlers have them first"})
	for file, want := range map[string]string{
		"latency.o": "", // its key is the task
		"record.o":  "it calls probe_read_kernel_str, which may fault: its handlers have them first",
	} {
		o, err := newRuntime(t, f.config()).Load(example(t, file), LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if p := o.Programs[0]; (p.Place == bpf.OnHost) != (want != "") || !strings.Contains(p.Why, want) {
			t.Errorf("%s: %v because %q, want %q", file, p.Place, p.Why, want)
		}
	}
}

// TestRefuse wants a program that could run in the guest on the host, with the
// reason, where the place does not allow it.
func TestRefuse(t *testing.T) {
	f := newFake(t)
	o, err := newRuntime(t, f.config()).Load(example(t, "count.o"), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k := &probe.Kprobe{Symbol: "vfs_read"}
	p := o.Programs[0]
	p.Attach(k, text, false, true, "not here")
	if k.Stage != nil || k.Pre == nil || p.Place != bpf.OnHost || p.Why != "not here" {
		t.Errorf("%+v, stage %v", p, k.Stage)
	}
}

// FuzzLoad loads damaged objects: an error, or programs that attach, run and
// close.
func FuzzLoad(f *testing.F) {
	for i, name := range []string{"count.o", "latency.o", "record.o", "subprog.o", "core.o"} {
		f.Add(example(f, name))
		// Damage in the code, the maps and the section table.
		for _, at := range []int{64 + 8*i, 0x100, 0x200, 0x600} {
			b := example(f, name)
			b[at%len(b)] ^= 0x55
			f.Add(b)
		}
	}
	g := newFake(f)
	rt := newRuntime(f, g.config())
	f.Fuzz(func(t *testing.T, file []byte) {
		g.left = 64 << 20
		o, err := rt.Load(file, LoadOptions{Budget: 10000})
		if err != nil {
			return
		}
		defer o.Close()
		for _, p := range o.Programs {
			if (p.Place == bpf.InGuest) != (p.Why == "") {
				t.Errorf("%+v", p)
			}
			k := &probe.Kprobe{Symbol: "vfs_read"}
			if p.Kind == bpf.Kprobe {
				p.Attach(k, text, false, true, "")
			}
			if err := g.engine.Register(k); err != nil {
				t.Fatal(err)
			}
			g.hit(0, &probe.Regs{RDI: 1, RSP: uint64(stack) + 8, RFLAGS: 2})
			if err := g.engine.Unregister(k); err != nil {
				t.Fatal(err)
			}
			p.Stats()
		}
	})
}

// TestMapMemory: one limit for the maps of all objects, whose memory is freed after
// the end of each.
func TestMapMemory(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	cfg.Memory = 150_000
	rt := newRuntime(t, cfg)
	load := func() (*Object, error) { return rt.Load(example(t, "count.o"), LoadOptions{OnHost: true}) }
	for round := range 100 {
		var all []*Object
		for {
			o, err := load()
			if err != nil {
				if !errors.Is(err, ErrMapMemory) || len(all) != 3 {
					t.Fatalf("round %d: %d objects: %v", round, len(all), err)
				}
				break
			}
			all = append(all, o)
		}
		for _, o := range all {
			o.Close()
			o.Close() // more than once is the same
		}
		if n := rt.heap.used.Load(); n != 0 {
			t.Fatalf("round %d: %d bytes are in use", round, n)
		}
	}
}

// TestEndDuringReset ends an object at the moment at which a reset reads the guest's clock. Each stops the world: neither may
// wait for the other.
func TestEndDuringReset(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	during := func() {}
	clock := cfg.Clock
	cfg.Clock = func() (Clock, error) { during(); return clock() }
	rt := newRuntime(t, cfg)
	o, err := rt.Load(example(t, "count.o"), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k := &probe.Kprobe{Symbol: "vfs_read"}
	o.Programs[0].Attach(k, text, false, true, "")
	if k.Stage == nil {
		t.Fatal(o.Programs[0].Why)
	}
	during = func() {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			o.Settle(0)
		}()
		select {
		case <-ended:
		case <-bounds.Context(t).Done():
			t.Error("the end of the object waits for the reset")
		}
	}
	if err := rt.Reset(); err != nil {
		t.Error(err)
	}
	during = func() {}
	o.Close()
}

// TestEndFirstInstruction ends an object while a run is at its first instructions, where it is not counted yet. It is
// waited for: it counts as handled, as its changes to the maps count.
func TestEndFirstInstruction(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	stopped := func() {}
	stop := cfg.Stop
	cfg.Stop = func(f func() error) error { return stop(func() error { stopped(); return f() }) }
	rt := newRuntime(t, cfg)
	o, err := rt.Load(example(t, "count.o"), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	o.Programs[0].Attach(&probe.Kprobe{Symbol: "vfs_read"}, text, false, true, "")
	b := o.Programs[0].blocks
	if b == nil {
		t.Fatal(o.Programs[0].Why)
	}
	area := b.areaOf(0)
	// field returns the word of the block that read reads.
	field := func(read func() uint64) []byte {
		for at := 0; at < len(area.Bytes); at += 8 {
			w := area.Bytes[at:][:8]
			was := binary.LittleEndian.Uint64(w)
			before := read()
			binary.LittleEndian.PutUint64(w, was+1)
			found := read() == before+1
			binary.LittleEndian.PutUint64(w, was)
			if found {
				return w
			}
		}
		t.Fatal("no such field")
		return nil
	}
	began := field(func() uint64 { n, _, _, _ := bpf.BlockStats(area); return n })
	ended := field(func() uint64 { return bpf.BlockAnswers(area)[0] })
	was := bytes.Clone(area.Bytes)
	b.info.Retire(area)
	busy := -1
	for at := range was {
		if was[at] != area.Bytes[at] {
			busy = at
		}
	}
	if busy < 0 || b.info.Reentrant {
		t.Fatal("the program takes no block")
	}
	stops := 0
	stopped = func() {
		if stops++; stops == 4 { // since the last one, the run has gone on and ended
			began[0]++
			ended[0]++
			area.Bytes[busy] = 0
		}
	}
	o.Settle(time.Minute)
	if s := b.stats(); s.Runs != 1 || s.Missed != 0 {
		t.Errorf("after %d stops: %+v, want 1 run, none missed", stops, s)
	}
}
