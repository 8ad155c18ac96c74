package machine

import (
	"errors"
	"time"

	"github.com/guestprobe/guestprobe/kvm"
)

// nestedLimit bounds how long guest code may run inside a hit, with the world
// stopped or a handler waiting.
const nestedLimit = time.Second

// errElsewhere: guest code that was run from inside a hit did not return: it
// halted, or used up its time.
var errElsewhere = errors.New("the guest did not come back in time")

// runNested runs the guest from inside a hit until done returns true. It calls
// done after every exit that is not a mere interruption. Exits that done does
// not claim are handled as usual. Timer interrupts are held back. In every case
// the vCPU is left in a state from which it can continue.
func (v *vcpu) runNested(done func() bool) error { return v.runNestedFor(nestedLimit, done, nil) }

// runNestedFor is runNested with another limit. If left is not nil, it also ends
// when left returns true after an exit was handled.
func (v *vcpu) runNestedFor(limit time.Duration, done, left func() bool) error {
	deadline := time.Now().Add(limit)
	timer := time.AfterFunc(limit, func() {
		v.m.mu.Lock()
		defer v.m.mu.Unlock()
		v.kick()
	})
	defer timer.Stop()
	kicked := false
	defer func() {
		// The next KVM_RUN may come without another look at the gate. With the kick it returns at once.
		if kicked {
			v.kick()
		}
	}()
	v.kvm.RequestInterruptWindow(false)
	for {
		if err := v.runHoldingTurn(); err != nil {
			v.crashRun(err)
			return err
		}
		v.midIO = false
		if v.exit.Reason == kvm.ReasonInterrupted {
			// A thread that kicks because of the gate waits until this vCPU rests. The kick may also be
			// the timer's.
			v.kvm.ClearKick()
			kicked = true
		} else if done() {
			return nil
		} else if v.exit.Reason == kvm.ReasonHLT {
			v.countExit()
			v.asleep = true
			return errElsewhere
		} else if v.handle(); left != nil && left() {
			return nil
		}
		if v.m.ended() {
			return ErrNotRunnable
		}
		if !time.Now().Before(deadline) {
			return errElsewhere
		}
	}
}
