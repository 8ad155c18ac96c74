package probe_test

import (
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// The tests here drive Engine.Hit by hand, with states that a guest reaches
// only by chance. They use functions of the suite's image: hot_load begins
// with a 7-byte load (boosted, or stepped with a post handler), hot with a
// 4-byte lea (emulated).

const (
	flagTF = 1 << 8
	flagIF = 1 << 9
)

var (
	breakpoint = probe.Trap{Kind: probe.TrapBreakpoint}
	pageFault  = probe.Trap{Kind: probe.TrapFault, Vector: 14, CR2: 0x1234}
)

// bench is a fake guest whose vCPUs do not run, and registers for each.
type bench struct {
	*testing.T
	f    *probetest.Fake
	e    *probe.Engine
	regs [2]probe.Regs
}

func newBench(t *testing.T) *bench {
	f := newFake(t, 2, probetest.Image())
	return &bench{T: t, f: f, e: f.Engine()}
}

// trapAt has vCPU cpu report a trap at rip.
func (b *bench) trapAt(cpu int, rip guest.GVA, t probe.Trap) probe.Verdict {
	b.regs[cpu].RIP = uint64(rip)
	return b.e.Hit(cpu, probe.State{Regs: &b.regs[cpu]}, t)
}

func (b *bench) register(ps ...*probe.Kprobe) {
	b.Helper()
	if err := b.e.Register(probe.Probes(ps)...); err != nil {
		b.Fatalf("register: %v", err)
	}
}

func (b *bench) unregister(ps ...*probe.Kprobe) {
	b.Helper()
	if err := b.e.Unregister(ps...); err != nil {
		b.Fatalf("unregister: %v", err)
	}
}

func (b *bench) symbol(name string) guest.GVA {
	b.Helper()
	s, err := b.f.Symbol(name)
	if err != nil {
		b.Fatal(err)
	}
	return s.Addr
}

// rip checks where a vCPU is.
func (b *bench) rip(cpu int, want guest.GVA) {
	b.Helper()
	if got := guest.GVA(b.regs[cpu].RIP); got != want {
		b.Errorf("RIP of vCPU %d: got %v, want %v", cpu, got, want)
	}
}

func (b *bench) flags(cpu int, want uint64) {
	b.Helper()
	if got := b.regs[cpu].RFLAGS; got != want {
		b.Errorf("RFLAGS of vCPU %d: got %#x, want %#x", cpu, got, want)
	}
}

func (b *bench) action(what string, v probe.Verdict, want probe.Action) {
	b.Helper()
	if v.Action != want {
		b.Errorf("%s: got action %d, want %d", what, v.Action, want)
	}
}

// startStepping registers a probe with a post handler on hot_load and sends vCPU
// 0 into its slot with the given flags. It returns the probe, the slot's start
// and end, and a count of post handlers.
func (b *bench) startStepping(flags uint64) (p *probe.Kprobe, start, end guest.GVA, posts *int) {
	b.Helper()
	posts = new(int)
	p = &probe.Kprobe{Symbol: "hot_load", Post: func(*probe.Context) { *posts++ }}
	b.register(p)
	b.enter(p, flags)
	start = guest.GVA(b.regs[0].RIP)
	return p, start, start + 7, posts
}

// enter has vCPU 0 hit p, which is stepped.
func (b *bench) enter(p *probe.Kprobe, flags uint64) {
	b.Helper()
	b.regs[0].RFLAGS = flags
	b.action("hit", b.trapAt(0, p.Addr, breakpoint), probe.Resume)
	b.flags(0, flags&^(flagIF|flagTF))
	if rip := guest.GVA(b.regs[0].RIP); !b.e.InSlot(rip) || !b.e.Stepping(0) {
		b.Errorf("RIP %v: in slot %v, stepping %v", rip, b.e.InSlot(rip), b.e.Stepping(0))
	}
}

func TestStepRestoresFlags(t *testing.T) {
	const cf, zf = 1, 1 << 6
	for _, c := range []struct {
		name          string
		before, after uint64 // after: as the instruction leaves them in the slot
		want          uint64
	}{
		{"IF set", 2 | flagIF, 2, 2 | flagIF},
		{"IF clear", 2, 2, 2},
		{"arithmetic flags are the instruction's", 2 | flagIF | cf, 2 | zf, 2 | flagIF | zf},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			p, _, end, posts := b.startStepping(c.before)
			b.regs[0].RFLAGS = c.after
			b.action("end of the slot", b.trapAt(0, end, breakpoint), probe.Resume)
			b.flags(0, c.want)
			b.rip(0, p.Addr+7)
			if *posts != 1 || b.e.Stepping(0) {
				t.Errorf("posts %d, stepping %v, want 1, false", *posts, b.e.Stepping(0))
			}
		})
	}
}

