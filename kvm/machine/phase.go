package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// setPhase changes the phase and wakes those that wait for a change.
// Precondition: m.mu held.
func (s *vcpuSet) setPhase(p Phase) {
	switch was := s.phase.over(); {
	case p.over() && !was:
		close(s.over)
	case was && !p.over():
		s.over = make(chan struct{})
	}
	s.phase = p
	close(s.changed)
	s.changed = make(chan struct{})
}

// Ended returns a channel that is closed while the guest has exited or crashed,
// or the machine is closed. After a reset, Ended returns another channel.
func (m *Machine) Ended() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over
}

// Phase returns the phase as in State, at less cost.
func (m *Machine) Phase() Phase {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.phase
}

// tellChange wakes those that wait for a change, after a change of something
// other than the phase.
func (s *vcpuSet) tellChange() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setPhase(s.phase)
}

// Changed returns a channel that is closed at the next change of phase, or when
// the kernel of a Linux guest has panicked. Call it before State, so that no
// change is missed.
func (m *Machine) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// State returns a snapshot. It stops nothing.
func (m *Machine) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := State{
		Phase: m.phase, ExitCode: m.exitCode, Exit: m.exit, Crash: m.crash,
		Checks:  CheckReports{Count: m.checks.Load(), Last: m.lastBad.Load()},
		Outside: m.outside != nil,
	}
	for _, v := range m.vcpus {
		c := VCPUState{ID: v.id, Activity: v.resumedActivity(), Stop: v.stop}
		if v.where.rests() && v.others != nil {
			c.RIP, c.CPL, c.Space = guest.GVA(v.regs.RIP), v.cpl(), v.space()
			c.Symbol = symbolize(m.Image(), c.RIP)
		}
		s.VCPUs = append(s.VCPUs, c)
	}
	return s
}

// ended reports whether the guest has exited or crashed.
func (s *vcpuSet) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase.over()
}

// Wait returns when the guest has exited or crashed, or the machine is closed,
// with the state at that time; or ctx's error.
func (m *Machine) Wait(ctx context.Context) (State, error) {
	for {
		changed := m.Changed()
		s := m.State()
		switch s.Phase {
		case PhaseExited, PhaseCrashed, PhaseClosed:
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return m.State(), ctx.Err()
		}
	}
}

// endExited ends the guest with an exit code; the first one counts. A goroutine
// that waits for a change of phase (Changed) may log it.
func (v *vcpu) endExited(code uint32) {
	m := v.m
	m.end(func() {
		m.exitCode = code
		m.exit = &ExitReport{CPU: v.id, Symbol: symbolize(m.Image(), guest.GVA(v.regs.RIP)), Console: m.console.tailText(endConsoleLines)}
		m.setPhase(PhaseExited)
	})
}

// endCrashed ends the guest with a report: the first one counts.
func (m *Machine) endCrashed(r *CrashReport) {
	m.end(func() { m.crash = r; m.setPhase(PhaseCrashed) })
}

// end stops all vCPUs for good and calls set with m.mu held, unless the guest
// had ended before.
func (m *Machine) end(set func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.phase {
	case PhaseExited, PhaseCrashed, PhaseClosed:
		return
	}
	m.gate.Or(gateHold)
	for _, v := range m.vcpus {
		if !v.where.rests() {
			v.kick()
		}
	}
	m.console.flush()
	set()
	m.calls.endAll(ErrNotRunnable)
}

// countSelfCheck counts a self-check that the guest reports as failed. The guest
// decides how often it does so. So only some are logged: the first ten, then
// each whose number is a power of two.
func (m *Machine) countSelfCheck(v *vcpu, code uint32) {
	m.lastBad.Store(code)
	if n := m.checks.Add(1); n <= 10 || n&(n-1) == 0 {
		m.log.Error("guest self-check failed", "vcpu", v.id, "code", fmt.Sprintf("%#x", code), "count", n)
	}
}

// Resume runs the vCPUs. Calling it while they run has no effect. A handler must
// not call it.
func (m *Machine) Resume() error { return m.resume(func(*vcpu) bool { return true }) }

