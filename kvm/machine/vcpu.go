package machine

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// vcpu is one virtual processor. It lives as long as the machine. A reset
// replaces its kvm object and the thread that runs it.
//
// Its thread owns everything in the first group. Another thread may touch that
// only while the vCPU rests, which it learns under Machine.mu.
type vcpu struct {
	trapFrame

	others   otherRegs                 // nil: no vCPU at the moment
	traceEnd bool                      // the guest single-steps, and this write ends the step: see endTrace
	call     *call                     // the host's call that runs on this vCPU
	asleep   bool                      // a hlt in code that was run from inside a hit has still to be handled
	passes   [probe.NumMilestones]bool // milestones that it has reached and that are not handled yet
	poke     [4]uint64                 // the arguments of the function that writes to text, at probe.TextWritten
	owesText bool                      // the guest has reported changed text, which the engine has not compared yet
	blocked  bool                      // KVM holds its interrupts back: see alone
	given    guest.GVA                 // an int3 that was just returned to the guest; 0: none

	guard guard

	due     due
	haltAll bool       // its next stop also stops all others
	step    *debugStep // the step that it executes for a debugger, or nil

	tid     atomic.Int32 // of its thread, 0 without one
	tick    atomic.Bool  // a timer interrupt is due
	samples atomic.Pointer[sample]

	// Guarded by Machine.mu.
	where   runState
	saved   VCPUActivity // the activity of a saved vCPU (Open)
	stop    *Stop        // it is stopped; see there
	resumes bool         // it was stopped, and is to run again
	steps   *steps
	wake    *sync.Cond
	done    chan struct{} // closed when its thread has ended
}

// trapFrame is the registers of a vCPU, both as KVM has them, and as they were
// where the trap in progress interrupted the guest.
type trapFrame struct {
	m  *Machine
	id int

	kvm   *kvm.VCPU
	exit  kvm.Exit
	regs  *probe.Regs // shared with the kernel where it can
	sregs *kvm.Sregs
	trap  arrival    // the trap being handled
	frame probe.Regs // registers of the interrupted code, when a guest stub forwarded the trap
	midIO bool       // the I/O instruction of the last exit is completed by the next KVM_RUN
	raw   [64]byte   // for reading and writing guest memory without allocation
	gs    guest.GVA  // last known GS base of the guest's kernel; 0: not known yet
	n     counters
}

func newVCPU(m *Machine, id int) *vcpu {
	v := &vcpu{trapFrame: trapFrame{m: m, id: id}}
	v.guard.v = v
	v.wake = sync.NewCond(&m.mu)
	return v
}

// state returns the registers for the engine. Thread: the vCPU's, or while it
// rests.
func (v *trapFrame) state() probe.State {
	return probe.State{Regs: v.regs, Root: v.space(), CPL: v.cpl()}
}

// space returns the address of the top-level page table (SDM Vol. 3, table
// 4-12), or 0 before the first run. The other bits of CR3 vary within one
// address space: Linux uses another PCID when it returns to it.
func (v *trapFrame) space() guest.GPA { return guest.GPA(v.sregs.CR3 & pteAddr) }

// cpl returns the current privilege level (SDM Vol. 3, 5.5).
func (v *trapFrame) cpl() uint8 { return uint8(v.sregs.CS.Selector & 3) }

// kick brings the vCPU out of guest mode soon. Thread: the vCPU's own thread, or any with m.mu held: a
// reset replaces v.kvm.
func (v *trapFrame) kick() {
	if v.kvm == nil {
		return
	}
	if err := v.kvm.Kick(); err != nil {
		v.m.log.Error("kick failed", "vcpu", v.id, "err", err)
	}
}

// start runs the vCPU on a thread of its own. Precondition: v.kvm is set up and
// the gate is closed.
func (v *vcpu) start() {
	v.m.mu.Lock()
	v.done = make(chan struct{})
	v.setState(stateRunning)
	v.m.mu.Unlock()
	started := make(chan struct{})
	go v.thread(started)
	<-started
}

// thread is the main function of a vCPU's thread. It stays locked, so that the
// OS thread ends with it and takes its signal state along.
func (v *vcpu) thread(started chan<- struct{}) {
	runtime.LockOSThread()
	v.kvm.Bind()
	v.tid.Store(int32(unix.Gettid()))
	close(started)
	defer func() {
		v.tid.Store(0)
		v.kvm.Unbind()
		v.m.mu.Lock()
		v.setState(stateOff) // another vCPU may have the world stopped before all have ended
		v.m.rested.Broadcast()
		v.m.mu.Unlock()
		close(v.done)
	}()
	if v.asleep { // restored from a snapshot
		v.asleep = false
		v.handleHalt()
	}
	rested, ok := v.proceed()
	if !ok || !v.confine() {
		return
	}
	for ; ok; rested, ok = v.proceed() {
		if rested && v.serveDebugger() {
			continue
		}
		if v.asleep { // code that was run for a debugger has reached a hlt
			v.asleep = false
			v.handleHalt()
			continue
		}
		v.guard.check()
		if v.midIO && v.tick.Load() && !v.stepping() {
			v.completeExit() // the exit's completion may set registers
			continue
		}
		v.deliverTick()
		if v.owesText {
			v.reconcileText()
			continue
		}
		if err := v.runHoldingTurn(); err != nil {
			v.crashRun(err)
			continue
		}
		v.handle()
		if v.asleep {
			v.asleep = false
			v.handleHalt()
		}
	}
}

