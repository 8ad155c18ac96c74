package program

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// layoutOf compiles a definition and its filter.
func layoutOf(t testing.TB, def, filter string) (*event.Layout, *event.Filter) {
	t.Helper()
	d, err := event.ParseIn(def, event.Scope{Symbols: newImage(t, profile)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := event.Compile(d, event.Scope{Symbols: newImage(t, profile)}, event.Options{Tasks: true})
	if err != nil {
		t.Fatal(err)
	}
	if filter == "" {
		return l, nil
	}
	f, err := l.Filter(filter)
	if err != nil {
		t.Fatal(err)
	}
	return l, f
}

// define makes the program of a definition, and its form in the guest at kernel code.
func define(t testing.TB, rt *Runtime, def, filter string, to *sink) (*Definition, *probe.Stage, error) {
	t.Helper()
	l, f := layoutOf(t, def, filter)
	d, err := rt.Define(l, f, to)
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := d.CompileGuest(text, false)
	return d, s, err
}

// cookieEnv knows whose program it is, and nothing of a guest.
type cookieEnv struct {
	bpf.NoEnv
	cookie uint64
}

func (e cookieEnv) Cookie() uint64 { return e.cookie }

// runInGuest runs a program as its code in the guest would: on the maps that both
// share, and counting in vCPU 0's block.
func runInGuest(t testing.TB, b *blocks, regs *probe.Regs) {
	t.Helper()
	ctx := make([]byte, bpf.ReturnSize)
	bpf.PutRegs(ctx, regs, 8, 16)
	if b.prog.Kind() != bpf.Kretprobe {
		ctx = ctx[:bpf.RegsSize]
	}
	env := cookieEnv{}
	if b.form != nil {
		env.cookie = uint64(b.form.mark())
	}
	answer, err := bpf.NewVM(b.prog, 0).Run(ctx, env)
	if err != nil {
		t.Fatal(err)
	}
	words := b.areaOf(0).Bytes // docs/engine.md has the offsets
	for _, at := range []uint64{40, 176 + 8*answer} {
		binary.LittleEndian.PutUint64(words[at:], binary.LittleEndian.Uint64(words[at:])+1)
	}
}

// TestToGuest follows records of definitions from the shared ring to their own
// recorders.
func TestToGuest(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	a, b := newSink(1), newSink(2)
	da, sa, err := define(t, rt, "p:a vfs_read fd=%di", "fd != 3", a)
	if err != nil {
		t.Fatal(err)
	}
	db, sb, err := define(t, rt, "p:b vfs_read+4 n=%dx", "", b)
	if err != nil || sa == nil || sb == nil {
		t.Fatalf("%+v, %+v: %v", sa, sb, err)
	}
	inA, inB := da.guest.blocks, db.guest.blocks
	runInGuest(t, inA, &probe.Regs{RDI: 1}) // there is no reader yet
	rt.Want(true)
	runInGuest(t, inA, &probe.Regs{RDI: 2, RFLAGS: 2})
	runInGuest(t, inA, &probe.Regs{RDI: 3})
	runInGuest(t, inB, &probe.Regs{RDX: 4})
	if n, _, active := rt.Poll(); n != 2 || !active {
		t.Fatalf("%d records came, active %v", n, active)
	}
	ra, _ := a.take()
	rb, _ := b.take()
	if len(ra) != 1 || len(rb) != 1 || a.cpus[0] != 0 {
		t.Fatalf("%d and %d records, want one each", len(ra), len(rb))
	}
	if r, err := da.layout.Decode(ra[0]); err != nil || r.Values[0].Data[0].Bits != 2 || r.Addr != text || !r.IRQsOff {
		t.Errorf("record %+v, %v", r, err)
	}
	if handled, filtered, missed := sa.Counts(0); handled != 2 || filtered != 1 || missed != 0 || da.CountRejected() != 1 {
		t.Errorf("counts %d %d %d", handled, filtered, missed)
	}
	// A hit on a stack that shows no vCPU.
	inA.area.Bytes[inA.stride*2] = 5
	if handled, filtered, missed := sa.Counts(0); handled != 2 || filtered != 1 || missed != 5 {
		t.Errorf("counts with lost ones %d %d %d", handled, filtered, missed)
	}

	// A full ring: the definition's own loss.
	for range 100000 {
		runInGuest(t, inB, &probe.Regs{})
	}
	rt.Poll()
	rt.Poll()
	rb, n := b.take()
	if _, la := a.take(); uint64(len(rb))+n != 100001 || n == 0 || la != 0 {
		t.Errorf("%d records, %d and %d lost", len(rb), n, la)
	}

	// The last records come before the end; later ones go nowhere.
	runInGuest(t, inA, &probe.Regs{RDI: 9})
	stops := f.stops
	rt.Drop(da, db)
	if _, _, active := rt.Poll(); active {
		t.Error("something is left to drain")
	}
	if f.stops != stops+1 {
		t.Errorf("%d stops for two definitions", f.stops-stops)
	}
	if ra, _ = a.take(); len(ra) != 2 {
		t.Errorf("%d records, want 2", len(ra))
	}
	if handled, filtered, missed := sa.Counts(0); handled+filtered+missed != 9 {
		t.Errorf("counts behind the end: %d, %d and %d", handled, filtered, missed)
	}
	if _, _, missed := sb.Counts(1); missed != 0 {
		t.Errorf("missed %d", missed)
	}
}

// TestOnHost is a table of definitions that the guest cannot run, and of
// why.
func TestOnHost(t *testing.T) {
	for _, tt := range []struct {
		def, want string
		change    func(*fake, *Config)
	}{
		{"r:a vfs_read a=$arg7", "it calls entry_arg, which knows arguments that were on the stack at the entry, which the host keeps", nil},
		{"w:a rw@vfs_read:8", "it calls watched, which knows the access of a watch, which the processor tells the host", nil},
		{"p:a vfs_read", "the time in the guest is not known", func(_ *fake, c *Config) { c.Clock = nil }},
		{"p:a vfs_read", errNoShared.Error(), func(_ *fake, c *Config) { c.Shared = nil }},
		{"p:a vfs_read", `make map array "gate": allocate 264 bytes: no memory is left: cannot allocate memory`, func(f *fake, _ *Config) { f.left = 0 }},
	} {
		f := newFake(t)
		cfg := f.config()
		if tt.change != nil {
			tt.change(f, &cfg)
		}
		_, s, err := define(t, newRuntime(t, cfg), tt.def, "", newSink(1))
		if err == nil || err.Error() != tt.want || s != nil {
			t.Errorf("%s: %v, want %s", tt.def, err, tt.want)
		}
	}
}

// TestHost runs definitions of all kinds at hits, on the host.
func TestHost(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	f.task(7, 6, "worker")
	sp := uint64(stack) + 0x800
	f.set(stack+0x808, key(0x77, 8))
	define := func(def, filter string) (*Definition, *sink, *event.Layout) {
		to := newSink(3)
		l, x := layoutOf(t, def, filter)
		d, err := rt.Define(l, x, to)
		if err != nil {
			t.Fatal(err)
		}
		return d, to, l
	}
	line := func(to *sink, l *event.Layout, n int) string {
		t.Helper()
		recs, _ := to.take()
		if len(recs) != n {
			t.Fatalf("%s: %d records, want %d", l.Def(), len(recs), n)
		}
		if n == 0 {
			return ""
		}
		r, err := l.Decode(recs[n-1])
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s-%d %v %s", r.Comm, r.PID, r.IRQsOff, l.AppendArgs(nil, r))
	}
	hit := func(k *probe.Kprobe, regs *probe.Regs) {
		t.Helper()
		k.Symbol = "vfs_read"
		if err := f.engine.Register(k); err != nil {
			t.Fatal(err)
		}
		regs.RSP = sp
		f.hit(0, regs)
		if err := f.engine.Unregister(k); err != nil {
			t.Fatal(err)
		}
		k.Addr = 0
	}

	p, to, l := define("p:p vfs_read a=%di name=$comm", "a == 1")
	k := &probe.Kprobe{Filter: p.Hit}
	hit(k, &probe.Regs{RDI: 1})
	line(to, l, 0) // there is no reader
	rt.Want(true)
	hit(k, &probe.Regs{RDI: 2})
	line(to, l, 0)
	hit(k, &probe.Regs{RDI: 1})
	want := "worker-7 true (vfs_read+0x0/0x370) a=0x1 name=\"worker\""
	if got := line(to, l, 1); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if to.depth != 0 || p.CountRejected() != 1 {
		t.Errorf("%d events are being made, %d rejected", to.depth, p.CountRejected())
	}
	post, err := p.Post()
	if err != nil {
		t.Fatal(err)
	}
	hit(&probe.Kprobe{Filter: p.Hit, Post: post}, &probe.Regs{RDI: 1})
	if recs, _ := to.take(); len(recs) != 3 {
		t.Errorf("%d records, want 3", len(recs))
	} else if r, err := l.Decode(recs[2]); err != nil || r.Moment != event.AtPost || r.Comm != "worker" || r.Values != nil {
		t.Errorf("%+v, %v", r, err)
	}

	// What the return needs of the entry, the stack included, is from there.
	r, to, l := define("r:r vfs_read a=$arg1 b=$arg7 c=$arg300", "a == 5")
	c := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "vfs_read"}, Entry: r.Entry, Return: r.Return, DataSize: r.EntrySize()}
	if err := f.engine.Register(c); err != nil {
		t.Fatal(err)
	}
	for _, rdi := range []uint64{4, 5} {
		f.set(guest.GVA(sp), key(uint64(text)+0x300, 8))
		regs := &probe.Regs{RDI: rdi, RSP: sp}
		f.hit(0, regs)
		var ret [8]byte
		_ = f.ReadMemory(0, guest.GVA(sp), ret[:])
		regs.RIP, regs.RSP, regs.RDI = binary.LittleEndian.Uint64(ret[:]), sp+8, 0
		f.engine.Hit(0, probe.State{Regs: regs}, probe.Trap{Kind: probe.TrapBreakpoint})
	}
	want = "worker-7 true (vfs_read+0x300/0x370 <- vfs_read) a=0x5 b=0x77 c=(fault)"
	if got := line(to, l, 1); got != want || r.CountRejected() != 1 {
		t.Errorf("got %s, want %s, rejected %d", got, want, r.CountRejected())
	}
	if err := f.engine.Unregister(&c.Kprobe); err != nil {
		t.Fatal(err)
	}

	// One whose recorder has no room has lost it.
	full, to, l := define("p:p vfs_read", "")
	to.full = true
	hit(&probe.Kprobe{Filter: full.Hit}, &probe.Regs{})
	if _, lost := to.take(); lost != 1 {
		t.Errorf("%d lost, want 1", lost)
	}
	line(to, l, 0)
	rt.Drop(p, r, full)
}

