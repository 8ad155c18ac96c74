package machine

import (
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/kvm"
)

// turnTime is how long a vCPU may run while another one waits for its turn.
const turnTime = 500 * time.Microsecond

// turns lets one vCPU run at a time, while on is set. A vCPU has the turn from
// before KVM_RUN until it has returned; where the exit is a read from a watched
// page, until its instruction is done.
//
// A stop of the world cannot hang here: it kicks all vCPUs, so the one that runs
// comes back and gives its turn away, and the next ones are turned back by
// KVM_RUN at once.
type turns struct {
	on     bool // changes only while the world is stopped
	mu     sync.Mutex
	holder *vcpu // guarded by Machine.mu
}

// run is KVM_RUN in turn.
func (v *vcpu) run() error {
	if v.m.turns.on {
		v.await()
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
	if v.turn && !(err == nil && v.exit.Reason == kvm.ReasonMMIO) {
		v.yield()
	}
	return err
}

// await waits for the vCPU's turn.
func (v *vcpu) await() {
	if v.turn {
		return
	}
	t := &v.m.turns
	if !t.mu.TryLock() {
		var timer *time.Timer
		var stop sync.Mutex
		ended := false
		stop.Lock()
		timer = time.AfterFunc(turnTime, func() {
			v.m.mu.Lock()
			if t.holder != nil {
				t.holder.kick()
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
	v.turn = true
	v.m.mu.Lock()
	t.holder = v
	v.m.mu.Unlock()
}

// yield gives the turn away, if the vCPU has it.
func (v *vcpu) yield() {
	if !v.turn {
		return
	}
	v.turn = false
	t := &v.m.turns
	v.m.mu.Lock()
	t.holder = nil
	v.m.mu.Unlock()
	t.mu.Unlock()
}
