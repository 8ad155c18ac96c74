package http

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/code"
	"github.com/guestprobe/guestprobe/probe/event"
)

// fakeGuest is the built-in guest's image in plain memory, with the real probe
// engine on it and no processor: a test hits probes itself.
type fakeGuest struct {
	img    *guest.Image
	types  event.Types
	view   guest.View // instead of img, if there is one
	engine *probe.Engine
	cpus   int

	onModules func()

	// world is held for writing while the world is stopped, for reading by a
	// hit.
	world sync.RWMutex
	mem   []fakeArea

	mu      sync.Mutex
	state   machine.State
	changed chan struct{}
	lines   []machine.ConsoleLine
	subs    map[*fakeConsole]bool
	taps    map[*fakeTap]bool
	room    int // for what is typed
	typed   []byte
	call    func(fn guest.GVA, args []uint64) (uint64, error)
	closed  int
}

type fakeArea struct {
	addr guest.GVA
	data []byte
}

const fakeStack guest.GVA = 0x7000_0000

func newFakeGuest(tb testing.TB, cpus int) *fakeGuest {
	tb.Helper()
	p, err := loadProgram(&options{})
	if err != nil {
		tb.Fatal(err)
	}
	return newFakeGuestOf(tb, p.image, cpus)
}

func newFakeGuestOf(tb testing.TB, img *guest.Image, cpus int) *fakeGuest {
	tb.Helper()
	g := &fakeGuest{img: img, types: bootable{image: img}.types(nil, slog.New(slog.DiscardHandler)), cpus: cpus, changed: make(chan struct{}), subs: map[*fakeConsole]bool{}, taps: map[*fakeTap]bool{}}
	g.state.Phase = machine.PhaseCreated
	for i := range cpus {
		g.state.VCPUs = append(g.state.VCPUs, machine.VCPUState{ID: i, Activity: machine.VCPUParked})
	}
	g.load()
	var err error
	if g.engine, err = probe.New(g, probe.Options{OptimizeDelay: -1}); err != nil {
		tb.Fatal(err)
	}
	return g
}

func (g *fakeGuest) load() {
	g.mem = []fakeArea{{fakeStack, make([]byte, 64<<10)}}
	for _, s := range g.img.Segments {
		data := make([]byte, s.MemSize)
		copy(data, s.Data)
		g.mem = append(g.mem, fakeArea{s.VAddr, data})
	}
}

var errFakeMemory = errors.New("fake memory: not mapped")

func (g *fakeGuest) at(addr guest.GVA, n int) ([]byte, error) {
	for _, a := range g.mem {
		if off := uint64(addr - a.addr); off < uint64(len(a.data)) && off+uint64(n) <= uint64(len(a.data)) {
			return a.data[off : off+uint64(n)], nil
		}
	}
	return nil, errFakeMemory
}

// The Target of the engine.

func (g *fakeGuest) NumCPU() int { return g.cpus }

func (g *fakeGuest) Capabilities(bool) probe.Capabilities { return probe.Capabilities{} }

func (g *fakeGuest) ReadMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	b, err := g.at(addr, len(p))
	copy(p, b)
	return err
}

func (g *fakeGuest) ReadText(addr guest.GVA, p []byte) error { return g.ReadMemory(0, addr, p) }

func (g *fakeGuest) WriteMemory(_ guest.GPA, addr guest.GVA, p []byte) error {
	b, err := g.at(addr, len(p))
	copy(b, p)
	return err
}

func (g *fakeGuest) OnModules(f func()) { g.onModules = f }

func (g *fakeGuest) Stop(f func(probe.World) error) error {
	g.world.Lock()
	defer g.world.Unlock()
	return f(fakeWorld{g})
}

func (g *fakeGuest) AllocExec(near guest.GVA, size int) (guest.GVA, error) {
	a := near&^(1<<20-1) + guest.GVA(64<<20+1<<20*len(g.mem))
	g.mem = append(g.mem, fakeArea{a, make([]byte, size)})
	return a, nil
}

func (g *fakeGuest) WriteExec(addr guest.GVA, p []byte) error { return g.WriteMemory(0, addr, p) }

func (g *fakeGuest) Symbols() probe.Symbols { return g.Image() }

type fakeWorld struct{ g *fakeGuest }

func (w fakeWorld) PatchText(addr guest.GVA, old, new []byte) error {
	b, err := w.g.at(addr, len(old))
	if err != nil {
		return err
	}
	if string(b) != string(old) {
		return &guest.TextMismatchError{Addr: addr, Want: old, Got: b}
	}
	copy(b, new)
	return nil
}

func (w fakeWorld) CPU(int) probe.State { return probe.State{Regs: &probe.Regs{}} }

func (w fakeWorld) Words([]code.Range, func(guest.GVA)) bool { return false }

// The Guest of the daemon.

func (g *fakeGuest) Engine() *probe.Engine { return g.engine }

func (g *fakeGuest) Target() probe.Target { return g }

func (g *fakeGuest) Types() event.Types               { return g.types }
func (g *fakeGuest) Source() (*debuginfo.Info, error) { return readImageSource(g.img) }

func (g *fakeGuest) Image() guest.View {
	if g.view != nil {
		return g.view
	}
	return g.img
}

func (g *fakeGuest) Phase() machine.Phase { return g.State().Phase }

func (g *fakeGuest) State() machine.State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