// TestLateRecord ends a definition with a run under way, which publishes its record
// afterwards: the run counts as missed, so its record is dropped.
func TestLateRecord(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	after := func() {}
	cfg.Stop = func(do func() error) error {
		defer func() { after() }()
		return f.stop(do)
	}
	rt := newRuntime(t, cfg)
	to := newSink(1)
	d, stage, err := define(t, rt, "p:p vfs_read", "", to)
	if err != nil {
		t.Fatal(err)
	}
	rt.Want(true)
	runInGuest(t, d.guest.blocks, &probe.Regs{})
	words := d.guest.blocks.areaOf(0).Bytes // docs/engine.md has the offsets
	words[0], words[40] = 1, words[40]+1
	after = func() {
		if _, _, missed := stage.Counts(0); missed == 1 {
			after = func() {}
			runInGuest(t, d.guest.blocks, &probe.Regs{})
			rt.Poll()
		}
	}
	rt.Drop(d)
	recs, lost := to.take()
	if handled, _, missed := stage.Counts(0); len(recs) != 1 || lost != 0 || handled != 1 || missed != 1 {
		t.Errorf("%d records and %d lost of %d handled, %d missed", len(recs), lost, handled, missed)
	}
}

// TestHitAllocates wants no allocation in a hit, except of the target for the fault of far.
func TestHitAllocates(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	f.task(7, 6, "worker")
	hub := event.NewHub(2, event.HubOptions{})
	defer hub.Close()
	rt.Want(true)
	l, x := layoutOf(t, `p:p vfs_read a=%di name=$comm s=+0(%si):string far=+0(%bx)`, `comm == "worker" && s ~ "*pass*"`)
	src := hub.Source(l, nil)
	d, err := rt.Define(l, x, src)
	if err != nil {
		t.Fatal(err)
	}
	var allocs float64
	passed := false
	if err := f.engine.Register(&probe.Kprobe{Symbol: "vfs_read", Filter: func(c *probe.Context) bool {
		allocs = testing.AllocsPerRun(1000, func() { passed = d.Hit(c) })
		return true
	}}); err != nil {
		t.Fatal(err)
	}
	f.hit(0, &probe.Regs{RSP: uint64(stack) + 0x800, RSI: uint64(strings_)})
	var word [8]byte
	targets := testing.AllocsPerRun(1000, func() { _ = f.ReadMemory(0, 0, word[:]) })
	if c := src.Counts(); allocs != targets || !passed || c.Stored+c.Lost != 1001 {
		t.Errorf("%v allocations, %v of them the target's, passed %v, %+v", allocs, targets, passed, c)
	}
}

