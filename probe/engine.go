package probe

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/code"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// Options configure an engine. The zero value is usable.
type Options struct {
	// Log receives messages for the operator; nil discards them.
	Log *slog.Logger

	// Blacklist names functions that must not be probed, in addition to those that
	// the image lists.
	Blacklist []string

	// OptimizeDelay is how long a site waits for the optimizer after the change that
	// made it eligible. 0 means DefaultOptimizeDelay; less than 0: only
	// Engine.Optimize runs it.
	OptimizeDelay time.Duration

	// Scans returns where the results of scans of a kernel's text are kept from one guest to the next. It is called with the engine's lock
	// held. nil, or a nil result: they are not kept.
	Scans func(guest.ID) *flow.Scans
}

// Engine puts probes on a target and runs their handlers. All methods may be called
// from any goroutine, except that Hit, NoteStep and Stepping of a vCPU belong to its
// own thread, and that methods which change something return ErrInHandler in a
// handler.
type Engine struct {
	registry

	samples tally // of Sample
	walkers walkers

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
	e := &Engine{registry: registry{gone: map[*registration]bool{}}}
	e.core = core{target: t, log: o.Log, code: code.New[resident](t), cpus: make([]cpu, n)}
	e.runner, _ = t.(Runner)
	e.perCPU, _ = t.(PerCPU)
	e.files, _ = t.(Files)
	e.spaces, _ = t.(Spaces)
	e.keys, _ = t.(Keys)
	e.watcher, _ = t.(Watcher)
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
		c.mem = operand{target: t, user: e.pages, keys: e.keys}
	}
	e.places = places{core: &e.core, forbidden: map[string]bool{}, scans: o.Scans}
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
	e.samples = e.newTally("sample")
	return e, nil
}

// Profile returns how the guest identifies the task that runs, and its vCPU; nil if
// it does not. Any goroutine.
func (e *Engine) Profile() *guest.Profile { return e.tasks.Load() }

// Capabilities returns what the host can do with code of that privilege. Any goroutine.
func (e *Engine) Capabilities(user bool) Capabilities {
	e.view.RLock()
	defer e.view.RUnlock()
	return e.can[guest.Level(user)]
}

// Close detaches every probe and restores the guest's text. Afterwards changes fail
// with ErrClosed; Hit still finishes hits that are under way, so a vCPU in a slot
// gets out of it. A second Close does nothing. The error names text that could not be
// restored; the engine is closed in that case too.
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
	err = errors.Join(err, e.remove(e.listRegistrations()))
	e.view.Lock()
	e.closed = true
	e.view.Unlock()
	if err != nil {
		return fmt.Errorf("close probe engine: %w", err)
	}
	return nil
}

// Chain returns how programs in the guest can walk stacks, if its code keeps frame
// pointers: by its call frame information, or, where it has none, because the host
// would assume frame pointers too. The error says why stacks cannot be walked. Any
// goroutine; not in a handler.
func (e *Engine) Chain() (*Chain, error) {
	syms := e.target.Symbols()
	e.chain.mu.Lock()
	defer e.chain.mu.Unlock()
	if e.chain.syms != syms {
		e.chain.syms = syms
		e.chain.found, e.chain.err = chainOf(syms)
	}
	return e.chain.found, e.chain.err
}

// Frame returns the rule of the code at pc, which a probe interrupts, if ch belongs
// to the guest's current image.
func (e *Engine) Frame(ch *Chain, pc guest.GVA) (FrameAt, error) {
	syms := e.target.Symbols()
	if ch.syms != syms {
		return FrameAt{}, errors.New("the guest has another image since")
	}
	img, _ := syms.(Image)
	f := FrameAt{pc, frameRule(pc, true, syms, img, true)}
	if !f.simple() {
		return FrameAt{}, fmt.Errorf("only the host finds the caller of the code at %v", pc)
	}
	return f, nil
}
