package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// Defaults and limits of Config.
const (
	DefaultMemory = 64 << 20
	// DefaultLinuxMemory is the default memory of a Linux guest.
	DefaultLinuxMemory = 512 << 20
	DefaultTick        = 10 * time.Millisecond
	MinTick            = 100 * time.Microsecond
)

// Config describes a machine.
type Config struct {
	// Image is the guest program, an ELF file on its own, and Linux a kernel.
	// Exactly one of the two is required.
	Image *guest.Image
	Linux *LinuxConfig
	// VCPUs is the number of vCPUs, 1 to guest.MaxVCPUs; 0 means 1.
	VCPUs int
	// Memory is the size of RAM in bytes, whole pages; 0 means DefaultMemory.
	Memory uint64
	// Cmdline is passed to the guest unchanged.
	Cmdline string
	// Tick is the period of the timer interrupt, at least MinTick; 0 means
	// DefaultTick, negative means no timer.
	Tick time.Duration
	// Log receives log messages; nil means that nothing is logged.
	Log *slog.Logger
	// KVMPath is the KVM device; "" means /dev/kvm.
	KVMPath string
	// Host is the result of Calibrate, or nil: New calibrates.
	Host *host.Report
	// TimeHits measures the time that the host spends on each trap outside
	// KVM_RUN (VCPUStats.TrapNs): two more readings of the clock per trap.
	TimeHits bool
	// EmulatedStages lets handler stages run in the guest even where the host
	// emulates the code: slower than exits, but the same otherwise.
	EmulatedStages bool
	// Confine is called on the thread of each vCPU before that first enters the
	// guest, at each boot, and may drop privileges that the thread does not need
	// to run a vCPU. It may be nil. An error ends the guest.
	Confine func() error
	// Probe has the options of the engine. Its Log is set from Log when nil.
	Probe probe.Options
}

// Machine is one guest, its vCPUs and its probe engine. All methods may be
// called from any goroutine, unless they say otherwise.
//
// Lock order: life, then mu, then the locks inside kvm. The engine's own lock is
// taken before mu (it calls Stop) and never while mu is held.
type Machine struct {
	vcpuSet
	guestMemory

	cfg       Config
	log       *slog.Logger
	host      host.Report
	sys       *kvm.System
	engine    *probe.Engine
	console   *Console
	checks    atomic.Uint64 // self-check failures
	lastBad   atomic.Uint32 // code of the newest one
	tscKHz    atomic.Uint64 // 0: the host does not report it
	told      atomic.Bool   // a forwarded interrupt was logged
	cpuid     []kvm.CPUIDEntry
	earlyIDT  guest.GVA // see bare
	calls     guestCalls
	snapshots snapshots
	modules   atomic.Pointer[func()] // see OnModules
	guarding  atomic.Bool            // guard runs

	// life serialises Resume, Pause, Reset and Close. It guards vm, too.
	life   sync.Mutex
	ticker *ticker // guarded by life

	exitCode uint32       // these three are guarded by mu
	exit     *ExitReport  //
	crash    *CrashReport //

	onExit exitHook
}

// vcpuSet is the vCPUs, the reasons why they are stopped, and the phase of the
// guest.
type vcpuSet struct {
	vcpus []*vcpu // fixed; each exists for the life of the machine
	turns turns

	// gate holds the gate* bits: written under mu, read by the vCPUs without.
	gate atomic.Uint32

	// alone is the one vCPU that runs while the world is stopped, written under mu.
	alone atomic.Pointer[alone]

	mu          sync.Mutex
	rested      *sync.Cond // a vCPU came to rest
	stoppers    stopQueue
	phase       Phase
	resetting   bool          // the engine's part of a reset is not done: vCPUs exist, and must not run yet
	stops       uint64        // of vCPUs at hits, and after steps
	stopTimeout time.Duration // how long a stop waits for the vCPUs; changes with life held, too
	changed     chan struct{} // closed and replaced on every change of state
	over        chan struct{} // closed while the guest has ended
}

// guestMemory is the guest's memory, and the guest that was loaded into it.
type guestMemory struct {
	vm       *kvm.VM // guarded by life
	mem      memory
	exec     execAreas
	shared   sharedMemory
	boots    atomic.Pointer[payload] // the booted guest
	outside  *outsideGuest           // the same, if another VMM runs it; nil: it does not
	booted   atomic.Pointer[booted]
	watch    watches
	watching atomic.Bool // pages are protected

	// memory is held while the guest's memory is read for a caller that may come
	// at any time, and while it is freed.
	memory sync.RWMutex
	freed  bool
}