// BenchmarkHit is what a hit of a definition costs on the host, engine and all.
func BenchmarkHit(b *testing.B) {
	for _, bm := range []struct{ name, def, filter string }{
		{"three values", "p:p vfs_read a=%di b=%si:u32 c=%dx:s32", ""},
		{"three values, filtered", "p:p vfs_read a=%di b=%si:u32 c=%dx:s32", "a != 0"},
		{"two values and text", "p:p vfs_read fd=%di:s32 buf=%si name=+0(%r8):string", ""},
		{"nobody listens", "p:p vfs_read a=%di", ""},
		{"nothing", "", ""},
	} {
		b.Run(bm.name, func(b *testing.B) {
			f := newFake(b)
			cfg := f.config()
			hub := event.NewHub(2, event.HubOptions{})
			defer hub.Close()
			cfg.Now = hub.Now
			rt := newRuntime(b, cfg)
			rt.Want(bm.name != "nobody listens")
			k := &probe.Kprobe{Symbol: "vfs_read", Pre: func(*probe.Context) int { return 0 }}
			if bm.def != "" {
				l, x := layoutOf(b, bm.def, bm.filter)
				d, err := rt.Define(l, x, hub.Source(l, nil))
				if err != nil {
					b.Fatal(err)
				}
				k = &probe.Kprobe{Symbol: "vfs_read", Filter: d.Hit}
			}
			if err := f.engine.Register(k); err != nil {
				b.Fatal(err)
			}
			regs := &probe.Regs{RSP: uint64(stack) + 0x800, R8: uint64(strings_)}
			b.ReportAllocs()
			for b.Loop() {
				f.hit(0, regs)
			}
		})
	}
}