// ResumeUnheld is Resume, except for vCPUs that a handler has stopped with a
// cause (probe.Context.StopBy): they stay stopped. If such a handler has stopped
// all of them, the guest stays paused.
func (m *Machine) ResumeUnheld() error {
	for _, s := range m.Stops() {
		if s.By != nil && s.All {
			return nil
		}
	}
	return m.resume(func(v *vcpu) bool { return v.stop.By == nil })
}

// ResumeOnly is Resume for the vCPUs that which accepts. The others are stopped
// where they are, if they are not already, as by a handler that gives no cause.
// A guest that runs is paused first.
func (m *Machine) ResumeOnly(which func(cpu int) bool) error {
	if err := m.Pause(); err != nil {
		return err
	}
	err := m.stopWorld(nil, func() error { // so that no vCPU is in the middle of a step
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, v := range m.vcpus {
			if (m.phase == PhasePaused || m.phase == PhaseCreated) && v.stop == nil && !which(v.id) {
				v.stop = v.newStop(nil)
				v.due.raise(duePark)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return m.resume(func(v *vcpu) bool { return which(v.id) })
}

// resume runs the guest, and of its stopped vCPUs those that which accepts.
func (m *Machine) resume(which func(*vcpu) bool) error {
	if m.inHandler() {
		return fmt.Errorf("resume: %w", probe.ErrInHandler)
	}
	m.life.Lock()
	defer m.life.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.phase {
	case PhaseRunning:
		m.releaseStopped(which)
		return nil
	case PhaseClosed:
		return fmt.Errorf("resume: %w", ErrClosed)
	case PhaseExited, PhaseCrashed:
		return fmt.Errorf("resume: %w", ErrNotRunnable)
	}
	if m.sys == nil {
		return fmt.Errorf("resume: %w", ErrSaved)
	}
	m.setPhase(PhaseRunning)
	m.gate.And(^gateHold)
	m.releaseStopped(which)
	m.startTicker()
	return nil
}

// Pause brings all vCPUs to rest between two instructions and keeps them there.
// A vCPU that is being stepped (Step) pauses after one of its steps, and its
// steps continue. Calling Pause while the vCPUs rest has no effect. A handler
// must not call it.
func (m *Machine) Pause() error {
	if m.inHandler() {
		return fmt.Errorf("pause: %w", probe.ErrInHandler)
	}
	m.life.Lock()
	defer m.life.Unlock()
	if err := m.pause(); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

// pause is Pause. Precondition: life held.
func (m *Machine) pause() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.phase {
	case PhaseClosed:
		return ErrClosed
	case PhaseRunning:
		m.gate.Or(gateHold)
		m.setPhase(PhasePaused)
	}
	m.gate.Or(gateStep)
	defer func() {
		m.gate.And(^gateStep)
		m.wakeAll()
	}()
	return m.awaitRest(nil, m.stopTimeout, true)
}

// Reset boots the guest again, from img or, when img is nil, from its present
// image, and leaves it parked before the first instruction. Probes stay. They
// are armed again where the new text is the same as when they were attached; the
// others are gone. When img cannot be booted, the guest is reset with its
// present image, and the error says why. A handler must not call it.
func (m *Machine) Reset(ctx context.Context, img *guest.Image) error {
	return m.reset(ctx, func() error { return nil }, func() (bool, error) { return m.rebuild(img, nil) })
}

// reset calls build to replace the guest, unless check fails. It reports whether
// there is a guest afterwards.
func (m *Machine) reset(ctx context.Context, check func() error, build func() (bool, error)) error {
	fail := func(err error) error { return fmt.Errorf("reset: %w", err) }
	if m.inHandler() {
		return fail(probe.ErrInHandler)
	}
	m.life.Lock()
	defer m.life.Unlock()
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	if m.sys == nil {
		return fail(ErrSaved)
	}
	if err := check(); err != nil {
		return fail(err)
	}
	if err := m.pause(); err != nil {
		return fail(err)
	}
	m.stopTicker()
	m.setResetting(true)
	defer m.setResetting(false)
	err := m.engine.Reload(func(save func()) (there bool, err error) {
		// No one else stops the world while there are no vCPUs to stop.
		err = m.stopWorld(nil, func() (err error) {
			save()
			there, err = build()
			return err
		})
		return there, err
	})
	if err != nil {
		return fail(err)
	}
	// The threads are new, and State knows the registers of those at rest only.
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.awaitRest(nil, m.stopTimeout, true); err != nil {
		return fail(err)
	}
	return nil
}

func (m *Machine) setResetting(yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resetting = yes
}

// rebuild replaces the VM by a new one, with all memory as at the first boot. If
// to is not nil, it is restored next, and memory may be left as it is for that.
// rebuild reports whether there is a guest afterwards. Precondition: life held,
// all vCPUs rest.
func (m *Machine) rebuild(img *guest.Image, to *snapshot.Snapshot) (bool, error) {
	if err := m.endThreads(m.stopTimeout); err != nil {
		return false, err
	}
	if err := m.demolish(); err != nil {
		return false, err
	}
	m.mu.Lock()
	m.calls.endAll(errors.New("the guest was reset"))
	m.mu.Unlock()
	m.calls.forgetStub()
	m.console.flush()

	old := m.payload()
	p := old
	if img != nil {
		p = bare{img}
	}
	boot, refused := m.bootFresh(p, to)
	err := refused
	if refused != nil && img != nil {
		p = old
		boot, err = m.bootFresh(p, to)
	}
	if err == nil {
		m.setPayload(p)
		err = m.build(boot)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gate.Or(gateHold)
	m.exitCode, m.exit, m.crash = 0, nil, nil
	m.checks.Store(0)
	if err != nil {
		m.crash = &CrashReport{Kind: CrashHost, Text: fmt.Sprintf("the guest could not be built again: %v", err)}
		m.setPhase(PhaseCrashed)
		return false, err
	}
	m.setPhase(PhaseCreated)
	return true, refused
}

// bootFresh boots p in memory that is all zeros, or into which to is restored
// next.
func (m *Machine) bootFresh(p payload, to *snapshot.Snapshot) (*guest.BootState, error) {
	if to == nil || !p.keepsMemory(to) {
		if err := m.mem.zero(); err != nil {
			return nil, err
		}
	}
	return m.load(p, to)
}

// endThreads ends all vCPU threads. The gate's quit bit is clear afterwards.
func (s *vcpuSet) endThreads(timeout time.Duration) error {
	s.mu.Lock()
	s.gate.Or(gateQuit)
	s.wakeAll()
	s.stoppers.changed.Broadcast()
	for _, v := range s.vcpus {
		if !v.where.rests() {
			v.kick()
		}
	}
	s.mu.Unlock()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for _, v := range s.vcpus {
		if v.done == nil {
			continue
		}
		select {
		case <-v.done:
			v.done = nil
		case <-deadline.C:
			return &StopTimeoutError{CPU: v.id, After: timeout}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.vcpus {
		v.setState(stateOff)
		v.forgetStop()
	}
	s.gate.And(^gateQuit)
	return nil
}

// Close removes all probes, ends the vCPUs and frees everything. A second call
// does nothing and returns nil. If a probe handler does not return, Close times
// out at ctx's deadline, or after a default time. The error is then a
// *StopTimeoutError, and that vCPU's memory is freed when the handler returns. A
// handler must not call Close.
func (m *Machine) Close(ctx context.Context) error {
	if m.inHandler() {
		return fmt.Errorf("close: %w", probe.ErrInHandler)
	}
	m.life.Lock()
	defer m.life.Unlock()
	m.mu.Lock()
	closed := m.phase == PhaseClosed
	m.mu.Unlock()
	if closed {
		return nil
	}
	if d, ok := ctx.Deadline(); ok {
		m.mu.Lock()
		m.stopTimeout = max(0, min(m.stopTimeout, time.Until(d)))
		m.mu.Unlock()
	}
	m.stopTicker()
	errEngine := m.engine.Close()
	m.mu.Lock()
	m.gate.Or(gateHold)
	m.setPhase(PhaseClosed)
	m.calls.endAll(ErrClosed)
	m.mu.Unlock()
	m.console.flush()
	m.console.close()
	if err := m.endThreads(m.stopTimeout); err != nil {
		go func() {
			if m.endThreads(1<<63-1) == nil {
				_ = m.free() // Close has returned, so there is no caller for the error
			}
		}()
		return errors.Join(fmt.Errorf("close: %w", err), errEngine)
	}
	if err := errors.Join(errEngine, m.free()); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// free frees everything. The vCPUs' threads have ended.
func (m *Machine) free() error {
	m.memory.Lock()
	defer m.memory.Unlock()
	m.freed = true
	return m.release()
}
