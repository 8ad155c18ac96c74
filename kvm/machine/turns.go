package machine

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/kvm"
)

// turnTime is how long a vCPU may run while another one waits for its turn.
const turnTime = 500 * time.Microsecond

// turns lets one vCPU run at a time, while on is set. A vCPU has the turn from
// before KVM_RUN until it has returned. If the exit is a read from a watched
// page, it has the turn until its instruction is done.
//
// A stop of the world cannot hang here. It kicks all vCPUs, so the one that runs
// returns and passes its turn on, and KVM_RUN turns the next ones back at once.
type turns struct {
	on     bool // changes only while the world is stopped
	mu     sync.Mutex
	holder atomic.Pointer[vcpu] // has mu; its thread changes it
}

// runHoldingTurn is KVM_RUN in turn. It returns with the turn held, and so with
// the lock of turns, if the exit is an access to a page that is not mapped. The
// instruction is not done yet then, and turns.unlock follows at the vCPU's next
// exit or rest.
func (v *vcpu) runHoldingTurn() error {
	t := &v.m.turns
	if t.on {
		t.lock(v)
	}
	v.blockInterrupts()
	run := v.kvm.Run
	if v.traceEnd {
		run = v.kvm.Complete
	}
	err := run(&v.exit)
	if v.traceEnd && err == nil && v.exit.Reason == kvm.ReasonInterrupted {
		v.endTrace()
	}
	if !(err == nil && v.exit.Reason == kvm.ReasonMMIO) {
		t.unlock(v)
	}
	return err
}

// lock waits until v has the turn. It runs on the thread of v.
func (t *turns) lock(v *vcpu) {
	if t.holder.Load() == v {
		return
	}
	if !t.mu.TryLock() {
		var timer *time.Timer
		var stop sync.Mutex
		ended := false
		stop.Lock()
		timer = time.AfterFunc(turnTime, func() {
			v.m.mu.Lock()
			if h := t.holder.Load(); h != nil {
				h.kick()
			}
			v.m.mu.Unlock()
			stop.Lock()
			if !ended {
				timer.Reset(turnTime) // the kick may have come between two runs
			}
			stop.Unlock()
		})
		stop.Unlock()
		t.mu.Lock()
		stop.Lock()
		ended = true
		timer.Stop()
		stop.Unlock()
	}
	t.holder.Store(v)
}

// unlock passes the turn on, if v has it. It runs on the thread of v.
func (t *turns) unlock(v *vcpu) {
	if t.holder.Load() != v {
		return
	}
	t.holder.Store(nil)
	t.mu.Unlock()
}