// TestReset: programs continue after a reset, at the same addresses, with counts that
// continue and maps that are reinitialized.
func TestReset(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	s := newSink(1)
	d, stage, err := define(t, rt, "p:a vfs_read fd=%di", "", s)
	if err != nil {
		t.Fatal(err)
	}
	o, err := rt.Load(example(t, "record.o"), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Programs[0].Attach(&probe.Kprobe{Symbol: "vfs_read"}, text, false, true, "")
	rt.Want(true)
	runInGuest(t, d.guest.blocks, &probe.Regs{RDI: 1})
	block := bytes.Clone(d.guest.blocks.areaOf(1).Bytes)
	rt.Save()
	if handled, filtered, missed := stage.Counts(0); handled+filtered+missed != 1 {
		t.Errorf("before the reset: counts %d %d %d", handled, filtered, missed)
	}
	f.reset()
	if err := rt.Reset(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(block, d.guest.blocks.areaOf(1).Bytes) {
		t.Error("blocks are not as they were at first")
	}
	if v, err := o.Maps()[".rodata"].Lookup(make([]byte, 4)); err != nil || v[0][0] != 100 {
		t.Errorf(".rodata %v, %v", v, err)
	}
	runInGuest(t, d.guest.blocks, &probe.Regs{RDI: 2})
	rt.Poll()
	if recs, lost := s.take(); len(recs) != 2 || lost != 0 {
		t.Errorf("%d records, %d lost", len(recs), lost)
	}
	if handled, filtered, missed := stage.Counts(0); handled != 2 || filtered+missed != 0 {
		t.Errorf("counts %d %d %d", handled, filtered, missed)
	}
	// Memory elsewhere is no memory: code has its addresses in it.
	f.reset()
	f.base += 4096
	if err := rt.Reset(); err == nil {
		t.Error("a reset that moved the memory went unnoticed")
	}
}

// TestHostileRing scribbles over everything that the guest can write.
func TestHostileRing(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	s := newSink(1)
	d, stage, err := define(t, rt, "p:a vfs_read fd=%di", "", s)
	if err != nil {
		t.Fatal(err)
	}
	for _, fill := range []byte{0xff, 0x01, 0x80} {
		f.scribble(func() byte { return fill })
		rt.Poll()
		stage.Counts(0)
		d.CountRejected()
	}
	rt.Drop(d)
}

// TestNotDefined: a definition whose program cannot be made takes no memory of the
// host.
func TestNotDefined(t *testing.T) {
	rt := newRuntime(t, newFake(t).config())
	rt.gate.Close()
	l, f := layoutOf(t, "p:a vfs_read t=+0(%di):string", "")
	if _, err := rt.Define(l, f, newSink(1)); err == nil {
		t.Error("made with a map that is closed")
	}
	if n := rt.heap.used.Load(); n != 0 {
		t.Errorf("%d bytes of the host are in use", n)
	}
}

// TestEnv runs programs that ask for what only the host has.
func TestEnv(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	var lines []string
	cfg.Trace = func(prog string, cpu int, msg []byte) { lines = append(lines, prog+": "+string(msg)) }
	rt := newRuntime(t, cfg)
	run := func(name string, entry bool, regs *probe.Regs, insns ...asm.Instruction) (taken bool, r *runner) {
		t.Helper()
		p, err := bpf.New(bpf.Spec{Name: name, Kind: bpf.Kprobe, Insns: insns})
		if err != nil {
			t.Fatal(err)
		}
		r = rt.newRunner(p)
		k := &probe.Kprobe{Symbol: "vfs_read", Pre: func(c *probe.Context) int {
			if _, taken = r.run(c, entry); taken {
				return 1
			}
			return 0
		}}
		if err := f.engine.Register(k); err != nil {
			t.Fatal(err)
		}
		f.hit(0, regs)
		if err := f.engine.Unregister(k); err != nil {
			t.Fatal(err)
		}
		return taken, r
	}
	exit := asm.Return()
	wild := asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord)

	sp := stack + 0x800
	f.set(sp, key(uint64(text)+0x300, 8))
	for _, entry := range []bool{true, false} {
		regs := &probe.Regs{RSP: uint64(sp), RAX: 1, RFLAGS: 2}
		taken, _ := run("override", entry, regs, asm.Mov.Imm(asm.R2, -5), asm.FnOverrideReturn.Call(), exit)
		left := regs.RIP == uint64(text)+0x300 && regs.RSP == uint64(sp)+8 && int64(regs.RAX) == -5
		if taken != entry || left != entry {
			t.Errorf("override at the entry %v: taken %v, %+v", entry, taken, regs)
		}
	}
	// A wild pointer is a fault with its place, and the guest continues.
	_, r := run("wild", true, &probe.Regs{RSP: uint64(sp), RFLAGS: 2}, asm.Mov.Imm(asm.R0, 0), wild, exit)
	if s := r.stats(); s.Runs != 1 || s.Faults != 1 || s.Last.Error() != "run program: instruction 1: load out of bounds: 0x0" {
		t.Errorf("%+v", s)
	}
	// get_stack of the wrong stack is an error, of the right one what the engine says.
	for flags, want := range map[int32]int64{0: 8, 0x100: -14} { // -EFAULT
		_, r = run("stack", true, &probe.Regs{RSP: uint64(sp) - 0x900, RFLAGS: 2},
			asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -64), asm.Mov.Imm(asm.R3, 64), asm.Mov.Imm(asm.R4, flags), asm.FnGetStack.Call(),
			asm.LoadImm(asm.R1, want, asm.DWord), asm.JNE.Reg(asm.R0, asm.R1, "other"), exit,
			asm.Mov.Imm(asm.R0, 0).WithSymbol("other"), wild, exit)
		if s := r.stats(); s.Faults != 0 {
			t.Errorf("get_stack with flags %#x does not return %#x", flags, want)
		}
	}
	run("hello", true, &probe.Regs{RFLAGS: 2}, asm.LoadImm(asm.R1, 0x0a6968, asm.DWord), asm.StoreMem(asm.R10, -8, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -8), asm.Mov.Imm(asm.R2, 4), asm.FnTracePrintk.Call(), exit)
	if len(lines) != 1 || lines[0] != "hello: hi\n" {
		t.Errorf("trace lines %q", lines)
	}
	if p, err := bpf.New(bpf.Spec{Kind: bpf.Kprobe, Insns: asm.Instructions{asm.FnTracePrintk.Call(), exit}}); err != nil {
		t.Fatal(err)
	} else if err := rt.checkGuest(p, false); err == nil || err.Error() != "it calls trace_printk, which formats text and gives it to the trace log, which the host holds" {
		t.Errorf("where: %v", err)
	}
}

// TestDefinitionsAreSmall: what a definition takes of the memory that host and guest share
// leaves room for one at every function of a kernel.
func TestDefinitionsAreSmall(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	for def, small := range map[string]bool{"p:a vfs_read": true, "p:b vfs_read fd=%di n=%dx": true, "r:c vfs_read $retval": true, `p:d vfs_read +0(%si):string`: false} {
		d, _, err := define(t, rt, def, "", newSink(1))
		if err != nil {
			continue // it runs on the host
		}
		if n := d.guest.blocks.stride; (n == 320) != small {
			t.Errorf("%s: %d bytes for each vCPU", def, n)
		}
	}
}
