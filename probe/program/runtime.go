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

// Config is what programs need of the machine and the daemon. What is nil is
// not there: programs that need it run on the host, or do without.
type Config struct {
	CPUs    int
	Memory  int64                                  // bytes of the host that maps may take; 0 = DefaultMemory
	Shared  Shared                                 // memory of maps and blocks in the guest
	Engine  *probe.Engine                          // of the guest: it knows how tasks are found, and when code there is gone
	Kernel  func() *bpf.Kernel                     // what programs may ask of the guest's kernel; nil: it is none that they are made for
	Tasks   func() *linux.Tasks                    // how users and cgroups of a Linux guest's tasks are read
	Clock   func() (bpf.Clock, error)              // time in the guest, on the clock of Now
	Stop    func(func() error) error               // runs a function while no vCPU runs
	StopAll func(*probe.Context)                   // has all vCPUs stop with the one of a hit that stops; on its thread
	Read    func(guest.GVA, []byte) error          // memory of the guest's kernel, for programs that run on no hit
	Now     func() int64                           // nanoseconds; called on the vCPUs' threads
	Trace   func(prog string, cpu int, msg []byte) // a line of trace_printk; likewise, and msg is not to be kept
	Wake    func()                                 // has Poll called soon; called on the vCPUs' threads
	// Refuse, when not "", is why no program runs in the guest.
	Refuse string
}

// DefaultMemory is the default of Config.Memory.
const DefaultMemory = 1 << 30

// Runtime holds what all programs of one guest share. Its methods may be called
// from any goroutine but a probe handler's.
type Runtime struct {
	cfg     Config
	heap    heap
	mem     [2]arena // by 1 = for code of CPL3
	feed    feed
	lanes   []*lane       // by vCPU
	gate    *bpf.Map      // of programs on the host; evbpf.GateSpec
	records *bpf.Map      // of definitions on the host
	gateNow atomic.Uint64 // evbpf.Gate: what gate says

	mu     sync.Mutex
	staged map[*blocks]bool  // all that are in the guest
	alike  map[string]*alike // programs of definitions on the host, by evbpf.Code.Key
	defs   [2]guestRing      // by 1 = at code of CPL3

	clockMu  sync.Mutex
	clockNow bpf.Clock // zero: not found out yet
}

// New returns a runtime. It is an event.Feed.
func New(cfg Config) *Runtime {
	rt := &Runtime{cfg: cfg, staged: map[*blocks]bool{}, alike: map[string]*alike{}}
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

// KnowsTasks reports whether programs can tell the running task.
func (rt *Runtime) KnowsTasks() bool { return rt.profile() != nil }

// profile returns how the guest says who runs, or nil.
func (rt *Runtime) profile() *guest.Profile {
	if rt.cfg.Engine == nil {
		return nil
	}
	return rt.cfg.Engine.Profile()
}

// Save takes what the guest's memory says, records and counts, before a reset of
// the guest, which does not run.
func (rt *Runtime) Save() {
	rt.Poll()
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for b := range rt.staged {
		b.freeze()
	}
}

// Reset puts everything that programs have in the guest's memory back to how
// it was at first, behind a reset of the guest and before it runs.
func (rt *Runtime) Reset() error {
	for i := range rt.mem {
		if err := rt.mem[i].moved(); err != nil {
			return err
		}
	}
	rt.clockMu.Lock()
	rt.clockNow = bpf.Clock{}
	rt.clockMu.Unlock()
	// Reading the clock stops the world. The end of an object takes mu while it has stopped the world, so mu is not held here.
	clock, err := rt.clock()
	if err != nil && !errors.Is(err, errNoClock) {
		return err
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	for b := range rt.staged {
		b.init(clock)
	}
	rt.feed.renew()
	for i := range rt.defs {
		rt.defs[i].want(evbpf.Gate(rt.gateNow.Load()))
	}
	return nil
}

var errNoClock = errors.New("the time in the guest is not known")

// clock is how the guest's counter becomes a time. To find it out stops the
// vCPUs, so it is done once for every boot.
func (rt *Runtime) clock() (bpf.Clock, error) {
	rt.clockMu.Lock()
	defer rt.clockMu.Unlock()
	switch {
	case rt.cfg.Clock == nil:
		return bpf.Clock{}, errNoClock
	case rt.clockNow == (bpf.Clock{}):
		c, err := rt.cfg.Clock()
		if err != nil {
			return bpf.Clock{}, fmt.Errorf("%w: %w", errNoClock, err)
		}
		rt.clockNow = c
	}
	return rt.clockNow, nil
}

// layout is what compiled code of that privilege may rely on.
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
	if ch != nil {
		l.Frames = frames(ch, user)
	}
	return l
}

// where says whether a program can run in the guest, at code of that privilege, as far
// as that can be told before it is compiled; an error is the reason why not.
func (rt *Runtime) where(p *bpf.Program, user bool) error {
	switch {
	case rt.cfg.Refuse != "":
		return errors.New(rt.cfg.Refuse)
	case rt.cfg.Shared == nil:
		return errNoShared
	case rt.profile() == nil:
		return errors.New("the guest has no profile that says which vCPU code runs on")
	}
	if why := p.WhyHost(); why != "" {
		return errors.New(why)
	}
	for _, h := range p.Helpers() {
		info := helperInfo[h]
		walks := h == bpf.HelperGetStack || h == bpf.HelperGetStackID
		if why := rt.cfg.Engine.Capabilities(user).NoFault; why != "" && (info.Reads() || walks) {
			return fmt.Errorf("it calls %v, which may fault: %s", h, why)
		}
		if walks {
			if _, err := rt.cfg.Engine.Chain(); err != nil {
				return fmt.Errorf("it calls %v, which %s: %w", h, info.Why, err)
			}
		}
		if h.IsClock() {
			if _, err := rt.clock(); err != nil {
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
