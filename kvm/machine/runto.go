package machine

import (
	"context"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// RunTo resumes a stopped vCPU, or the whole guest if it is paused, until the
// vCPU reaches the instruction at addr with the stack pointer sp, or with any
// stack pointer if sp is 0. It stops there, or earlier for another reason;
// reached says which. A guest that was paused is paused again. It returns the
// errors of Step, errors of Engine.Register if nothing can stop there, and ctx's
// error, in which case the vCPU keeps running. If the guest ends, the error is
// ErrNotRunnable.
func (m *Machine) RunTo(ctx context.Context, cpu int, addr guest.GVA, sp uint64) (reached bool, err error) {
	var at guest.GVA
	err = m.Look(func(l *Look) error {
		r, err := l.Registers(cpu)
		at = r.Live
		return err
	})
	if err != nil {
		return false, err
	}
	if at == addr { // it must leave the address and return to it
		if _, err := m.Step(ctx, cpu, 1); err != nil {
			return false, err
		}
	}
	m.mu.Lock()
	paused, stop := m.phase != PhaseRunning, m.vcpus[cpu].stop
	m.mu.Unlock()
	if !paused && stop == nil {
		return false, fmt.Errorf("vcpu %d: %w", cpu, ErrNotStopped)
	}
	k := &probe.Kprobe{Name: "stop", Addr: addr, Pre: func(c *probe.Context) int {
		if c.CPU == cpu && (sp == 0 || c.Regs.RSP == sp) {
			c.Stop()
			if paused {
				m.StopAll(c)
			}
		}
		return 0
	}}
	if err := m.engine.Register(k); err != nil {
		return false, err
	}
	defer func() {
		if e := m.engine.Unregister(k); err == nil {
			err = e
		}
	}()
	resume := m.Resume
	if !paused {
		resume = func() error { return m.Continue(cpu) }
	}
	if err := resume(); err != nil {
		return false, err
	}
	for {
		changed := m.Changed()
		m.mu.Lock()
		stop, phase := m.vcpus[cpu].stop, m.phase
		m.mu.Unlock()
		switch phase {
		case PhaseClosed, PhaseExited, PhaseCrashed:
			return false, ErrNotRunnable
		}
		if stop != nil {
			return stop.RIP == k.Addr || stop.RIP == addr, nil
		}
		if paused && phase == PhasePaused {
			return false, nil // another caller has paused it
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}
