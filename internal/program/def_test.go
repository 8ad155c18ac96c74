package program

import (
	"bytes"
	"testing"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// define makes the program of a definition, as the daemon does.
func define(t testing.TB, rt *Runtime, def, filter string, to Emitter) (*event.Fetcher, *probe.Kprobe, *Definition, error) {
	t.Helper()
	return defineAt(t, rt, def, filter, false, to)
}

// defineAt is define at code of that privilege.
func defineAt(t testing.TB, rt *Runtime, def, filter string, user bool, to Emitter) (*event.Fetcher, *probe.Kprobe, *Definition, error) {
	t.Helper()
	d, err := event.ParseIn(def, image{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := event.Compile(d, image{}, event.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var m *event.Filter
	if filter != "" {
		if m, err = f.Filter(filter, 2); err != nil {
			t.Fatal(err)
		}
	}
	k := &probe.Kprobe{Symbol: "vfs_read"}
	x, err := rt.Define(k, text, user, f, m, to)
	return f, k, x, err
}

// inGuest runs a program as its code in the guest would: on the maps that both
// share, and in vCPU 0's block.
func inGuest(t testing.TB, b *blocks, regs *probe.Regs) {
	t.Helper()
	ctx := make([]byte, bpf.RegsSize)
	bpf.PutRegs(ctx, regs, 8, 16)
	if _, err := bpf.NewVM(b.prog, 0).Run(ctx, bpf.NoEnv{}); err != nil {
		t.Fatal(err)
	}
	word := b.of(0).Bytes[40:48] // runs (docs/programs.md)
	word[0]++
}

// TestDefine follows records of definitions from the shared ring to their own
// emitters.
func TestDefine(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	a, b := newSink(), newSink()
	fa, ka, da, err := define(t, rt, "p:a vfs_read fd=%di", "fd != 3", a)
	if err != nil {
		t.Fatal(err)
	}
	_, kb, db, err := define(t, rt, "p:b vfs_read+4 n=%dx", "", b)
	if err != nil || da.tag == db.tag || ka.Stage == nil || kb.Stage == nil {
		t.Fatalf("%+v, %+v: %v", da, db, err)
	}
	inGuest(t, da.blocks, &probe.Regs{RDI: 1}) // nobody wants records yet
	rt.Want(true)
	inGuest(t, da.blocks, &probe.Regs{RDI: 2, RFLAGS: 2})
	inGuest(t, da.blocks, &probe.Regs{RDI: 3})
	inGuest(t, db.blocks, &probe.Regs{RDX: 4})
	<-a.more // by polling
	rt.Flush()
	ra, _ := a.take()
	rb, _ := b.take()
	if len(ra) != 1 || len(rb) != 1 || a.cpus[0] != 0 {
		t.Fatalf("%d and %d records, want one each", len(ra), len(rb))
	}
	if r, err := fa.Decode(ra[0]); err != nil || r.Values[0].Data[0].Bits != 2 || r.Addr != text || !r.IRQsOff {
		t.Errorf("record %+v, %v", r, err)
	}
	if hits, handled, filtered, missed := ka.Stage.Counts(0); hits != 3 || handled != 2 || filtered != 1 || missed != 0 {
		t.Errorf("counts %d %d %d %d", hits, handled, filtered, missed)
	}
	// A hit on a stack that shows no vCPU.
	lost := da.blocks.area.Bytes[da.blocks.stride*2:]
	lost[0] = 5
	if hits, handled, filtered, missed := ka.Stage.Counts(0); hits != 8 || handled != 2 || filtered != 1 || missed != 5 {
		t.Errorf("counts with lost ones %d %d %d %d", hits, handled, filtered, missed)
	}

	// A full ring: the definition's own loss.
	rt.drain.mu.Lock()
	for range 80000 {
		inGuest(t, db.blocks, &probe.Regs{})
	}
	rt.drain.mu.Unlock()
	rt.Flush()
	rt.Flush()
	rb, n := b.take()
	if _, la := a.take(); uint64(len(rb))+n != 80001 || n == 0 || la != 0 {
		t.Errorf("%d records, %d and %d lost", len(rb), n, la)
	}

	// The last records come before the end; later ones go nowhere.
	inGuest(t, da.blocks, &probe.Regs{RDI: 9})
	stops := f.stops
	rt.drain.mu.Lock()
	done := rt.drain.done
	rt.drain.mu.Unlock()
	rt.Drop(da, db)
	<-done // nothing is left to drain
	if f.stops != stops+1 {
		t.Errorf("%d stops for two definitions", f.stops-stops)
	}
	if ra, _ = a.take(); len(ra) != 2 {
		t.Errorf("%d records, want 2", len(ra))
	}
	if hits, _, _, _ := ka.Stage.Counts(0); hits != 9 || da.Stats().InGuest != 4 {
		t.Errorf("counts behind the end: %d hits, %+v", hits, da.Stats())
	}
	if _, _, _, missed := kb.Stage.Counts(1); missed != 0 {
		t.Errorf("missed %d", missed)
	}
}

// TestDefineOnHost is a table of definitions that the guest cannot run, and of
// why.
func TestDefineOnHost(t *testing.T) {
	for _, tt := range []struct {
		def, filter, want string
		change            func(*fake, *Config)
	}{
		{"r:a vfs_read a=$arg7", "", "what it keeps at the entry is not an argument in a register", nil},
		{"p:a vfs_read s=+0(%di):string", `s ~ "a?"`, `the filter's pattern "a?" has more than * in it`, nil},
		{"p:a vfs_read", "", "the time in the guest is not known", func(_ *fake, c *Config) { c.Clock = nil }},
		{"p:a vfs_read", "", errNoShared.Error(), func(_ *fake, c *Config) { c.Shared = nil }},
		{"p:a vfs_read", "", `make map array "gate": allocate 264 bytes: no memory is left`, func(f *fake, _ *Config) { f.left = 0 }},
	} {
		f := newFake(t)
		cfg := f.config()
		if tt.change != nil {
			tt.change(f, &cfg)
		}
		_, k, _, err := define(t, newRuntime(t, cfg), tt.def, tt.filter, newSink())
		if err == nil || err.Error() != tt.want || k.Stage != nil {
			t.Errorf("%s: %v, want %s", tt.def, err, tt.want)
		}
	}
}

// TestReset wants programs to go on behind a reset, at the same addresses, with
// counts that go on and maps that begin anew.
func TestReset(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	s := newSink()
	_, k, d, err := define(t, rt, "p:a vfs_read fd=%di", "", s)
	if err != nil {
		t.Fatal(err)
	}
	o, err := rt.Load(example(t, "record.o"), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Programs[0].Attach(&probe.Kprobe{Symbol: "vfs_read"}, text, false, true, "")
	rt.Want(true)
	inGuest(t, d.blocks, &probe.Regs{RDI: 1})
	block := bytes.Clone(d.blocks.of(1).Bytes)
	rt.Save()
	if hits, _, _, _ := k.Stage.Counts(0); hits != 1 {
		t.Errorf("%d hits before the reset", hits)
	}
	f.reset()
	if err := rt.Reset(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(block, d.blocks.of(1).Bytes) {
		t.Error("blocks are not as they were at first")
	}
	if v, err := o.Maps()[".rodata"].Lookup(make([]byte, 4)); err != nil || v[0][0] != 100 {
		t.Errorf(".rodata %v, %v", v, err)
	}
	inGuest(t, d.blocks, &probe.Regs{RDI: 2})
	rt.Flush()
	if recs, lost := s.take(); len(recs) != 2 || lost != 0 {
		t.Errorf("%d records, %d lost", len(recs), lost)
	}
	if hits, handled, _, _ := k.Stage.Counts(0); hits != 2 || handled != 2 {
		t.Errorf("%d hits, %d handled", hits, handled)
	}
	// Memory elsewhere is no memory: code has its addresses in it.
	f.reset()
	f.shared[0].areas[0].Addr += 64
	if err := rt.Reset(); err == nil {
		t.Error("a reset that moved the memory went unnoticed")
	}
}

// TestHostileRing scribbles over everything that the guest can write.
func TestHostileRing(t *testing.T) {
	f := newFake(t)
	rt := newRuntime(t, f.config())
	s := newSink()
	_, k, d, err := define(t, rt, "p:a vfs_read fd=%di", "", s)
	if err != nil {
		t.Fatal(err)
	}
	for _, fill := range []byte{0xff, 0x01, 0x80} {
		rt.drain.mu.Lock() // the race detector knows no guests
		f.scribble(func() byte { return fill })
		rt.drain.mu.Unlock()
		rt.Flush()
		hits, handled, filtered, missed := k.Stage.Counts(0)
		if hits != handled+filtered+missed {
			t.Errorf("counts %d %d %d %d", hits, handled, filtered, missed)
		}
		d.Stats()
	}
	rt.Drop(d)
}

// TestEnv runs programs that ask for what only the host has.
func TestEnv(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	var lines []string
	cfg.Trace = func(prog string, cpu int, msg []byte) { lines = append(lines, prog+": "+string(msg)) }
	rt := newRuntime(t, cfg)
	run := func(name string, entry bool, regs *probe.Regs, insns ...bpf.Insn) (taken bool, r *runner) {
		t.Helper()
		p, err := bpf.New(bpf.Spec{Name: name, Kind: bpf.Kprobe, Slots: insns})
		if err != nil {
			t.Fatal(err)
		}
		r = rt.newRunner(p)
		k := &probe.Kprobe{Symbol: "vfs_read", Pre: func(c *probe.Context) int {
			if taken = r.run(c, entry); taken {
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
	mov := func(r bpf.Reg, v int64) bpf.Insn {
		return bpf.Insn{Op: bpf.ClassALU64 | bpf.OpMov, Dst: r, Imm: v}
	}
	movx := func(r, s bpf.Reg) bpf.Insn {
		return bpf.Insn{Op: bpf.ClassALU64 | bpf.OpMov | bpf.SrcX, Dst: r, Src: s}
	}
	add := func(r bpf.Reg, v int64) bpf.Insn {
		return bpf.Insn{Op: bpf.ClassALU64 | bpf.OpAdd, Dst: r, Imm: v}
	}
	call := func(h bpf.Helper) bpf.Insn { return bpf.Insn{Op: bpf.OpCallK, Imm: int64(h)} }
	exit := bpf.Insn{Op: bpf.OpExitK}

	sp := stack + 0x800
	f.set(sp, key(uint64(text)+0x300, 8))
	for _, entry := range []bool{true, false} {
		regs := &probe.Regs{RSP: uint64(sp), RAX: 1, RFLAGS: 2}
		taken, _ := run("override", entry, regs, mov(bpf.R2, -5), call(bpf.HelperOverrideReturn), exit)
		left := regs.RIP == uint64(text)+0x300 && regs.RSP == uint64(sp)+8 && int64(regs.RAX) == -5
		if taken != entry || left != entry {
			t.Errorf("override at the entry %v: taken %v, %+v", entry, taken, regs)
		}
	}
	// A wild pointer is a fault with its place, and the guest goes on.
	_, r := run("wild", true, &probe.Regs{RSP: uint64(sp), RFLAGS: 2}, mov(bpf.R0, 0),
		bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R0, Src: bpf.R0}, exit)
	if s := r.stats(); s.Runs != 1 || s.Faults != 1 || s.Last != "run program: instruction 1: load out of bounds: 0x0" {
		t.Errorf("%+v", s)
	}
	// get_stack of the wrong stack is an error, of the right one what the engine says.
	for flags, want := range map[int64]uint64{0: 8, 0x100: ^uint64(13)} { // -EFAULT
		_, r = run("stack", true, &probe.Regs{RSP: uint64(sp) - 0x900, RFLAGS: 2}, movx(bpf.R2, bpf.R10), add(bpf.R2, -64), mov(bpf.R3, 64), mov(bpf.R4, flags),
			call(bpf.HelperGetStack),
			bpf.Insn{Op: bpf.OpLoadImm64, Dst: bpf.R1, Imm: int64(want)}, bpf.Insn{},
			bpf.Insn{Op: bpf.ClassJMP | bpf.OpJNE | bpf.SrcX, Dst: bpf.R0, Src: bpf.R1, Off: 1}, exit,
			mov(bpf.R0, 0), bpf.Insn{Op: bpf.ClassLDX | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R0, Src: bpf.R0}, exit)
		if s := r.stats(); s.Faults != 0 {
			t.Errorf("get_stack with flags %#x does not return %#x", flags, want)
		}
	}
	run("hello", true, &probe.Regs{RFLAGS: 2}, bpf.Insn{Op: bpf.OpLoadImm64, Dst: bpf.R1, Imm: 0x0a6968}, bpf.Insn{},
		bpf.Insn{Op: bpf.ClassSTX | bpf.ModeMEM | bpf.SizeDW, Dst: bpf.R10, Src: bpf.R1, Off: -8},
		movx(bpf.R1, bpf.R10), add(bpf.R1, -8), mov(bpf.R2, 4), call(bpf.HelperTracePrintk), exit)
	if len(lines) != 1 || lines[0] != "hello: hi\n" {
		t.Errorf("trace lines %q", lines)
	}
	if p, err := bpf.New(bpf.Spec{Kind: bpf.Kprobe, Slots: []bpf.Insn{call(bpf.HelperTracePrintk), exit}}); err != nil {
		t.Fatal(err)
	} else if err := rt.where(p); err == nil || err.Error() != "it calls trace_printk, which formats text and gives it to the trace log, which the host holds" {
		t.Errorf("where: %v", err)
	}
}

// TestClosed wants a runtime to end with rings in it, and more than once.
func TestClosed(t *testing.T) {
	f := newFake(t)
	rt := New(f.config())
	if _, _, _, err := define(t, rt, "p:a vfs_read", "", newSink()); err != nil {
		t.Fatal(err)
	}
	rt.Close()
	rt.Close()
	New(f.config()).Close()
}
