package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// How vCPUs are stopped, and stepped
//
// A handler asks for a stop (probe.Context.Stop). When its hit has been handled
// as far as necessary, the vCPU rests at the probed instruction, with the
// guest's own registers, outside of the engine's code. Otherwise it behaves like
// a vCPU that rests for another reason: the world can be stopped, probes come
// and go, a reset ends it.
//
// A step runs on the vCPU's own thread, which leaves its rest for it
// (debugstep.go). The engine emulates the instruction, or steps it in its place
// with the world stopped (inplace.go). So every host that supports probes can do
// it, and no interrupt comes in between.

// Stop is why a vCPU is stopped.
type Stop struct {
	CPU int
	RIP guest.GVA
	By  any       // the cause, as in probe.Context.StopBy; nil after a step
	All bool      // the others were stopped with it
	At  time.Time // when
	Seq uint64    // one for each
}

// newStop returns a new stop of the vCPU. Precondition: m.mu held.
func (v *vcpu) newStop(by any) *Stop {
	v.m.stops++
	return &Stop{CPU: v.id, RIP: guest.GVA(v.regs.RIP), By: by, All: v.haltAll, At: time.Now(), Seq: v.m.stops}
}

// noteStop records that the vCPU stops. Precondition: m.mu held.
func (m *Machine) noteStop(v *vcpu) {
	v.stop = v.newStop(m.engine.TakeStopper(v.id))
	if v.haltAll && m.phase == PhaseRunning {
		m.gate.Or(gateHold)
		for _, o := range m.vcpus {
			if o != v && !o.where.rests() {
				o.kick()
			}
		}
		m.setPhase(PhasePaused)
		v.haltAll = false
		return
	}
	v.haltAll = false
	m.setPhase(m.phase)
}

// StopAll makes all other vCPUs stop when the vCPU whose handler calls it stops.
func (m *Machine) StopAll(c *probe.Context) { m.vcpus[c.CPU].haltAll = true }

// Stops returns the present stops, by vCPU. Changed is closed when there is
// another one.
func (m *Machine) Stops() (out []Stop) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.vcpus {
		if v.stop != nil {
			out = append(out, *v.stop)
		}
	}
	return out
}

// releaseStopped resumes the stopped vCPUs for which which is true.
// Precondition: m.mu held.
func (s *vcpuSet) releaseStopped(which func(*vcpu) bool) {
	for _, v := range s.vcpus {
		if v.stop != nil && which(v) {
			v.stop = nil
			v.resumes = v.resumes || v.where.between() // else it was stopped in a hlt, which continues
		}
		if v.stop != nil {
			v.stop.All = false // others run again
		}
	}
	s.wakeAll()
}

// Continue resumes one stopped vCPU. If the guest is paused, only that vCPU
// runs, and the others are stopped (ResumeOnly). Errors are ErrNoVCPU,
// ErrNotStopped, and the errors of Resume.
func (m *Machine) Continue(cpu int) error {
	if cpu < 0 || cpu >= len(m.vcpus) {
		return fmt.Errorf("vcpu %d of %d: %w", cpu, len(m.vcpus), ErrNoVCPU)
	}
	m.mu.Lock()
	running, stop := m.phase == PhaseRunning, m.vcpus[cpu].stop
	if running && stop != nil {
		m.releaseStopped(func(v *vcpu) bool { return v.id == cpu })
		m.setPhase(m.phase)
	}
	m.mu.Unlock()
	switch {
	case !running:
		return m.ResumeOnly(func(n int) bool { return n == cpu })
	case stop == nil:
		return fmt.Errorf("vcpu %d: %w", cpu, ErrNotStopped)
	}
	return nil
}

// ErrNotStopped: the vCPU runs.
var ErrNotStopped = errors.New("it is not stopped: 'guestprobe guest pause', or a probe with --stop, stops it")

// ErrCannotStep: this host cannot execute only the one instruction.
var ErrCannotStep = errors.New("the instruction cannot be stepped")

// ErrHalted: the vCPU waits for an interrupt.
var ErrHalted = errors.New("it waits in hlt, and has no next instruction until an interrupt comes")

// ErrInEngine: the vCPU was stopped in the engine's code, where the guest's
// instructions cannot be stepped.
var ErrInEngine = errors.New("it stands in the code of a probe: resume the guest, and stop it by a probe with --stop")