// TestTrapFlag: a guest that single-steps itself gets its trap after the probed
// instruction, not inside the slot.
func TestTrapFlag(t *testing.T) {
	want := probe.Trap{Kind: probe.TrapFault, Vector: 1, DR6: 0xffff4ff0}
	b := newBench(t)
	p, _, end, posts := b.startStepping(2 | flagTF | flagIF)
	v := b.trapAt(0, end, breakpoint)
	if v.Action != probe.Inject || v.Fault != want {
		t.Errorf("stepped: got %+v, want injection of %+v", v, want)
	}
	b.flags(0, 2|flagTF|flagIF)
	b.rip(0, p.Addr+7)
	if *posts != 1 {
		t.Errorf("posts: got %d, want 1", *posts)
	}

	q := &probe.Kprobe{Symbol: "hot"}
	b.register(q)
	b.regs[0].RFLAGS = 2 | flagTF
	if v := b.trapAt(0, q.Addr, breakpoint); v.Action != probe.Inject || v.Fault != want {
		t.Errorf("emulated: got %+v, want injection of %+v", v, want)
	}
	b.rip(0, q.Addr+4)
}

// TestUnregisterInSlot: a vCPU that stands in a slot whose probe goes away
// finishes the instruction, without a handler; also after the whole engine
// is closed.
func TestUnregisterInSlot(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(b *bench, p *probe.Kprobe) error
	}{
		{"unregister", func(b *bench, p *probe.Kprobe) error { return b.e.Unregister(p) }},
		{"disable", func(b *bench, p *probe.Kprobe) error { return b.e.Disable(p) }},
		{"close", func(b *bench, p *probe.Kprobe) error { return b.e.Close() }},
		{"register again", func(b *bench, p *probe.Kprobe) error {
			b.unregister(p)
			p.Addr = 0
			return b.e.Register(p)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			p, start, end, posts := b.startStepping(2 | flagIF)
			addr := p.Addr
			if err := c.end(b, p); err != nil {
				t.Fatal(err)
			}
			if !b.e.InSlot(start) || b.e.Home(start) != addr || b.e.Home(end) != addr+7 {
				t.Errorf("slot forgotten: %v stands for %v, its end for %v", start, b.e.Home(start), b.e.Home(end))
			}
			b.action("end of the slot", b.trapAt(0, end, breakpoint), probe.Resume)
			b.rip(0, addr+7)
			b.flags(0, 2|flagIF)
			if *posts != 0 {
				t.Errorf("post handlers ran %d times for a probe that was gone", *posts)
			}
			if s := b.e.Totals(0); s.Strays != 0 {
				t.Errorf("got %+v, want no strays", s)
			}
		})
	}
}

// TestStrayStep: the int3 of a slot on a vCPU that did not enter it (a host that
// let an interrupt in, a task that moved).
func TestStrayStep(t *testing.T) {
	for _, flags := range []uint64{2, 2 | flagIF} {
		b := newBench(t)
		p, _, end, posts := b.startStepping(flags)
		b.regs[1].RFLAGS = 2
		b.action("on another vCPU", b.trapAt(1, end, breakpoint), probe.Resume)
		b.rip(1, p.Addr+7)
		b.flags(1, flags)
		if s := b.e.Totals(1); s.Strays != 1 || s.Stepped != 0 {
			t.Errorf("vCPU 1: got %+v, want one stray", s)
		}
		// The first vCPU continues elsewhere: its step is abandoned at the next hit,
		// which is an ordinary one.
		q := &probe.Kprobe{Symbol: "hot"}
		b.register(q)
		b.regs[0].RFLAGS = 2
		b.action("emulated", b.trapAt(0, q.Addr, breakpoint), probe.Resume)
		if b.e.Stepping(0) {
			t.Error("vCPU 0 still counts as stepping")
		}
		b.enter(p, 2)
		if s := b.e.Totals(0); s.Abandoned != 1 {
			t.Errorf("vCPU 0: got %+v, want one abandoned", s)
		}
		b.trapAt(0, end, breakpoint)
		if *posts != 1 {
			t.Errorf("posts: got %d, want 1", *posts)
		}
		if s, _, _ := b.e.Stats(p); s.Hits != 2 || s.Handled != 2 || s.Missed != 0 {
			t.Errorf("counts: got %+v, want two handled hits", s)
		}
	}
}

