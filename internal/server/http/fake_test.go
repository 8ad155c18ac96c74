package http

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// fakeGuest is the built-in guest's image in plain memory, with the real probe
// engine on it and no processor: a test hits probes itself.
type fakeGuest struct {
	img   *guest.Image
	types event.Types
	view  guest.View // instead of img, if there is one
	*probetest.Fake

	onModules func()

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

const fakeStack = probetest.StackBase

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
	g := &fakeGuest{img: img, types: bootable{image: img}.types(nil, slog.New(slog.DiscardHandler)), changed: make(chan struct{}), subs: map[*fakeConsole]bool{}, taps: map[*fakeTap]bool{}}
	g.state.Phase = machine.PhaseCreated
	for i := range cpus {
		g.state.VCPUs = append(g.state.VCPUs, machine.VCPUState{ID: i, Activity: machine.VCPUParked})
	}
	var err error
	if g.Fake, err = probetest.NewFake(probetest.FakeOptions{Image: img, CPUs: cpus, Still: true, Bare: true, View: g.Image, Probe: probe.Options{OptimizeDelay: -1}}); err != nil {
		tb.Fatal(err)
	}
	return g
}

func (g *fakeGuest) ReadText(addr guest.GVA, p []byte) error { return g.ReadMemory(0, addr, p) }

func (g *fakeGuest) OnModules(f func()) { g.onModules = f }

// The Guest of the daemon.

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
	if err := g.Reload(); err != nil {
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
	return g.Engine().Close()
}

// hit lets vCPU cpu arrive at a kernel or user symbol. True means that a probe
// was there.
func (g *fakeGuest) hit(tb testing.TB, cpu int, symbol string, offset uint64, set func(*probe.Regs)) bool {
	tb.Helper()
	hit, err := g.Hit(cpu, symbol, offset, set)
	if err != nil {
		tb.Fatal(err)
	}
	return hit
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

func (c *fakeConsole) LostLines() uint64 {
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
