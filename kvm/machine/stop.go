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
// A handler asks for a stop (probe.Context.Stop). When its hit has been dealt with as far as it is to be, the vCPU
// rests: at the probed instruction, with the guest's own registers, in none of the engine's code. All else goes on as
// with a vCPU that rests for another reason: the world can be stopped, probes come and go, a reset ends it.
//
// A step is done on the vCPU's own thread, which leaves its rest for it (debugstep.go): the engine emulates the
// instruction, or has it stepped in its place with the world stopped (inplace.go), so that all
// hosts can do it that serve probes, and no interrupt comes in between.

// Stop is what a vCPU is stopped for.
type Stop struct {
	CPU int
	RIP guest.GVA
	By  any       // as probe.Context.StopBy has it; nil behind a step
	All bool      // the others were stopped with it
	At  time.Time // when
	Seq uint64    // one for each
}

// newStop is the stop of a vCPU now. Precondition: m.mu held.
func (v *vcpu) newStop(by any) *Stop {
	v.m.stops++
	return &Stop{CPU: v.id, RIP: guest.GVA(v.regs.RIP), By: by, All: v.haltAll, At: time.Now(), Seq: v.m.stops}
}

// noteStop notes that the vCPU stops. Precondition: m.mu held.
func (m *Machine) noteStop(v *vcpu) {
	v.stop = v.newStop(m.engine.StoppedBy(v.id))
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

// StopAll has the vCPU whose handler calls it take all others along when it stops.
func (m *Machine) StopAll(c *probe.Context) { m.vcpus[c.CPU].haltAll = true }

// Stopped returns the stops that there are, by vCPU. Changed is closed when there is another one.
func (m *Machine) Stopped() (out []Stop) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.vcpus {
		if v.stop != nil {
			out = append(out, *v.stop)
		}
	}
	return out
}

// releaseStopped lets those vCPUs go on that are stopped, and for which which is true. Precondition: m.mu held.
func (m *Machine) releaseStopped(which func(*vcpu) bool) {
	for _, v := range m.vcpus {
		if v.stop != nil && which(v) {
			v.stop = nil
			v.goOn = v.goOn || v.where.between() // else it was stopped in a hlt, which it goes on with
		}
		if v.stop != nil {
			v.stop.All = false // others go on
		}
	}
	m.wakeAll()
}

// Continue lets one vCPU go on that is stopped. Of a guest that is paused it goes on alone, and the others are
// stopped (ResumeOnly). Errors are ErrNoVCPU, ErrNotStopped, and those of Resume.
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

// ErrCannotStep: this host cannot execute just the one instruction.
var ErrCannotStep = errors.New("the instruction cannot be stepped")

// ErrHalted: the vCPU waits for an interrupt.
var ErrHalted = errors.New("it waits in hlt, and has no next instruction until an interrupt comes")

// ErrInEngine: the vCPU was stopped in the engine's code, which has no steps of the guest's.
var ErrInEngine = errors.New("it stands in the code of a probe: resume the guest, and stop it by a probe with --stop")

// Step has a vCPU that is stopped, or of a guest that is paused, execute n instructions, and returns how many it
// has: fewer with an error, which is ctx's, ErrNoVCPU, ErrNotStopped, ErrInEngine, ErrNotRunnable, or says why an
// instruction cannot be stepped. Probes on them are hit as ever. Where the exception of an
// instruction leads to the guest's handler the vCPU stops there; so it does where one was on its way already. A hlt does not wait. Interrupts are not taken.
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
	err := v.steppable()
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

// steppable returns why a vCPU cannot be stepped, or nil. Precondition: m.mu held.
func (v *vcpu) steppable() error {
	err := error(nil)
	switch m := v.m; {
	case m.phase == PhaseClosed:
		return ErrClosed
	case m.phase == PhaseExited || m.phase == PhaseCrashed:
		return ErrNotRunnable
	case m.resetting:
		return ErrResetMeanwhile
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

// stepHere executes the instruction at which a vCPU rests on the caller's thread, and reports whether it has: where that
// takes neither the vCPU nor a handler. The vCPU's thread would have to be woken, and to wake the caller, which takes
// several times as long as all else.
func (m *Machine) stepHere(v *vcpu) (done bool) {
	// An error is for who has the vCPU's thread do it.
	_ = m.stopWorld(nil, func() error {
		m.mu.Lock()
		err := v.steppable()
		m.mu.Unlock()
		if err != nil {
			return err
		}
		if on, err := v.kvm.Delivering(); on || err != nil {
			return err
		}
		s := v.state()
		code := make([]byte, x86.MaxLen)
		n := m.ownCode(s.Root, guest.GVA(s.Regs.RIP), code)
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

// noteStep notes that a vCPU has been stepped. Precondition: m.mu held.
func (v *vcpu) noteStep() {
	if v.m.phase == PhaseRunning || v.stop != nil {
		v.stop = v.newStop(nil)
	}
}

// ErrBusyStepping: somebody else has the vCPU step.
var ErrBusyStepping = errors.New("it is being stepped already")

// forgetStop ends what the vCPU was stopped for. Precondition: m.mu held, the vCPU's thread has ended.
func (v *vcpu) forgetStop() {
	v.stop, v.goOn = nil, false
	if v.steps != nil {
		v.steps.err = v.m.cutOffError()
		close(v.steps.done)
		v.steps = nil
	}
}

// cutOffError is why what a vCPU was doing for somebody has come to no end of its own. Precondition: m.mu held.
func (m *Machine) cutOffError() error {
	switch m.phase {
	case PhaseExited, PhaseCrashed:
		return ErrNotRunnable
	case PhaseClosed:
		return ErrClosed
	}
	return ErrResetMeanwhile
}

// ownCode reads what the guest itself has at addr, as far as there is anything, and returns how much.
func (m *Machine) ownCode(root guest.GPA, addr guest.GVA, code []byte) int {
	n := len(code)
	for n > 0 && m.space(root).Read(addr, code[:n]) != nil {
		n--
	}
	m.engine.Own(root, addr, code[:n])
	return n
}