func (g *fakeGuest) Stats() machine.Stats {
	return machine.Stats{VCPUs: []machine.VCPUStats{{ID: 0, Exits: map[string]uint64{"debug": 3}, Total: 3}}}
}

func (g *fakeGuest) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

func (g *fakeGuest) Host() host.Report {
	return host.Report{KVM: host.KVM{Usable: true, API: 12, Path: "/dev/fake"},
		Traps: host.Traps{CPL0: host.TrapReport{Int3: host.DeliveryDebugExit}}}
}

// become changes the phase.
func (g *fakeGuest) become(p machine.Phase, set func(*machine.State)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state.Phase = p
	if set != nil {
		set(&g.state)
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *fakeGuest) move(p machine.Phase) error {
	switch g.State().Phase {
	case machine.PhaseExited, machine.PhaseCrashed:
		return machine.ErrNotRunnable
	}
	g.become(p, nil)
	return nil
}

func (g *fakeGuest) Resume() error { return g.move(machine.PhaseRunning) }

func (g *fakeGuest) Pause() error { return g.move(machine.PhasePaused) }

func (g *fakeGuest) Reset(context.Context) error {
	err := g.engine.Reload(func(save func()) (bool, error) {
		g.world.Lock()
		defer g.world.Unlock()
		save()
		g.load()
		return true, nil
	})
	if err != nil {
		return err
	}
	g.become(machine.PhaseCreated, func(s *machine.State) { s.ExitCode, s.Crash = 0, nil })
	return nil
}

func (g *fakeGuest) Call(_ context.Context, fn guest.GVA, args ...uint64) (uint64, error) {
	if g.call == nil {
		return 0, &machine.CallError{Fn: fn, Err: machine.ErrNoSafePoint}
	}
	return g.call(fn, args)
}

func (g *fakeGuest) Close(context.Context) error {
	g.mu.Lock()
	g.closed++
	g.mu.Unlock()
	return g.engine.Close()
}

// endbr64 may be at a function's entry; probes then sit behind it, and offset 0
// means there.
const endbr64 = "\xf3\x0f\x1e\xfa"

// hit lets vCPU cpu arrive at a kernel or user symbol. True means that a probe
// was there.
func (g *fakeGuest) hit(tb testing.TB, cpu int, symbol string, offset uint64, set func(*probe.Regs)) bool {
	tb.Helper()
	sym, err := g.img.Lookup(symbol)
	if err != nil {
		tb.Fatal(err)
	}
	g.world.RLock()
	defer g.world.RUnlock()
	if offset == 0 && string(g.img.Code(sym.Addr, 4)) == endbr64 {
		offset = 4
	}
	if b, err := g.at(sym.Addr+guest.GVA(offset), 1); err != nil || b[0] != 0xcc {
		return false // nothing traps there
	}
	regs := &probe.Regs{RIP: uint64(sym.Addr) + offset, RSP: uint64(fakeStack) + uint64(cpu+1)<<12, RFLAGS: 0x202}
	if set != nil {
		set(regs)
	}
	s := probe.State{Regs: regs}
	if sym.User {
		s.CPL = 3
	}
	return g.engine.Hit(cpu, s, probe.Trap{Kind: probe.TrapBreakpoint}).Action == probe.Resume
}

// print writes a console line.
func (g *fakeGuest) print(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := machine.ConsoleLine{Seq: uint64(len(g.lines)), Text: text}
	g.lines = append(g.lines, l)
	for c := range g.subs {
		select {
		case c.ch <- l:
		default:
			c.lost++
		}
	}
}

type fakeConsole struct {
	g    *fakeGuest
	ch   chan machine.ConsoleLine
	lost uint64
}

func (g *fakeGuest) Console(queue int) (consoleSub, []machine.ConsoleLine) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &fakeConsole{g: g, ch: make(chan machine.ConsoleLine, queue)}
	g.subs[c] = true
	return c, append([]machine.ConsoleLine(nil), g.lines...)
}

func (c *fakeConsole) C() <-chan machine.ConsoleLine { return c.ch }

func (c *fakeConsole) Lost() uint64 {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	return c.lost
}

func (c *fakeConsole) Close() {
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	delete(c.g.subs, c)
}

// write writes bytes of the console that are no line.
func (g *fakeGuest) write(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for t := range g.taps {
		t.bytes = append(t.bytes, text...)
		select {
		case t.ready <- struct{}{}:
		default:
		}
	}
}

type fakeTap struct {
	g     *fakeGuest
	ready chan struct{}
	bytes []byte
}

func (g *fakeGuest) Tap() (consoleTap, []machine.ConsoleLine) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := &fakeTap{g: g, ready: make(chan struct{}, 1)}
	g.taps[t] = true
	return t, append([]machine.ConsoleLine(nil), g.lines...)
}

func (t *fakeTap) Ready() <-chan struct{} { return t.ready }

func (t *fakeTap) Take() (b []byte, lost uint64) {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	b, t.bytes = t.bytes, nil
	return b, 0
}

func (t *fakeTap) Close() {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	delete(t.g.taps, t)
}

// Input takes what there is room for, and then waits in vain.
func (g *fakeGuest) Input(ctx context.Context, b []byte) (int, error) {
	g.mu.Lock()
	n := min(g.room, len(b))
	g.room -= n
	g.typed = append(g.typed, b[:n]...)
	g.mu.Unlock()
	if n == len(b) {
		return n, nil
	}
	<-ctx.Done()
	return n, ctx.Err()
}
