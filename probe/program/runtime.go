package program

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/evbpf"
)

// Config is what programs need from the machine and the daemon. A nil field is not
// available: programs that need it run on the host, or without it.
type Config struct {
	CPUs    int
	Memory  int64                                  // bytes of the host's memory that maps may take; 0 = DefaultMemory
	Shared  Shared                                 // memory of maps and blocks in the guest
	Engine  *probe.Engine                          // of the guest: it finds tasks, and detects when code there is unused
	Kernel  func() *bpf.Kernel                     // the guest kernel's data for programs; nil: not a kernel that programs support
	Tasks   func() *linux.Tasks                    // reads users and cgroups of a Linux guest's tasks
	Clock   func() (Clock, error)                  // time in the guest, on the clock of Now
	Stop    func(func() error) error               // runs a function while no vCPU runs
	StopAll func(*probe.Context)                   // stops all vCPUs together with the vCPU of a hit that stops; on its thread
	Read    func(guest.GVA, []byte) error          // reads memory of the guest's kernel, for programs that do not run at a hit
	Now     func() int64                           // nanoseconds; called on the vCPUs' threads
	Trace   func(prog string, cpu int, msg []byte) // prints a line of trace_printk; likewise, and must not keep msg
	Wake    func()                                 // makes Poll run soon; called on the vCPUs' threads
	// Refuse, if not "", is the reason why no program runs in the guest.
	Refuse string
	// BuildID returns the build ID of the file with the code at an address of the guest's image, or "". Hits call it.
	BuildID func(guest.GVA) string
}

// DefaultMemory is the default of Config.Memory.
const DefaultMemory = 1 << 30

// Runtime holds the shared state of all programs of one guest. Its methods may be
// called from any goroutine except in a probe handler.
type Runtime struct {
	cfg     Config
	heap    heap
	mem     [2]arena // 1 = for code of CPL3
	feed    feed
	lanes   []*lane       // by vCPU
	gate    *bpf.Map      // of programs on the host; evbpf.GateSpec
	records *bpf.Map      // of definitions on the host
	gateNow atomic.Uint64 // evbpf.Gate: the value of gate

	mu     sync.Mutex
	staged map[*blocks]bool  // all blocks in the guest
	alike  map[string]*alike // programs of definitions on the host, by evbpf.Code.Key
	defs   [2]guestRing      // 1 = at code of CPL3

	clock  guestClock
	faults faults
}

// New returns a runtime. It is an event.Feed.
func New(cfg Config) *Runtime {
	rt := &Runtime{cfg: cfg, clock: guestClock{read: cfg.Clock, now: cfg.Now}, staged: map[*blocks]bool{}, alike: map[string]*alike{}}
	if rt.heap.limit = cfg.Memory; cfg.Memory == 0 {
		rt.heap.limit = DefaultMemory
	}
	for i := range rt.mem {
		a := &rt.mem[i]
		a.shared, a.engine, a.user = cfg.Shared, cfg.Engine, i == 1
	}
	if cfg.Wake == nil {
		rt.cfg.Wake = func() {}
	}
	rt.lanes = newLanes(rt)
	var err error
	if rt.gate, err = bpf.NewMap(evbpf.GateSpec, cfg.CPUs, bpf.Heap{}); err != nil {
		panic("BUG: " + err.Error()) // the heap has room for it
	}
	rt.records = bpf.NewWriter("records", cfg.CPUs, records{rt.lanes})
	return rt
}

// arena returns the memory that host and guest share at a privilege.
func (rt *Runtime) arena(user bool) *arena { return &rt.mem[guest.Level(user)] }

// KnowsTasks reports whether programs can determine the running task.
func (rt *Runtime) KnowsTasks() bool { return rt.profile() != nil }

// profile returns how the guest identifies the running task, or nil.
func (rt *Runtime) profile() *guest.Profile {
	if rt.cfg.Engine == nil {
		return nil
	}
	return rt.cfg.Engine.Profile()
}

// Save reads records and counts from the guest's memory before a reset of the guest,
// which must not run.
func (rt *Runtime) Save() {
	rt.Poll()
	rt.feed.expectReset(true)
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for b := range rt.staged {
		b.freeze()
	}
}

// Keep follows Save when the guest was not reset after all, and before it runs: counts
// and records continue.
func (rt *Runtime) Keep() {
	rt.feed.expectReset(false)
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for b := range rt.staged {
		b.thaw()
	}
}

