package machine

import (
	"errors"
	"time"

	"github.com/guestprobe/guestprobe/kvm"
)

// nestedLimit bounds how long guest code may run inside a hit, with the world
// stopped or a handler waiting.
const nestedLimit = time.Second

// errElsewhere: guest code that was run from inside a hit did not come back: it
// halted, or used up its time.
var errElsewhere = errors.New("the guest did not come back in time")

// runNested runs the guest from inside a hit until done says so, which is asked
// after every exit that is not a mere interruption; the exits that it does not
// claim are handled as usual. Timer interrupts stay away. Whatever happens, the
// vCPU is in a state from which it can go on.
func (v *vcpu) runNested(done func() bool) error { return v.runNestedFor(nestedLimit, done, nil) }

// runNestedFor is runNested with another limit. It ends also when left, unless that is nil, says so after an exit was handled.
func (v *vcpu) runNestedFor(limit time.Duration, done, left func() bool) error {
	deadline := time.Now().Add(limit)
	timer := time.AfterFunc(limit, func() {
		v.m.mu.Lock()
		defer v.m.mu.Unlock()
		v.kick()
	})
	defer timer.Stop()
	v.kvm.RequestInterruptWindow(false)
	for {
		if err := v.run(); err != nil {
			v.crashRun(err)
			return err
		}
		v.midIO = false
		if v.exit.Reason == kvm.ReasonInterrupted {
			// Those who kick because of the gate wait until this vCPU rests; it
			// looks at the gate before that.
			v.kvm.ClearKick()
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
