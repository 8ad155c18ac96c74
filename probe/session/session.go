package session

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/source"
)

// maxProbes is the most probes of a Session.
const maxProbes = 100_000

// syncTime bounds the wait for events to reach subscriptions. It is never reached
// unless the process is starved of processor time.
const syncTime = 2 * time.Second

// Guest is the machine that runs a guest with an engine. A *machine.Machine of package kvm/machine is one. A Session calls the
// methods from any goroutine.
//
// A Guest may have additional methods:
//
//   - AllocShared, FreeShared and SharedBase, as in *machine.Machine, provide memory
//     that host and guest share. Without all three programs run only on the host.
//   - Call, as in *machine.Machine, makes the guest's kernel call a function of its
//     own; tracepoints need it.
//   - ReadText(guest.GVA, []byte) error reads kernel memory for programs that run
//     outside of a hit; otherwise the Target does.
//   - StopAll(*probe.Context) stops all vCPUs at the end of a hit, for Spec.Stop.
//   - OnModules(func()) makes a function run when modules of the kernel were loaded
//     or unloaded.
type Guest interface {
	// Engine returns the engine on which the Session registers probes.
	Engine() *probe.Engine
	// Target returns the engine's target.
	Target() probe.Target
	// Image returns the image of the guest's current boot.
	Image() guest.View
}

// stopper is a Guest whose vCPUs can all be stopped by a hit.
type stopper interface{ StopAll(*probe.Context) }

// Options configure a Session. The zero value is valid. Functions are called from any goroutine.
type Options struct {
	// Log receives warnings, and the lines of programs' trace_printk. nil discards
	// them.
	Log *slog.Logger

	// MapMemory is the number of bytes that maps of programs may take on the host, 0 means program.DefaultMemory.
	MapMemory int64

	// Types returns the types of the guest's program, which definitions and scripts use by name. nil means no types.
	Types func() event.Types

	// Source returns the guest's debug information, for places such as FILE:LINE and for names of variables. It is called when a
	// definition needs it. nil means no debug information.
	Source func() (*debuginfo.Info, error)

	// Clock reads the guest's time stamp counter and, at the same moment, now. Programs that use the time need it to run in the
	// guest. With a *machine.Machine m: c, err := m.Clock(now); return session.Clock(c), err.
	Clock func(now func() int64) (Clock, error)

	// Kernel and Tasks describe the Linux kernel of the guest to programs: its
	// symbols, types and configuration, and how to read users and cgroups of tasks.
	// nil for other guests.
	Kernel func() *bpf.Kernel
	Tasks  func() *linux.Tasks

	// Exits are the reasons for which vCPUs leave the guest, for scripts with probes of exits.
	Exits []string

	// Hold pauses a guest that runs; resume resumes it. SetFilter needs it: between the old filter and the new one no hit may pass.
	Hold func() (resume func() error, err error)
}

// Clock is a reading of the guest's time stamp counter.
type Clock struct {
	TSC uint64 // the counter
	At  int64  // the host's time at the same moment, in nanoseconds
	KHz uint64 // the counter's frequency

	// Counter returns the counter's present value, and may be called by any
	// goroutine. With it programs on the host have the same time as in the guest.
	// nil: they have the host's.
	Counter func() uint64
}

// Session is a set of probes on one engine. New makes one, and Close ends it.
type Session struct {
	attacher

	// listeners counts the subscriptions to all events, and ofReturns those to events
	// of return probes only. Without any, hits make no events, because they would not
	// be read.
	listeners, ofReturns atomic.Int64
	listenMu             sync.Mutex // serializes listen and listenReturns

	exits functionExits
	files source.Files

	// loading is held for reading while an object file is loaded and attached, and for
	// writing by a reset: both take memory of the guest. It is taken before changes.
	loading sync.RWMutex

	// changes serializes changes of the attached probes, however long they take. It
	// is never taken on the hit path; it is taken before all other locks.
	changes sync.Mutex
	lastID  uint64

	index
	closed atomic.Bool // nothing can be changed or found any more
}