// Reset restores the initial state of everything programs have in the guest's memory,
// after a reset of the guest and before it runs.
func (rt *Runtime) Reset() error {
	for i := range rt.mem {
		if err := rt.mem[i].checkPlace(); err != nil {
			return err
		}
	}
	rt.clock.reset()
	// Reading the clock stops the world. The end of an object takes mu while it has stopped the world, so mu is not held here.
	var clocks [2]bpf.Clock // 1 = of objects
	for i := range clocks {
		var err error
		if clocks[i], err = rt.clock.getFor(i == 1); err != nil && !errors.Is(err, errNoClock) {
			return err
		}
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for b := range rt.staged {
		if b.object {
			b.init(clocks[1])
		} else {
			b.init(clocks[0])
		}
	}
	rt.feed.renew()
	for i := range rt.defs {
		rt.defs[i].want(evbpf.Gate(rt.gateNow.Load()))
	}
	return nil
}

// layout is the compiler's knowledge about guest code of that privilege.
func (rt *Runtime) layout(user bool, ch *probe.Chain) bpf.Layout {
	p := rt.profile()
	if p == nil {
		return bpf.Layout{Fixups: true}
	}
	l := bpf.Layout{Task: &bpf.TaskProfile{TID: p.PIDOff, TGID: p.TGIDOff, Comm: p.CommOff}, Fixups: rt.cfg.Engine.Capabilities(user).NoFault == ""}
	if p.GS {
		l.Task.Current = p.TaskOff
	} else {
		l.Task.Stack = &bpf.StackProfile{Mask: p.StackMask, Magic: p.StackMagic, MagicOff: p.MagicOff}
	}
	if l.Fixups && rt.cfg.Tasks != nil {
		if tasks := rt.cfg.Tasks(); tasks != nil {
			l.Task.Owner, l.Task.Cgroup = taskNumbers(tasks)
		}
	}
	if ch != nil {
		l.Frames = frames(ch, user)
	}
	return l
}

// taskNumbers returns where the guest's kernel has a task's user and group, and its
// cgroup.
func taskNumbers(tasks *linux.Tasks) (owner, cgroup *bpf.TaskNumber) {
	follow := func(n linux.Number) (offs []int32) {
		for _, off := range n.Follow {
			offs = append(offs, int32(off))
		}
		return offs
	}
	u, g, c := tasks.Numbers()
	if u.Size == 4 && g.Size == 4 {
		owner = &bpf.TaskNumber{Follow: follow(u), Off: int32(u.Off), Split: true, High: int32(g.Off)}
	}
	if c.Size == 8 {
		cgroup = &bpf.TaskNumber{Follow: follow(c), Off: int32(c.Off)}
	}
	return owner, cgroup
}

// checkGuest reports why a program cannot run in the guest, at code of that
// privilege, as far as that is known before it is compiled; nil if nothing prevents
// it.
func (rt *Runtime) checkGuest(p *bpf.Program, user bool) error {
	switch {
	case rt.cfg.Refuse != "":
		return errors.New(rt.cfg.Refuse)
	case rt.cfg.Shared == nil:
		return errNoShared
	case rt.profile() == nil:
		return errors.New("the guest has no profile that says which vCPU code runs on")
	}
	if why := p.HostReason(); why != "" {
		return errors.New(why)
	}
	for _, h := range p.Helpers() {
		info := helperInfo[h]
		walks := h == bpf.HelperGetStack || h == bpf.HelperGetStackID
		if why := rt.cfg.Engine.Capabilities(user).NoFault; why != "" && (info.Reads() || walks) {
			if ch, err := rt.stacksOf(p, user); info.Reads() || ch != nil || err != nil { // the engine's walks do not fault
				return fmt.Errorf("it calls %v, which may fault: %s", h, why)
			}
		}
		if !rt.layout(user, nil).Task.Knows(h) {
			return fmt.Errorf("it calls %v, which %s", h, info.Why)
		}
		if walks {
			if _, err := rt.stacksOf(p, user); err != nil {
				return fmt.Errorf("it calls %v, which %s: %w", h, info.Why, err)
			}
		}
		if h.IsClock() {
			if _, err := rt.clock.getFixed(); err != nil {
				return err
			}
		}
	}
	return nil
}

// helperInfo has the helpers by number.
var helperInfo = func() map[bpf.Helper]bpf.HelperInfo {
	m := map[bpf.Helper]bpf.HelperInfo{}
	for _, i := range bpf.Helpers() {
		m[i.ID] = i
	}
	return m
}()