// confine calls Config.Confine. If that fails, the thread must not enter the
// guest: false ends it.
func (v *vcpu) confine() bool {
	if v.m.cfg.Confine == nil {
		return true
	}
	if err := v.m.cfg.Confine(); err != nil {
		v.crash(CrashHost, fmt.Sprintf("its thread could not be confined: %v", err))
		v.proceed() // until the machine is reset, or closed
		return false
	}
	return true
}

// proceed is the point between two hits. It returns at once when the gate is
// open; otherwise the vCPU rests until it is. rested reports whether it has
// rested, so that others may have requested something of it, and ok whether its
// thread continues.
//
// Closing the gate is followed by a kick. So either the closed gate is seen
// here, or the kick comes after ClearKick and keeps the vCPU from staying in
// KVM_RUN.
func (v *vcpu) proceed() (rested, ok bool) {
	if v.kvm.Kicked() {
		v.kvm.ClearKick()
	}
	if (v.m.gate.Load() == 0 || v.mayRunAlone()) && v.due == dueNothing {
		v.runSamples()
		return false, true
	}
	v.completeExit()
	v.m.turns.unlock(v)
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	if v.due == dueStop {
		v.m.noteStop(v)
	}
	v.due = dueNothing
	at := stateParked
	if v.stop != nil {
		at = stateSettled // a vCPU does not stop in the engine's code
	}
	for {
		v.sleep(at, func() bool { return v.stop == nil || v.steps != nil })
		if g := v.m.gate.Load(); g&gateQuit != 0 || g == 0 || v.mayRunAlone() || v.steps != nil {
			v.setState(stateRunning)
			return true, g&gateQuit == 0
		}
		v.setState(stateLeaving)
		v.m.mu.Unlock()
		v.leaveEngineCode()
		v.m.turns.unlock(v)
		v.m.mu.Lock()
		at = stateSettled
	}
}

// due is what a vCPU's thread does before it enters the guest again (proceed),
// in addition to looking at the gate.
//
// Its own thread changes it without a lock. Others raise it to duePark with
// Machine.mu held, while the vCPU rests. It rises until proceed has acted on it.
// Steps for a debugger end at duePark, even if a handler has asked for a stop on
// the way.
type due uint8

const (
	dueNothing due = iota
	duePark        // rest, as long as the vCPU is stopped: another thread has stopped it, or moved it out of a hlt
	dueStop        // stop, and rest: a handler has asked for it
)

// raise makes d at least to.
func (d *due) raise(to due) { *d = max(*d, to) }

// settleLimit is how many parts of a string instruction completeExit completes.
// A rep outs can have any number. The registers between two parts are the same
// that an interrupt would find.
const settleLimit = 64

// completeExit has KVM complete the I/O instruction of the last exit, and takes
// back an int3 and a tick that were not delivered to the guest yet. After that,
// a resting vCPU's registers are those between two instructions, and the vCPU
// executes the next instruction first. A debugger may step it, or set registers
// with which the guest takes no interrupt.
func (v *vcpu) completeExit() {
	for n := 0; v.midIO && n < settleLimit; n++ {
		v.midIO = false
		if err := v.kvm.Complete(&v.exit); err != nil {
			v.crashRun(err)
		} else if v.exit.Reason != kvm.ReasonInterrupted {
			v.handle()
		}
	}
	v.endTrace()
	if v.exit.Reason != kvm.ReasonInterrupted {
		return
	}
	switch back, err := v.kvm.TakeInterruptBack(); {
	case err != nil:
		v.crashRun(err)
	case back:
		v.n.ticks.add(^uint64(0)) // it is counted when it is delivered again
		if v.tick.Swap(true) {
			v.n.merged.inc()
		}
	}
	if v.m.host.Traps.CPL(v.cpl()).Int3 == host.DeliveryVector {
		if _, err := v.kvm.TakeBreakpointBack(); err != nil {
			v.crashRun(err)
		}
	}
}

// rest keeps the vCPU in state at, a resting state, until the gate is open and
// ready returns true, or the thread has to end. It returns the state at that
// time, which another thread may have changed. Precondition: m.mu held; ready is
// called with it.
func (v *vcpu) rest(at runState, ready func() bool) (last runState) {
	last = v.sleep(at, ready)
	v.setState(stateRunning)
	return last
}

// sleep is rest, but leaves the vCPU in its state.
func (v *vcpu) sleep(at runState, ready func() bool) (last runState) {
	m := v.m
	v.setState(at)
	m.rested.Broadcast()
	for {
		g := m.gate.Load()
		if g&gateQuit != 0 || g == 0 && ready() || v.mayRunAlone() || g&(gateStop|gateStep) == 0 && v.steps != nil && v.where.servesSteps() && ready() ||
			g&gateStop == 0 && v.where == stateParked && m.untidied() {
			return v.where
		}
		v.wake.Wait()
	}
}

// runAside runs f on another thread, and keeps the vCPU in state at
// (stateWaiting, statePoking) until f has returned, or until the thread has to
// end. The function waits, which takes m.mu, reports whether the vCPU still
// waits.
func (v *vcpu) runAside(at runState, f func(waits func() bool)) {
	v.m.turns.unlock(v) // lets others run or come to rest: see turns
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	done := false
	go func() {
		f(func() bool {
			v.m.mu.Lock()
			defer v.m.mu.Unlock()
			return !done
		})
		v.m.mu.Lock()
		defer v.m.mu.Unlock()
		done = true
		v.wake.Signal()
	}()
	v.rest(at, func() bool { return done })
	done = true
}

// crashRun reports an error of KVM_RUN itself, which no guest should cause.
func (v *vcpu) crashRun(err error) {
	v.crash(CrashHost, fmt.Sprintf("KVM_RUN failed: %v", err))
}