// TestHitsClose: the sum of a probe's counts is right even while its handlers run, as
// in a listing of a running guest.
func TestHitsClose(t *testing.T) {
	f := newFake(t, 1, probetest.Image())
	e := f.Engine()
	var at []string
	var all []*probe.Kprobe
	look := func(what string) {
		at = append(at, what)
		for _, p := range all {
			if s, _, _ := e.Stats(p); s.Hits != s.Handled+s.Filtered+s.Missed {
				t.Errorf("in the %s: %s has %+v", what, p.Name, s)
			}
		}
	}
	k := &probe.Kprobe{Name: "kprobe", Symbol: "f_emulate",
		Filter: func(*probe.Context) bool { look("filter"); return true },
		Pre:    func(*probe.Context) int { look("pre handler"); return 0 },
		Post:   func(*probe.Context) { look("post handler") },
	}
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: "kretprobe", Symbol: "f_emulate"},
		Entry:  func(*probe.Context) int { look("entry handler"); return 0 },
		Return: func(*probe.Context) { look("return handler") },
	}
	all = []*probe.Kprobe{k, &r.Kprobe}
	if err := e.Register(k, r); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Call(0, k.Addr, 33); err != nil {
		t.Fatal(err)
	}
	look("end")
	if want := []string{"entry handler", "filter", "pre handler", "post handler", "return handler", "end"}; !slices.Equal(at, want) {
		t.Errorf("looked at %q, want %q", at, want)
	}
	for _, p := range all {
		if s, _, _ := e.Stats(p); s.Hits != 1 {
			t.Errorf("%s: %+v, want one hit", p.Name, s)
		}
	}
}

// TestStaleTrap: a breakpoint that was reported after its probe had gone.
func TestStaleTrap(t *testing.T) {
	b := newBench(t)
	p := &probe.Kprobe{Symbol: "hot"}
	b.register(p)
	b.unregister(p)
	b.action("stale", b.trapAt(0, p.Addr, breakpoint), probe.Resume)
	b.rip(0, p.Addr)
	q := &probe.Kprobe{Symbol: "hot", Disabled: true}
	b.register(q)
	b.action("disabled", b.trapAt(0, p.Addr, breakpoint), probe.Resume)
	b.rip(0, p.Addr)
	if s := b.e.Totals(-1); s.Stale != 2 || s.Breakpoints != 0 {
		t.Errorf("got %+v, want two stale traps", s)
	}
	if s, _, _ := b.e.Stats(q); s != (probe.Stats{}) {
		t.Errorf("counts of the disabled probe: %+v", s)
	}
}