// New creates a machine and parks its vCPUs before the guest's first
// instruction. Close it. It raises GOMAXPROCS to the number of vCPUs and
// processors.
func New(cfg Config) (_ *Machine, err error) {
	m, err := newEmpty(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Host != nil {
		m.host = *cfg.Host
	} else if m.host, err = host.Calibrate(context.Background(), cfg.KVMPath); err != nil {
		return nil, fmt.Errorf("new machine: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("new machine: %w", err), m.release())
		}
	}()
	if m.sys, err = kvm.Open(cfg.KVMPath); err != nil {
		return nil, err
	}
	if m.cpuid, err = m.sys.SupportedCPUID(); err != nil {
		return nil, err
	}
	boot, err := m.setUpGuest(nil)
	if err != nil {
		return nil, err
	}
	if err = m.build(boot); err != nil {
		return nil, err
	}
	return m, nil
}

// newEmpty returns a machine without memory, VM and guest.
func newEmpty(cfg Config) (*Machine, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if cfg.Linux != nil {
		return assemble(cfg, &linuxGuest{cfg: cfg.Linux}), nil
	}
	return assemble(cfg, bare{cfg.Image}), nil
}

// assemble returns a machine for p without memory.
func assemble(cfg Config, p payload) *Machine {
	m := &Machine{cfg: cfg, log: cfg.Log, console: newConsole()}
	m.calls.m, m.snapshots.m = m, m
	m.mem = memory{Memory: new(guest.Memory)}
	m.vcpuSet = vcpuSet{stopTimeout: defaultStopTimeout, phase: PhaseCreated, changed: make(chan struct{}), over: make(chan struct{})}
	m.rested, m.stoppers = sync.NewCond(&m.mu), newStopQueue(&m.mu)
	m.gate.Store(gateHold)
	m.setPayload(p)
	return m
}

// setUpGuest creates the parts of a machine that are not its VM: memory, with
// the guest loaded, and the engine. If to is not nil, it will be restored next.
func (m *Machine) setUpGuest(to *snapshot.Snapshot) (*guest.BootState, error) {
	for i := range m.cfg.VCPUs {
		m.vcpus = append(m.vcpus, newVCPU(m, i))
	}
	ranges, err := m.payload().memoryMap(m.cfg.Memory)
	if err != nil {
		return nil, err
	}
	if err := m.mem.allocate(ranges); err != nil {
		return nil, err
	}
	boot, err := m.load(m.payload(), to)
	if err != nil {
		return nil, err
	}
	opt := m.cfg.Probe
	if opt.Log == nil {
		opt.Log = m.cfg.Log
	}
	m.engine, err = probe.New(m.target(), opt)
	return boot, err
}

// check fills in defaults and rejects invalid values.
func (c *Config) check() error {
	if (c.Image == nil) == (c.Linux == nil) {
		return &ConfigError{"Image", "exactly one of it and Linux is needed"}
	}
	if c.VCPUs == 0 {
		c.VCPUs = 1
	}
	if c.VCPUs < 0 || c.VCPUs > guest.MaxVCPUs {
		return &ConfigError{"VCPUs", fmt.Sprintf("%d is not within 1..%d", c.VCPUs, guest.MaxVCPUs)}
	}
	if c.Memory == 0 {
		c.Memory = DefaultMemory
		if c.Linux != nil {
			c.Memory = DefaultLinuxMemory
		}
	}
	if c.Memory%guest.PageSize != 0 || c.Memory > guest.MaxRAM {
		return &ConfigError{"Memory", fmt.Sprintf("%d is not a multiple of %d up to %d", c.Memory, guest.PageSize, uint64(guest.MaxRAM))}
	}
	if c.Linux != nil {
		c.Tick = -1 // the kernel has timers of its own
	} else if c.Tick == 0 {
		c.Tick = DefaultTick
	}
	if c.Tick > 0 && c.Tick < MinTick {
		return &ConfigError{"Tick", fmt.Sprintf("%v is less than %v", c.Tick, MinTick)}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Engine returns the probe engine of this machine.
func (m *Machine) Engine() *probe.Engine { return m.engine }

// Console returns the guest's console.
func (m *Machine) Console() *Console { return m.console }

// payload returns what the machine boots.
func (g *guestMemory) payload() payload { return *g.boots.Load() }

func (g *guestMemory) setPayload(p payload) { g.boots.Store(&p) }

// Image returns the symbols and code of the guest.
func (m *Machine) Image() guest.View { return m.payload().view() }

// Host returns the results of this host's calibration.
func (m *Machine) Host() host.Report { return m.host }

// Capabilities implements probe.Target. They come from calibration.
func (m target) Capabilities(user bool) probe.Capabilities {
	w := probe.Capabilities{InPlace: true, NoBreakpoint: m.host.NoBreakReason(user, m.payload().forwards())}
	w.NoExec, w.NoFault = m.payload().noExecReason(user), m.payload().noFaultReason(user)
	if !user {
		w.DetourPort = guest.PortDetour
		if m.host.Traps.CPL(0).Int3 == host.DeliveryEmulation && !m.cfg.EmulatedStages {
			w.NoStage = "this host emulates kernel code instruction by instruction: an exit is cheaper"
		}
	}
	return w
}

// OnVCPU implements probe.Runner.
func (m target) OnVCPU() bool { return m.inHandler() }

// NumCPU implements probe.Target.
func (m target) NumCPU() int { return len(m.vcpus) }

// target is the machine as its engine sees it.
type target struct{ *Machine }

func (m *Machine) target() target { return target{m} }

// Target returns the guest as the engine uses it: its memory by address space,
// executable memory, and the stopped world. Handlers do not need it, because
// they have a probe.Context. It takes more care to use: see package probe.
func (m *Machine) Target() probe.Target { return m.target() }

var _ interface {
	probe.Target
	probe.PageTables
	probe.Runner
	probe.Detours
	probe.Watcher
} = target{}

// Symbols implements probe.Target.
func (m target) Symbols() probe.Symbols { return m.Image() }
