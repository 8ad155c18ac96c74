package http

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// runControl runs and stops the guest for clients: it pauses, resumes, steps and
// calls, knows the debugger that holds the guest, and counts boots. Requests use
// it from any goroutine. Changes of the guest's run state hold resetMu; boots,
// boot and debugger are atomic.
type runControl struct {
	*inspector
	log     *slog.Logger
	opt     *options
	logLost func() uint64
	jail    *api.Jail // the process's restrictions, set before clients are served; nil: not a daemon

	boots    atomic.Int64
	boot     atomic.Int64             // when the guest began to run from its start, on the clock of events
	debugger atomic.Pointer[debugged] // the active one, or nil
	resetMu  sync.Mutex               // held from a reset to the resume after it, and for each pause, resume and change of filters
}

// resume runs the guest. A guest that has not run yet begins its boot now.
// Callers hold resetMu.
func (rc *runControl) resume() error { return rc.resumeBy(rc.guest.Resume) }

// resumeBy is resume with another function that runs vCPUs.
func (rc *runControl) resumeBy(resume func() error) error {
	if rc.guest.Phase() == machine.PhaseCreated {
		rc.boot.Store(rc.probes.Now())
	}
	return resume()
}

// errHeld: a debugger has stopped the guest.
var errHeld = &api.Error{Code: api.CodeGuestState, Errno: "EBUSY", Message: "a debugger has stopped the guest", Detail: "resume it there, or detach the debugger"}

// free returns errHeld if a debugger has stopped the guest. Callers hold
// resetMu.
func (rc *runControl) free() error {
	if d := rc.debugger.Load(); d != nil && d.holds {
		return errHeld
	}
	return nil
}

// guestLife is the part of the guest's life that a script has seen.
type guestLife struct {
	boots int64
	boot  int64 // when it began to run from its start
	ended bool
}

// guestLife returns the present state of the guest's life.
func (rc *runControl) guestLife() guestLife {
	_, _, ended := guestEnd(rc.guest.State())
	return guestLife{boots: rc.boots.Load(), boot: rc.boot.Load(), ended: ended}
}
