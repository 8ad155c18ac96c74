package machine

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// Sampled is called on a vCPU's thread, out of guest mode, with its registers,
// which it must not change. It must neither stop the world nor wait for another
// vCPU.
type Sampled func(cpu int, s probe.State)

// sample is a function that a vCPU has to call before it enters the guest again.
type sample struct {
	f     Sampled
	next  *sample
	depth int // how many there are
}

// maxSamples bounds the pending functions of one vCPU.
const maxSamples = 16

// Sample has each vCPU that does not rest leave the guest and call f, once. It
// returns how many will do so, and how many cannot, because they have not served
// earlier requests. For the guest of another VMM f is called on the caller's
// thread, for each vCPU whose registers are known.
func (m *Machine) Sample(f Sampled) (asked, missed int) {
	if g := m.outside; g != nil {
		return g.sample(m, f)
	}
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

// addSample adds f to the vCPU's pending functions. Precondition: m.mu held; the
// vCPU's thread takes them without it.
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

// runSamples calls the pending functions.
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

// OnExit sets a function that is called at each exit of a vCPU, before it is
// handled, with its reason. It is replaced by another one or nil; a call of the
// old one may still be in progress then.
func (m *Machine) OnExit(f func(cpu int, reason string, s probe.State)) {
	if f == nil {
		m.onExit.Store(nil)
		return
	}
	m.onExit.Store(&f)
}

// exitHook is the function that OnExit has set.
type exitHook = atomic.Pointer[func(cpu int, reason string, s probe.State)]

// callOnExit passes the current exit to OnExit's function.
func (v *vcpu) callOnExit() {
	if f := v.m.onExit.Load(); f != nil {
		(*f)(v.id, v.exit.Reason.String(), v.state())
	}
}
