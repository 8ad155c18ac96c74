package http

import (
	"context"
	"log/slog"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/internal/server/jail"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Guest is the machine as the daemon needs it. machineGuest implements it with
// kvm/machine; tests have an implementation that needs no /dev/kvm. Its methods
// may be called from any goroutine except a probe handler's.
type Guest interface {
	// Engine returns the engine of this guest's probes.
	Engine() *probe.Engine

	// Target returns the engine's target.
	Target() probe.Target

	// Image returns the image of the current boot.
	Image() guest.View

	// Types returns the types of its program, or nil where they are not known.
	Types() event.Types

	// Source returns the debug information of its program, which is read on the
	// first call.
	Source() (*debuginfo.Info, error)

	// State and Stats are snapshots. Phase returns the phase of State only.
	// Changed returns a channel that is closed at the next change of the phase.
	State() machine.State
	Phase() machine.Phase
	Stats() machine.Stats
	Changed() <-chan struct{}

	// Host returns the results of calibration.
	Host() host.Report

	// Resume and Pause may be repeated. They fail with
	// machine.ErrNotRunnable when the guest has ended.
	Resume() error
	Pause() error

	// Reset boots the same image again and leaves the guest paused before its
	// first instruction.
	Reset(ctx context.Context) error

	// Call runs a guest function; see machine.Machine.Call.
	Call(ctx context.Context, fn guest.GVA, args ...uint64) (uint64, error)

	// ReadText reads the guest's text, including the probes' changes. Stop runs f
	// while no vCPU is in guest mode.
	ReadText(addr guest.GVA, p []byte) error
	Stop(f func(probe.World) error) error

	// OnModules sets a function that is called when modules of the guest's kernel
	// were loaded or unloaded; see machine.Machine.OnModules.
	OnModules(f func())

	// Console returns a subscription to the console, and its last lines.
	Console(queue int) (consoleSub, []machine.ConsoleLine)

	// Tap returns the guest's raw console output, and the last lines before it.
	Tap() (consoleTap, []machine.ConsoleLine)

	// Input types at the console; see machine.Machine.Input.
	Input(ctx context.Context, b []byte) (int, error)

	// Close ends the guest.
	Close(ctx context.Context) error
}

// kernelGuest has the methods of a Guest that may run a Linux kernel.
type kernelGuest interface {
	Kernel() (machine.KernelState, bool)
}

// consoleSub receives console lines until it or the guest is closed.
type consoleSub interface {
	C() <-chan machine.ConsoleLine
	LostLines() uint64
	Close()
}

// consoleTap receives the bytes of the console until it or the guest is closed.
type consoleTap interface {
	Ready() <-chan struct{}
	Take() (b []byte, lost uint64)
	Close()
}

// machineGuest is a Guest under KVM.
type machineGuest struct {
	*machine.Machine
	types  event.Types
	source func() (*debuginfo.Info, error)
	info   *kernelInfo // nil: not Linux
}

// kernel implements linuxGuest.
func (g machineGuest) kernel() *kernelInfo { return g.info }

func newMachineGuest(o *options, p bootable, log *slog.Logger) (Guest, error) {
	tick := o.tick
	if tick == 0 {
		tick = -1 // 0 is the machine's default
	}
	cfg := machine.Config{
		Image: p.image, Linux: p.linux, VCPUs: o.vcpus, Memory: o.memory, Cmdline: o.cmdline, Tick: tick, Log: log, KVMPath: o.kvm,
		TimeHits: o.timeHits, Confine: jail.VCPU,
	}
	if o.scans != nil {
		cfg.Probe.Scans = o.scans.Scans
	}
	if p.linux != nil {
		h, err := checkLinuxHost(o)
		if err != nil {
			return nil, err
		}
		cfg.Host = h
	}
	m, err := machine.New(cfg)
	if err != nil {
		return nil, err
	}
	return newGuestOf(m, o, p, log), nil
}

// newGuestOf combines a machine with the debug information and symbols of its
// program.
func newGuestOf(m *machine.Machine, o *options, p bootable, log *slog.Logger) Guest {
	g := machineGuest{Machine: m, types: p.types(m.Image, log), source: sync.OnceValues(func() (*debuginfo.Info, error) { return p.readSource(o) })}
	if o.besideErr != nil {
		log.Warn("the guest's debug information cannot be read: variables, lines and its types are not known", "error", o.besideErr)
	}
	if p.linux != nil {
		g.info = &kernelInfo{image: p.linux.Kernel, path: o.kernel, view: g.Image, log: log}
	}
	return g
}

// Types implements Guest.
func (g machineGuest) Types() event.Types { return g.types }

// Source implements Guest.
func (g machineGuest) Source() (*debuginfo.Info, error) { return g.source() }

// Stop implements Guest.
func (g machineGuest) Stop(f func(probe.World) error) error { return g.Target().Stop(f) }

// Reset implements Guest.
func (g machineGuest) Reset(ctx context.Context) error { return g.Machine.Reset(ctx, nil) }

// Console implements Guest.
func (g machineGuest) Console(queue int) (consoleSub, []machine.ConsoleLine) {
	return g.Machine.Console().Subscribe(queue)
}

// Tap implements Guest.
func (g machineGuest) Tap() (consoleTap, []machine.ConsoleLine) { return g.Machine.Console().Tap() }
