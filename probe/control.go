package probe

import (
	"errors"
	"sync"
)

// control serializes changes of the engine, and holds the state that applies to all
// probes.
type control struct {
	core

	// mu is held by everything that changes the engine. It is never taken on the hit
	// path, and Stop is called with it held.
	mu sync.Mutex

	// view guards the non-atomic data that listings read: the rest of this,
	// Kprobe.reg, and fields of sites and registrations. Writers hold mu too, inside
	// stop; it is never held while waiting, so a handler may list.
	view     sync.RWMutex
	disarmed bool // by DisarmAll
	silent   bool // and nothing needs the essential probes any more
	closing  bool
	closed   bool
}

// lock takes mu for a change. The caller holds it only if lock returns nil; otherwise
// the error says why nothing can change now.
func (k *control) lock() error {
	// Ask before locking: the holder of the lock may be waiting, in Stop, for the
	// very handler that calls.
	if k.runner != nil && k.runner.OnVCPU() {
		return ErrInHandler
	}
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return ErrClosed
	}
	return nil
}

// stop runs f with the world stopped. An error that is not the engine's own is
// wrapped in one that is. Callers hold mu.
func (k *control) stop(f func(World) error) error {
	err := k.target.Stop(func(w World) error {
		k.view.Lock()
		defer k.view.Unlock()
		return f(w)
	})
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	x := newError(CodeTarget, "the guest could not be changed", "")
	x.Cause = err
	return x
}

// wanted reports whether a probe on st should be armed, and can be. An essential one
// is, even when everything is disarmed, and so is the one at the end of a mirror that
// is under way.
func (k *control) wanted(st *site) bool {
	c := st.chain.Load()
	return !st.changed && (!k.disarmed || st.mirrorEnd.Load() && k.mirroring() || !k.silent && c.essential()) && c.live()
}
