package machine

import (
	"time"

	"github.com/guestprobe/guestprobe/guest"
)

// ticker is the goroutine that runs while the guest does: payload.runBeside.
type ticker struct {
	stop, done chan struct{}
}

// startTicker starts payload.runBeside. Precondition: life held.
func (m *Machine) startTicker() {
	if m.ticker != nil {
		return
	}
	t := &ticker{stop: make(chan struct{}), done: make(chan struct{})}
	m.ticker = t
	go func() {
		defer close(t.done)
		m.payload().runBeside(m, t.stop)
	}()
}

// runBeside makes a timer interrupt due on every vCPU, every period, if there is one.
func (p bare) runBeside(m *Machine, stop <-chan struct{}) {
	if m.cfg.Tick <= 0 {
		return
	}
	clock := time.NewTicker(m.cfg.Tick)
	defer clock.Stop()
	for {
		select {
		case <-clock.C:
			m.markTickDue()
		case <-stop:
			return
		}
	}
}

// stopTicker ends payload.runBeside. Precondition: life held.
func (m *Machine) stopTicker() {
	if m.ticker != nil {
		close(m.ticker.stop)
		<-m.ticker.done
		m.ticker = nil
	}
}

// markTickDue marks a tick as due on all vCPUs, and wakes those that do not have
// one due yet.
func (s *vcpuSet) markTickDue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate.Load() != 0 {
		return // time does not pass for a paused guest
	}
	for _, v := range s.vcpus {
		switch {
		case v.tick.Swap(true):
			v.n.merged.inc()
		case v.where.rests():
			v.wake.Signal()
		default:
			v.kick()
		}
	}
}

// deliverTick injects the timer interrupt that is due, or asks KVM to return
// when the guest can take it. It runs on the vCPU's thread before every KVM_RUN.
//
// While a displaced instruction is being stepped, no interrupt may come: the
// engine has cleared IF, and no interrupt window is requested, because the
// instruction itself may change the flags.
func (v *vcpu) deliverTick() {
	want := false
	v.guard.lately = false
	if v.tick.Load() && !v.stepping() {
		if v.kvm.InterruptReady() {
			v.leaveEngineCode() // the interrupt may switch the task
		}
		if v.kvm.InterruptReady() {
			if err := v.kvm.Interrupt(guest.TimerVector); err != nil {
				v.m.log.Error("timer interrupt failed", "vcpu", v.id, "err", err)
			}
			v.tick.Store(false)
			v.guard.lately = true
			v.n.ticks.inc()
		} else {
			want = true
		}
	}
	v.kvm.RequestInterruptWindow(want)
}

// stepping reports whether the vCPU is in a slot that must end first.
func (v *vcpu) stepping() bool {
	e := v.m.engine
	return e.Stepping(v.id) && e.InSlot(guest.GVA(v.regs.RIP))
}
