package machine

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/code"
)

// The gate holds the reasons for which vCPUs must rest. A vCPU reads it between
// two exits, without the lock; it changes under Machine.mu only.
const (
	gateStop uint32 = 1 << iota // the world is stopped
	gateHold                    // created, paused, exited or crashed
	gateQuit                    // the vCPU threads shall end
	gateStep                    // also vCPUs that are being stepped: for a pause that waits for them
	gateTidy                    // the guest is being saved: see vcpu.leaveEngineCode
)

// defaultStopTimeout bounds how long a stop waits for the vCPUs. A kick brings a
// vCPU out of guest mode in microseconds, but a handler can take longer.
const defaultStopTimeout = 10 * time.Second

// Stop implements probe.Target. Callers take turns in order of arrival. It works
// in every phase except closed.
func (m target) Stop(f func(probe.World) error) error {
	if m.inHandler() {
		return probe.ErrInHandler
	}
	if g := m.outside; g != nil {
		return g.stop(m.Machine, func() error { return m.stopRested(f) })
	}
	return m.stopRested(f)
}

// stopRested is Stop for vCPUs of this process.
func (m target) stopRested(f func(probe.World) error) error {
	return m.stopWorld(nil, func() error {
		if err := m.payload().onStop(m.Machine); err != nil {
			return err
		}
		if pins := m.booted.Load().pins; pins != nil {
			pins.Sweep()
		}
		w := world{m: m.Machine, given: make([]*probe.Regs, len(m.vcpus))}
		defer w.takeOver()
		return f(w)
	})
}

// inHandler reports whether the calling goroutine is a vCPU's. Only those run on
// the vCPUs' threads, because they are locked to them.
func (s *vcpuSet) inHandler() bool {
	tid := int32(unix.Gettid())
	for _, v := range s.vcpus {
		if v.tid.Load() == tid {
			return true
		}
	}
	return false
}

// stopWorld brings all vCPUs to rest, runs f, and resumes them.
//
// self is nil, or the vCPU whose own thread calls in the middle of a hit. It
// counts as resting while it waits for its turn, because it is out of guest
// mode, and another stopper that holds the turn may be waiting for it.
//
// A vCPU whose thread is to end leaves the queue: the one that ends it may have
// the turn and wait for it. The error is then the reason for the end.
func (s *vcpuSet) stopWorld(self *vcpu, f func() error) error {
	if self != nil {
		s.turns.unlock(self) // another vCPU may wait for its turn to run, and can rest only after it
	}
	s.mu.Lock()
	if s.phase == PhaseClosed {
		s.mu.Unlock()
		return ErrClosed
	}
	ticket := s.stoppers.join()
	if self != nil {
		self.setState(self.where.toQueued())
		s.rested.Broadcast()
	}
	if !s.stoppers.wait(ticket, func() bool { return self != nil && s.gate.Load()&gateQuit != 0 }) {
		defer s.mu.Unlock()
		self.setState(stateCut)
		self.kick() // on its way to the end it does not enter the guest
		return s.cutOffError()
	}
	if self != nil {
		self.setState(self.where.toStopping())
	}
	s.gate.Or(gateStop)
	err := s.awaitRest(self, s.stopTimeout, false)
	s.mu.Unlock()

	defer func() {
		s.mu.Lock()
		s.gate.And(^gateStop)
		s.stoppers.leave()
		s.wakeAll()
		if self != nil {
			self.setState(self.where.toStopped())
		}
		s.mu.Unlock()
	}()
	if err != nil {
		return err
	}
	return f()
}

// awaitRest kicks every vCPU but self and waits until all rest. Precondition:
// m.mu held, a gate bit set. The kicks come after the gate's bit: a vCPU that
// read the gate before is kicked out of KVM_RUN, or not let into it. A pause
// also waits for a vCPU whose write to its text is not done, or that has to
// leave the engine's code: such a vCPU runs on for a moment.
func (s *vcpuSet) awaitRest(self *vcpu, timeout time.Duration, pausing bool) error {
	var timer *time.Timer
	expired := false
	for {
		busy := -1
		for _, v := range s.vcpus {
			if v != self && (!v.where.rests() || pausing && (v.where == statePoking || v.timeAlone() != nil || !v.restsTidy())) {
				busy = v.id
				if timer == nil {
					v.kick()
				}
			}
		}
		if busy < 0 {
			break
		}
		if expired {
			return &StopTimeoutError{CPU: busy, After: timeout}
		}
		if timer == nil {
			timer = time.AfterFunc(timeout, func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				expired = true
				s.rested.Broadcast()
			})
			defer timer.Stop()
		}
		s.rested.Wait()
	}
	return nil
}

