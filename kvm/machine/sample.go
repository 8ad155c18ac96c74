package machine

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// Sampled is called on a vCPU's thread, out of guest mode, with its registers, which it does not
// change. It must neither stop the world nor wait for another vCPU.
type Sampled func(cpu int, s probe.State)

// sample is what a vCPU is to call before it enters the guest again.
type sample struct {
	f     Sampled
	next  *sample
	depth int // how many there are
}

// maxSamples bounds what one vCPU is asked for at a time.
const maxSamples = 16

// Sample has each vCPU that does not rest leave the guest and call f, once. It returns how many
// will, and how many could not be asked, because they have not served those that came before.
func (m *Machine) Sample(f Sampled) (asked, missed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gate.Load() != 0 {
		return 0, 0
	}
	for _, v := range m.vcpus {
		switch {
		case v.where.rests():
		case !v.addSample(f):
			missed++
		default:
			asked++
			v.kick()
		}
	}
	return asked, missed
}

// addSample adds f to what the vCPU is to call. Precondition: m.mu held; the vCPU's thread takes them
// all without it.
func (v *vcpu) addSample(f Sampled) bool {
	for {
		s := &sample{f: f, next: v.samples.Load(), depth: 1}
		if s.next != nil {
			s.depth = s.next.depth + 1
		}
		if s.depth > maxSamples {
			return false
		}
		if v.samples.CompareAndSwap(s.next, s) {
			return true
		}
	}
}

// runSamples calls what the vCPU was asked for.
func (v *vcpu) runSamples() {
	if v.samples.Load() == nil {
		return
	}
	v.completeExit()
	for s := v.samples.Swap(nil); s != nil; s = s.next {
		s.f(v.id, v.state())
	}
}

// ExitReasons are the names of the reasons for which a vCPU can leave the guest, as in
// VCPUStats.Exits.
func ExitReasons() (names []string) {
	for i := range kvm.NumReasons {
		names = append(names, kvm.Reason(i).String())
	}
	return append(names, kvm.ReasonInterrupted.String())
}

// OnExit has f called at each exit of a vCPU, before it is dealt with, with its reason, until
// another one or nil takes its place. A call may still be under way then.
func (m *Machine) OnExit(f func(cpu int, reason string, s probe.State)) {
	if f == nil {
		m.onExit.Store(nil)
		return
	}
	m.onExit.Store(&f)
}

// exitHook is what OnExit has set.
type exitHook = atomic.Pointer[func(cpu int, reason string, s probe.State)]

// callOnExit tells of the exit at hand.
func (v *vcpu) callOnExit() {
	if f := v.m.onExit.Load(); f != nil {
		(*f)(v.id, v.exit.Reason.String(), v.state())
	}
}