// Step has a vCPU execute n instructions, and returns how many it has executed.
// The vCPU must be stopped, or its guest paused. Fewer instructions come with an
// error: ctx's, ErrNoVCPU, ErrNotStopped, ErrInEngine, ErrNotRunnable, or the
// reason why an instruction cannot be stepped. Probes on them are hit as usual.
// If an instruction raises an exception, the vCPU stops at the guest's handler.
// It also stops there if an exception was being delivered already. A hlt does
// not wait. Interrupts are not taken.
func (m *Machine) Step(ctx context.Context, cpu, n int) (int, error) {
	if m.inHandler() {
		return 0, fmt.Errorf("step: %w", probe.ErrInHandler)
	}
	if cpu < 0 || cpu >= len(m.vcpus) {
		return 0, fmt.Errorf("vcpu %d of %d: %w", cpu, len(m.vcpus), ErrNoVCPU)
	}
	v := m.vcpus[cpu]
	if n == 1 && ctx.Err() == nil && m.stepHere(v) {
		return 1, nil
	}
	r := &steps{n: n, ctx: ctx, done: make(chan struct{})}
	m.mu.Lock()
	err := v.unsteppableError()
	for errors.Is(err, ErrNotStopped) && v.comesToRest() && ctx.Err() == nil {
		m.rested.Wait() // not for long, because leaving the engine's code has a time limit
		err = v.unsteppableError()
	}
	if err == nil {
		v.steps = r
		m.wakeAll()
	}
	m.mu.Unlock()
	if err != nil {
		return 0, err
	}
	<-r.done
	return r.did, r.err
}

// unsteppableError returns why a vCPU cannot be stepped, or nil. Precondition: m.mu held.
func (v *vcpu) unsteppableError() error {
	err := error(nil)
	switch m := v.m; {
	case m.phase == PhaseClosed:
		return ErrClosed
	case m.phase == PhaseExited || m.phase == PhaseCrashed:
		return ErrNotRunnable
	case m.resetting:
		return ErrGuestReset
	case v.steps != nil:
		return ErrBusyStepping
	case !v.where.rests() || m.phase == PhaseRunning && v.stop == nil:
		err = ErrNotStopped
	case v.where.inHalt():
		err = ErrHalted
	case !v.where.between():
		err = ErrNotStopped
	case m.engine.InSlot(guest.GVA(v.regs.RIP)):
		err = ErrInEngine
	default:
		return nil
	}
	return fmt.Errorf("vcpu %d: %w", v.id, err)
}

// comesToRest reports whether the vCPU is stopped and is only leaving the
// engine's code, as another thread has asked: it will rest in a moment.
// Precondition: m.mu held.
func (v *vcpu) comesToRest() bool {
	return (v.m.phase != PhaseRunning || v.stop != nil) && (v.where == stateLeaving || v.where == stateLeavingStops)
}

// stepHere executes a resting vCPU's instruction on the caller's thread, if that
// needs neither the vCPU nor a handler, and reports whether it has. The
// alternative is to wake the vCPU's thread, and to be woken by it, which takes
// several times as long as everything else.
func (m *Machine) stepHere(v *vcpu) (done bool) {
	// The vCPU's thread will find the same error.
	_ = m.stopWorld(nil, func() error {
		m.mu.Lock()
		err := v.unsteppableError()
		m.mu.Unlock()
		if err != nil {
			return err
		}
		if on, err := v.kvm.Delivering(); on || err != nil {
			return err
		}
		s := v.state()
		code := make([]byte, x86.MaxLen)
		n := m.readOwnCode(s.Root, guest.GVA(s.Regs.RIP), code)
		if done = m.engine.Emulate(v.id, s, code[:n]); !done {
			return nil
		}
		v.kvm.SetRegsDirty()
		m.mu.Lock()
		defer m.mu.Unlock()
		v.noteStep()
		return nil
	})
	return done
}

// noteStep records that a vCPU has been stepped. Precondition: m.mu held.
func (v *vcpu) noteStep() {
	if v.m.phase == PhaseRunning || v.stop != nil {
		v.stop = v.newStop(nil)
	}
}

// ErrBusyStepping: another caller has the vCPU step.
var ErrBusyStepping = errors.New("it is being stepped already")

// forgetStop clears the reason for which the vCPU was stopped. Precondition:
// m.mu held, the vCPU's thread has ended.
func (v *vcpu) forgetStop() {
	v.stop, v.resumes = nil, false
	if v.steps != nil {
		v.steps.err = v.m.cutOffError()
		close(v.steps.done)
		v.steps = nil
	}
}

// cutOffError returns the reason why an operation of a vCPU was ended from
// outside. Precondition: m.mu held.
func (s *vcpuSet) cutOffError() error {
	switch s.phase {
	case PhaseExited, PhaseCrashed:
		return ErrNotRunnable
	case PhaseClosed:
		return ErrClosed
	}
	return ErrGuestReset
}

// readOwnCode reads the guest's own code at addr, as far as memory is mapped,
// and returns how much it has read.
func (m *Machine) readOwnCode(root guest.GPA, addr guest.GVA, code []byte) int {
	n := len(code)
	for n > 0 && m.space(root).Read(addr, code[:n]) != nil {
		n--
	}
	m.engine.UnpatchBytes(root, addr, code[:n])
	return n
}
