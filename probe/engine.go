package probe

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/code"
)

// Options are what an engine may be told. The zero value is fine.
type Options struct {
	// Log gets what an operator should know; nil discards it.
	Log *slog.Logger

	// Blacklist names functions that must not be probed, besides those that
	// the image lists.
	Blacklist []string

	// OptimizeDelay is how long a site waits for the optimizer after the change
	// that made it eligible. 0 stands for DefaultOptimizeDelay; less than 0: only
	// Engine.Optimize runs it.
	OptimizeDelay time.Duration
}

// Engine puts probes on a target and runs their handlers. All methods may be
// called from any goroutine, except that Hit, Stepped and Stepping of a vCPU
// belong to its own thread, and that those which change something return
// ErrInHandler in a handler.
type Engine struct {
	target  Target
	pages   PageTables
	runner  Runner  // nil: handlers cannot call the guest, and only Stop can tell who calls
	watcher Watcher // nil: nothing can be watched
	log     *slog.Logger
	can     [2]Capabilities // by CPL&1

	oneSpace bool // the target has no PageTables of its own

	// What the hit path reads.
	table     atomic.Pointer[table]
	code      *code.Memory[resident]
	slots     map[slotKey]*slot        // guarded by mu
	tramps    trampolines              // guarded by mu
	mirrors   atomic.Pointer[[]mirror] // nil until there is a jprobe with a mirror
	stackMask atomic.Uint64            // of the stacks that mirrors run on (guest.Profile); 0: not known
	cpus      []cpu
	watched   atomic.Pointer[watchTable]
	opt       optimizer

	// mu is held by everything that changes something. It is never taken on
	// the hit path, and Stop is called with it held.
	mu sync.Mutex

	// view guards the rest, Kprobe.reg, and the fields of sites and registrations
	// that are not atomic. It is written with mu held as well, inside stop; it is
	// never held while waiting, so a handler may list.
	view      sync.RWMutex
	sites     map[guest.GVA]*site
	gone      map[*registration]bool // on sites of their own, in no table
	forbidden map[string]bool        // by the API
	ends      []*registration        // hidden ones of jprobes that are gone
	disarmed  bool                   // by DisarmAll
	watches   []*watchpoint
	planted   []*watchpoint // of these: with a breakpoint
	closed    bool
	closing   bool
}

// New returns an engine for t without probes.
func New(t Target, o Options) (*Engine, error) {
	n := t.NumCPU()
	if n < 1 {
		return nil, fmt.Errorf("new probe engine: target has %d vCPUs", n)
	}
	e := &Engine{
		target:    t,
		log:       o.Log,
		code:      code.New[resident](t),
		cpus:      make([]cpu, n),
		sites:     map[guest.GVA]*site{},
		gone:      map[*registration]bool{},
		forbidden: map[string]bool{},
	}
	e.runner, _ = t.(Runner)
	e.watcher, _ = t.(Watcher)
	if e.pages, _ = t.(PageTables); e.pages == nil {
		e.pages, e.oneSpace = onePageTable{}, true
	}
	e.watched.Store(&watchTable{})
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.can = [2]Capabilities{t.Capabilities(false), t.Capabilities(true)}
	for _, name := range o.Blacklist {
		e.forbidden[name] = true
	}
	for i := range e.cpus {
		c := &e.cpus[i]
		c.id = i
		c.ctx = Context{CPU: i, engine: e}
		c.mem = operand{target: t, user: e.pages}
	}
	e.table.Store(emptyTable)
	e.initOptimizer(o.OptimizeDelay)
	return e, nil
}

// lock takes the engine's lock for a change, or says why there can be none.
func (e *Engine) lock() error {
	// Asked before the lock is: its holder may be waiting, in Stop, for the
	// very handler that calls.
	if e.runner != nil && e.runner.OnVCPU() {
		return ErrInHandler
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return ErrClosed
	}
	return nil
}

// stop runs f with the world stopped. An error that is not the engine's own is
// wrapped in one that is.
func (e *Engine) stop(f func(World) error) error {
	err := e.target.Stop(func(w World) error {
		e.view.Lock()
		defer e.view.Unlock()
		return f(w)
	})
	e.kick()
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	x := newError(CodeTarget, "the guest could not be changed", "")
	x.Cause = err
	return x
}

// publish makes the sites of e.sites what the hit path sees.
func (e *Engine) publish() {
	t := newTable(e.sites)
	t.phys = newPhysTable(e.sites)
	e.table.Store(t)
}

// Close takes every probe off and restores the guest's text. Afterwards
// changes fail with ErrClosed; Hit still finishes what is under way, so a vCPU
// that stands in a slot comes out of it. A second Close does nothing. The error
// says which text could not be restored; the engine is closed all the same.
func (e *Engine) Close() error {
	switch err := e.lock(); {
	case errors.Is(err, ErrClosed):
		return nil
	case err != nil:
		return err
	}
	defer e.mu.Unlock()
	var all []*registration
	for _, st := range e.sites {
		all = append(all, *st.chain.Load()...)
	}
	for r := range e.gone {
		all = append(all, r)
	}
	e.closing = true
	err := errors.Join(e.unwatch(e.watches), e.remove(all))
	e.view.Lock()
	e.closed = true
	e.view.Unlock()
	if err != nil {
		return fmt.Errorf("close probe engine: %w", err)
	}
	return nil
}
