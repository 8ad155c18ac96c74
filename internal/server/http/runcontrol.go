package http

import (
	"log/slog"
	"slices"
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
	history  atomic.Pointer[[]int64]  // the last such times, ascending, at most maxHistory; nil: none
	debugger atomic.Pointer[debugged] // the active one, or nil
	resetMu  sync.Mutex               // held from a reset to the resume after it, and for each pause, resume and change of filters
}

// resume runs the guest. A guest that has not run yet begins its boot now.
// Callers hold resetMu.
func (rc *runControl) resume() error { return rc.resumeBy(rc.guest.Resume) }

// resumeBy is resume with another function that runs vCPUs.
func (rc *runControl) resumeBy(resume func() error) error {
	if rc.guest.Phase() == machine.PhaseCreated {
		rc.noteBoot(rc.probes.Now())
	}
	return resume()
}

// maxHistory is how many boots can pass before a slow stream misses one.
const maxHistory = 4096

// noteBoot keeps the time at which the guest begins to run from its start. Callers hold resetMu.
func (rc *runControl) noteBoot(at int64) {
	var all []int64
	if was := rc.history.Load(); was != nil {
		all = (*was)[max(0, len(*was)-maxHistory+1):]
	}
	all = append(slices.Clone(all), at)
	rc.history.Store(&all)
	rc.boot.Store(at)
}

// bootsBetween returns the times of the guest's boots after one and until another time.
func (rc *runControl) bootsBetween(after, until int64) []int64 {
	all := rc.history.Load()
	if all == nil {
		return nil
	}
	from, _ := slices.BinarySearch(*all, after+1)
	to, _ := slices.BinarySearch(*all, until+1)
	return (*all)[from:max(from, to)]
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