// New returns a Session on the engine of g. There may be only one Session on an engine at a time.
func New(g Guest, o Options) *Session {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	hub := event.NewHub(g.Target().NumCPU(), event.HubOptions{})
	s := &Session{attacher: attacher{
		log: o.Log, guest: g, opt: o, engine: g.Engine(), hub: hub, epoch: hub.Now(), since: time.Now(), events: events{},
	}}
	s.index.init()
	s.programs, s.tracepoints = s.newPrograms(), newTracepoints(s)
	s.recorders.st = s
	s.semaphores = semaphores{at: &s.attacher, probes: map[placed]event.Place{}}
	hub.SetFeed(s.programs)
	s.tracepoints.adopt()
	if m, ok := g.(interface{ OnModules(func()) }); ok {
		m.OnModules(s.locateModules)
	}
	return s
}

// Now returns the time in nanoseconds since Epoch, on the clock of events.
func (st *Session) Now() int64 { return st.hub.Now() - st.epoch }

// Epoch returns the time at which the Session was made; times of events count from
// it.
func (st *Session) Epoch() time.Time { return st.since }

// types returns the types of the guest's program, or nil.
func (at *attacher) types() event.Types {
	if at.opt.Types == nil {
		return nil
	}
	return at.opt.Types()
}

// source returns the debug information of the guest's program.
func (at *attacher) source() (*debuginfo.Info, error) {
	if at.opt.Source == nil {
		return nil, debuginfo.ErrNone
	}
	return at.opt.Source()
}

// lockChanges takes the lock for a change, unless the Session is closed.
func (st *Session) lockChanges() error {
	st.changes.Lock()
	if st.closed.Load() {
		st.changes.Unlock()
		return ErrClosed
	}
	return nil
}

// RunExclusive calls f while no change is made. f must not call methods that change probes. It returns ErrClosed, or the error of f.
func (st *Session) RunExclusive(f func() error) error {
	if err := st.lockChanges(); err != nil {
		return err
	}
	defer st.changes.Unlock()
	return f()
}

// Close detaches all probes, and ends the subscriptions after the last event. A
// change in progress stops early if possible. Close may be called again. The error
// says whose code could not be restored.
func (st *Session) Close() error {
	st.closed.Store(true)
	st.changes.Lock()
	_, err := st.remove(st.snapshot())
	st.changes.Unlock()
	st.tracepoints.end() // afterwards the guest's memory may be freed
	st.hub.Close()
	return err
}

// Closed reports whether Close has been called.
func (st *Session) Closed() bool { return st.closed.Load() }

// Sync waits, at most two seconds, until the events of earlier hits are in the queues of the subscriptions.
func (st *Session) Sync() {
	ctx, cancel := context.WithTimeout(context.Background(), syncTime)
	defer cancel()
	if err := st.hub.Sync(ctx); err != nil {
		st.log.Warn("events are late", "err", err)
	}
}

// Armed reports whether probes are armed: see SetArmed.
func (st *Session) Armed() bool { return st.engine.Armed() }

// SetArmed arms all enabled probes, or disarms all probes but keeps them.
func (st *Session) SetArmed(on bool) error {
	st.changes.Lock()
	defer st.changes.Unlock()
	if on {
		return st.engine.ArmAll()
	}
	return st.engine.DisarmAll()
}

// Reset resets the guest: reset restores the guest's memory to the start of a boot,
// or to a snapshot, and leaves the guest paused. pause is called before that, to
// pause the guest. Probes stay attached, and programs keep their counts. No program
// or script is attached during the reset. The error is ErrClosed, an error of pause
// or reset, or says what programs lack in the new memory.
func (st *Session) Reset(pause, reset func() error) error {
	// A program attached in between would take memory that programs had before.
	st.loading.Lock()
	defer st.loading.Unlock()
	if err := st.lockChanges(); err != nil {
		return err
	}
	defer st.changes.Unlock()
	if err := pause(); err != nil {
		return err
	}
	// The counts of programs are in the guest's memory.
	st.programs.Save()
	if err := reset(); err != nil {
		st.programs.Keep()
		return err
	}
	if err := st.programs.Reset(); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	st.locateAgain(func(l *event.Layout) bool { return l.Fixed })
	st.recorders.forget()
	st.tracepoints.forget()
	return st.semaphores.renew()
}