// wakeAll has every resting vCPU look at the gate again if the change may
// concern it. It leaves out others, because waking a thread for nothing costs a
// stopper more than everything else it does. Precondition: m.mu held.
func (s *vcpuSet) wakeAll() {
	for _, v := range s.vcpus {
		if s.gate.Load()&^gateStop != gateHold || v.steps != nil || v.where == stateParked {
			v.wake.Signal()
		}
	}
}

// world implements probe.World. It is valid while the world is stopped.
type world struct {
	m     *Machine
	given []*probe.Regs // of the vCPUs that were asked for: as they were
}

// PatchText implements probe.World.
func (w world) PatchText(addr guest.GVA, old, new []byte) error {
	if w.m.outside != nil {
		return errNotReachable("change text")
	}
	if g, ok := w.m.payload().(*linuxGuest); ok && linux.IsFile(addr) {
		return g.files.Load().patch(addr, old, new)
	}
	return w.m.text().Patch(addr, old, new)
}

// CPU implements probe.World. Changed registers take effect when the vCPU
// resumes.
func (w world) CPU(i int) probe.State {
	v := w.m.vcpus[i]
	if v.others == nil { // the machine has no vCPUs at the moment
		return probe.State{Regs: &v.frame}
	}
	if w.given[i] == nil {
		before := *v.regs
		w.given[i] = &before
	}
	return v.state()
}

// Words implements probe.World. It reads RAM, the loader's region, and all
// registers, including registers that a vCPU gets back after one of the host's
// calls.
func (w world) Words(ranges []code.Range, found func(guest.GVA)) bool {
	var in [2]guest.Window
	for i, r := range ranges {
		in[i] = guest.Window{Lo: uint64(r.Start), N: uint64(r.End - r.Start)}
	}
	word := func(v uint64) { found(guest.GVA(v)) }
	regs := func(r *probe.Regs) {
		for _, v := range r.Values() {
			if v-in[0].Lo < in[0].N || v-in[1].Lo < in[1].N {
				word(v)
			}
		}
	}
	for _, v := range w.m.vcpus {
		if v.kvm != nil {
			regs(v.regs)
		}
		if v.call != nil {
			regs(&v.call.saved)
		}
	}
	if err := w.Registers(func(reg []byte, _ bool) {
		guest.ScanBytes(reg, in[0], in[1], func(_ int, v uint64) { word(v) })
	}); err != nil {
		w.m.log.Error("registers could not be read: no code of probes is taken back", "err", err)
		return false
	}
	for i, r := range w.m.mem.ranges {
		if r.Kind == guest.RangeRAM {
			w.m.mem.forEachTouched(i, func(b []byte) {
				guest.Scan(b, in[0], in[1], word)
				guest.ScanUneven(b, in[0], in[1], func(_ int, v uint64) { word(v) })
			})
		}
	}
	return true
}

// Pieces implements probe.Memory.
func (w world) Pieces(f func(guest.GPA, []byte, func(guest.GPA) []byte) error) (err error) {
	more := func(pa guest.GPA) []byte {
		for _, r := range w.m.mem.ranges {
			if at := uint64(pa - r.Base); r.Kind == guest.RangeRAM && pa >= r.Base && at < r.Size && r.Size-at >= 8 {
				b, _ := w.m.mem.Slice(pa, 8)
				return b
			}
		}
		return nil
	}
	for i, r := range w.m.mem.ranges {
		if r.Kind != guest.RangeRAM {
			continue
		}
		base := w.m.mem.regions[i]
		w.m.mem.forEachTouched(i, func(b []byte) {
			if err == nil {
				err = f(r.Base+guest.GPA(cap(base)-cap(b)), b, more)
			}
		})
	}
	return err
}

// takeOver hands changed registers to KVM. It leaves unchanged registers alone:
// setting registers makes KVM forget an exception that it was about to deliver
// (KVM_SET_REGS, arch/x86/kvm/x86.c), such as the #BP of an int3 after which a
// vCPU was kicked out.
func (w world) takeOver() {
	for i, before := range w.given {
		if v := w.m.vcpus[i]; before != nil && v.kvm != nil && *v.regs != *before {
			v.kvm.SetRegsDirty()
		}
	}
}
