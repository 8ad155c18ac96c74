package probe

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
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
	control
	places    places
	opt       *optimizer
	text      text
	watches   watches
	returns   returns
	collector collector

	gone map[*registration]bool // on sites of their own, in no table; written with view held as well
	ends []*registration        // hidden ones of jprobes that are gone; guarded by mu

	awaited awaited // hidden ones

	samples tally // of Sample

	chain struct { // of the image syms
		mu    sync.Mutex
		syms  Symbols
		found *Chain
		err   error
	}
}

// New returns an engine for t without probes.
func New(t Target, o Options) (*Engine, error) {
	n := t.NumCPU()
	if n < 1 {
		return nil, fmt.Errorf("new probe engine: target has %d vCPUs", n)
	}
	e := &Engine{gone: map[*registration]bool{}}
	e.core = core{target: t, log: o.Log, code: code.New[resident](t), cpus: make([]cpu, n)}
	e.runner, _ = t.(Runner)
	e.perCPU, _ = t.(PerCPU)
	e.files, _ = t.(Files)
	e.spaces, _ = t.(Spaces)
	if e.pages, _ = t.(PageTables); e.pages == nil {
		e.pages, e.oneSpace = onePageTable{}, true
	}
	e.watched.Store(&watchTable{})
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.readProfile()
	e.can = [2]Capabilities{t.Capabilities(false), t.Capabilities(true)}
	for i := range e.cpus {
		c := &e.cpus[i]
		c.core, c.id = &e.core, i
		c.ctx = Context{CPU: i, cpu: c}
		c.mem = operand{target: t, user: e.pages}
	}
	e.places = places{core: &e.core, forbidden: map[string]bool{}}
	for _, name := range o.Blacklist {
		e.places.forbidden[name] = true
	}
	e.places.forget()
	e.opt = newOptimizer(&e.control, &e.places, o.OptimizeDelay)
	e.text = text{control: &e.control, opt: e.opt}
	e.onAlarm = func() { e.text.checkText(true) }
	e.returns = returns{control: &e.control, opt: e.opt}
	e.collector = collector{control: &e.control, places: &e.places, opt: e.opt}
	e.returns.look = e.collector.runIfDue
	e.watches = watches{control: &e.control, places: &e.places}
	e.watches.watcher, _ = t.(Watcher)
	e.samples = e.newTally("sample")
	return e, nil
}

// Profile returns how the guest says which task runs, and on which vCPU; nil: it does
// not. Any goroutine.
func (e *Engine) Profile() *guest.Profile { return e.tasks.Load() }

// Capabilities returns what the host can do with code of that privilege. Any goroutine.
func (e *Engine) Capabilities(user bool) Capabilities {
	e.view.RLock()
	defer e.view.RUnlock()
	return e.can[guest.Level(user)]
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
	e.closing = true
	err := e.unwatch(e.watches.list)
	err = errors.Join(err, e.remove(e.allRegistrations()))
	e.view.Lock()
	e.closed = true
	e.view.Unlock()
	if err != nil {
		return fmt.Errorf("close probe engine: %w", err)
	}
	return nil
}