// TestForeignTrap: breakpoints that are the guest's own.
func TestForeignTrap(t *testing.T) {
	b := newBench(t)
	rip := b.symbol("r_int3")
	b.action("the guest's int3", b.trapAt(0, rip, breakpoint), probe.NotOurs)
	b.rip(0, rip)
	b.action("nothing there", b.trapAt(0, 0x1000, breakpoint), probe.NotOurs)
	b.action("no such kind", b.trapAt(0, rip, probe.Trap{}), probe.NotOurs)
	b.action("a step", b.trapAt(0, rip, probe.Trap{Kind: probe.TrapStep}), probe.NotOurs)
	b.action("a watchpoint", b.trapAt(0, rip, probe.Trap{Kind: probe.TrapWatch}), probe.NotOurs)
	b.action("a fault", b.trapAt(0, rip, pageFault), probe.NotOurs)
	b.action("end of a step that never was", b.e.NoteStep(0, probe.State{Regs: &b.regs[0]}), probe.Resume)
	b.rip(0, rip)
	// The guest has put an int3 where a disabled probe is.
	p := &probe.Kprobe{Symbol: "hot", Disabled: true}
	b.register(p)
	if err := b.f.Poke(p.Addr, []byte{0xcc}); err != nil {
		t.Fatal(err)
	}
	b.action("the guest's int3 at a disabled probe", b.trapAt(0, p.Addr, breakpoint), probe.NotOurs)
	if s := b.e.Totals(0); s.Foreign != 3 {
		t.Errorf("got %+v, want three foreign", s)
	}
}

func TestFaultInSlot(t *testing.T) {
	b := newBench(t)
	p, start, end, posts := b.startStepping(2 | flagIF)
	b.action("fault", b.trapAt(0, start, pageFault), probe.NotOurs)
	b.rip(0, p.Addr)
	b.flags(0, 2|flagIF)
	if b.e.Stepping(0) || *posts != 0 {
		t.Errorf("after a fault: stepping %v, posts %d", b.e.Stepping(0), *posts)
	}
	if s, _, _ := b.e.Stats(p); s.Faults != 1 || s.SecondExits != 0 {
		t.Errorf("counts: got %+v, want one fault and no second exit", s)
	}

	// A trap that is reported after the instruction: it was executed.
	for _, tr := range []probe.Trap{{Kind: probe.TrapFault, Vector: 1}, {Kind: probe.TrapStep}, {Kind: probe.TrapWatch, DR6: 1}} {
		*posts = 0
		b.enter(p, 2|flagIF)
		b.action("trap", b.trapAt(0, end, tr), probe.NotOurs)
		b.rip(0, p.Addr+7)
		b.flags(0, 2|flagIF)
		if *posts != 1 || b.e.Stepping(0) {
			t.Errorf("%+v: posts %d, stepping %v, want 1, false", tr, *posts, b.e.Stepping(0))
		}
	}

	// The guest returned to the slot by itself, on a host that did not show the fault.
	b.enter(p, 2|flagIF)
	b.regs[1].RFLAGS = 2
	b.action("fault in somebody's slot", b.trapAt(1, start, pageFault), probe.NotOurs)
	b.rip(1, p.Addr)
	b.flags(1, 2|flagIF)
}

// TestFaultHandlerGone: a fault handler that was disabled while its instruction
// was under way is not asked.
func TestFaultHandlerGone(t *testing.T) {
	b := newBench(t)
	asked := 0
	p := &probe.Kprobe{Symbol: "hot_load", Fault: func(*probe.Context, probe.Trap) bool { asked++; return true }}
	b.register(p)
	b.enter(p, 2)
	if err := b.e.Disable(p); err != nil {
		t.Fatal(err)
	}
	b.action("fault", b.trapAt(0, guest.GVA(b.regs[0].RIP), pageFault), probe.NotOurs)
	b.rip(0, p.Addr)
	if err := b.e.Enable(p); err != nil {
		t.Fatal(err)
	}
	b.enter(p, 2)
	b.action("fault", b.trapAt(0, guest.GVA(b.regs[0].RIP), pageFault), probe.Resume)
	if asked != 1 {
		t.Errorf("asked %d times, want once", asked)
	}
}

func TestFaultInBoostedSlot(t *testing.T) {
	b := newBench(t)
	p := &probe.Kprobe{Symbol: "hot_load"}
	b.register(p)
	b.regs[0].RFLAGS = 2 | flagIF
	b.action("hit", b.trapAt(0, p.Addr, breakpoint), probe.Resume)
	b.flags(0, 2|flagIF) // a boosted slot may be interrupted
	if b.e.Stepping(0) {
		t.Error("a boosted slot counts as stepping")
	}
	start := guest.GVA(b.regs[0].RIP)
	b.regs[1].RFLAGS = 2
	for _, c := range []struct{ rip, want guest.GVA }{{start, p.Addr}, {start + 7, p.Addr + 7}, {start + 8, start + 8}} {
		b.action("fault", b.trapAt(1, c.rip, pageFault), probe.NotOurs)
		b.rip(1, c.want)
		b.flags(1, 2)
	}
}

// TestShadow: only an sti that sets IF holds off interrupts.
func TestShadow(t *testing.T) {
	b := newBench(t)
	sti := &probe.Kprobe{Symbol: "f_sti", Offset: 3} // cli, pushfq, popq, sti
	cli := &probe.Kprobe{Symbol: "f_sti"}
	b.register(sti, cli)
	for _, c := range []struct {
		p            *probe.Kprobe
		before, want uint64
		shadow       bool
	}{
		{sti, 2, 2 | flagIF, true},
		{sti, 2 | flagIF, 2 | flagIF, false},
		{cli, 2 | flagIF, 2, false},
	} {
		b.regs[0].RFLAGS = c.before
		if v := b.trapAt(0, c.p.Addr, breakpoint); v.Action != probe.Resume || v.Shadow != c.shadow {
			t.Errorf("%+d from %#x: got %+v, want shadow %v", c.p.Offset, c.before, v, c.shadow)
		}
		b.flags(0, c.want)
	}
}

// TestHaltIsBoosted: hlt waits for an interrupt, so it never runs with IF held
// clear.
func TestHaltIsBoosted(t *testing.T) {
	b := newBench(t)
	p := &probe.Kprobe{Symbol: "r_hlt", Pre: emptyHandler}
	b.register(p)
	b.regs[0].RFLAGS = 2 | flagIF
	b.action("hit", b.trapAt(0, p.Addr, breakpoint), probe.Resume)
	b.flags(0, 2|flagIF)
	if b.e.Stepping(0) || !b.e.InSlot(guest.GVA(b.regs[0].RIP)) {
		t.Errorf("stepping %v, in slot %v", b.e.Stepping(0), b.e.InSlot(guest.GVA(b.regs[0].RIP)))
	}
}

func TestInPlaceStep(t *testing.T) {
	b := newBench(t)
	posts, faults := 0, 0
	far := b.symbol("r_far") + 10
	p := &probe.Kprobe{Addr: far, Post: func(*probe.Context) { posts++ }, Fault: func(*probe.Context, probe.Trap) bool { faults++; return false }}
	b.register(p)
	state := probe.State{Regs: &b.regs[0]}

	b.action("hit", b.trapAt(0, far, breakpoint), probe.StepInPlace)
	b.rip(0, far)
	if o, ok := b.e.OriginalByte(far); !ok || o != 0x48 {
		t.Errorf("original byte: got %#x, %v, want 0x48", o, ok)
	}
	b.regs[0].RIP = uint64(far) + 2
	b.action("done", b.e.NoteStep(0, state), probe.Resume)

	b.action("hit", b.trapAt(0, far, breakpoint), probe.StepInPlace)
	b.regs[0].RIP = uint64(far) + 2
	b.action("done, reported as a step", b.e.Hit(0, state, probe.Trap{Kind: probe.TrapStep}), probe.Resume)

	// The guest's own single step, which comes while the host waits for the instruction's end.
	b.regs[0].RFLAGS |= flagTF
	b.action("hit", b.trapAt(0, far, breakpoint), probe.StepInPlace)
	b.regs[0].RIP = uint64(far) + 2
	b.action("done, and the guest's trap", b.e.Hit(0, state, probe.Trap{Kind: probe.TrapStep}), probe.NotOurs)
	b.regs[0].RFLAGS &^= flagTF

	b.action("hit", b.trapAt(0, far, breakpoint), probe.StepInPlace)
	b.action("fault", b.trapAt(0, far, pageFault), probe.NotOurs)
	b.rip(0, far)
	if posts != 3 || faults != 1 {
		t.Errorf("posts %d, faults %d, want 3, 1", posts, faults)
	}
	if s := b.e.Totals(0); s.InPlace != 3 || s.Faults != 1 {
		t.Errorf("got %+v, want three in-place steps and one fault", s)
	}
	if _, ok := b.e.OriginalByte(far + 1); ok {
		t.Error("an original byte where no site is")
	}
}
