package machine

import "fmt"

// The run state of a vCPU
//
// A vCPU's run state is one word that says where its thread is. All code that stops, resumes, steps, saves or resets
// vCPUs depends on this word only.
//
//	state          the thread is                                         rests  between  mid-exit  stops
//	off            not there                                             yes
//	running        in the guest, or handling an exit
//	parked         between two exits, perhaps in the engine's code       yes    yes
//	settled        between two exits, outside of the engine's code       yes    yes
//	               as far as the vCPU could be brought there
//	leaving        bringing the vCPU there                                      yes
//	leavingQueued  as leaving, in the queue of those that stop           yes    yes      yes
//	               the world
//	leavingStops   as leaving, while it has the world stopped                   yes                yes
//	idle           in a hlt with interrupts on                           yes
//	halted         in a hlt with interrupts off                          yes
//	roused         in a hlt that a debugger has ended by setting RIP     yes    yes
//	comparing      out of an exit, until the engine has compared         yes
//	               its bytes with the guest's text
//	waiting        in an exit, waiting for work on another thread        yes             yes
//	poking         as waiting, for a write to the guest's text           yes             yes
//	queued         in an exit, in the queue of those that stop           yes             yes
//	               the world
//	stops          in an exit, while it has the world stopped                                      yes
//	cut            in an exit that lost its place in the queue,          yes
//	               because the thread is to end
//
// A vCPU that rests is not in guest mode and enters it only through another state, so the world is stopped when all vCPUs
// rest. Between two exits the registers are the guest's, and the vCPU can be stepped. In mid-exit the registers are not
// the guest's, and the vCPU cannot be saved.
//
// Machine.mu is held for each change. The vCPU's own thread makes all changes, with three exceptions, in states in which
// the thread sleeps or does not exist:
//
//   - start changes off to running before the thread exists; endThreads confirms off after its end;
//   - Look.setRegs changes idle and halted to roused, while the world is stopped;
//   - runTidied changes settled to parked, so that the vCPU checks its place again.
//
// Other threads read the state with Machine.mu held. The vCPU's own thread reads it without the lock: no other thread
// changes it while this one runs.
//
// A thread that is cut has been kicked, so that KVM does not enter the guest for it.
//
// These are not part of the run state, because they hold in several states and change independently:
//
//   - due, step: the thread's next task, or the step that it executes, for a handler or a debugger. They belong to the
//     thread, and change in running.
//   - midIO, traceEnd, asleep, owesText: work left by the last exit, for KVM and for the thread. They outlast rests.
//   - haltAll: how a handler wants its stop to work, set before the stop.
//   - blocked: KVM has been asked to hold interrupts back, so that it is asked once.
//   - stop, resumes, steps: why the vCPU is stopped, and what other threads want it to do. They come and go while it rests,
//     in any state, under Machine.mu.
//
// runSteps lists the legal transitions. An illegal one is a bug; it is logged, and ends this package's tests.
type runState uint8

const (
	stateOff runState = iota
	stateRunning
	stateParked
	stateSettled
	stateLeaving
	stateLeavingQueued
	stateLeavingStops
	stateIdle
	stateHalted
	stateRoused
	stateComparing
	stateWaiting
	statePoking
	stateQueued
	stateStops
	stateCut
	numRunStates
)

// runStates is a set of run states.
type runStates uint32

// setOf returns the set of these states.
func setOf(states ...runState) (set runStates) {
	for _, s := range states {
		set |= 1 << s
	}
	return set
}

func (set runStates) has(s runState) bool { return set>>s&1 != 0 }

// The columns of the table above.
var (
	restingStates = setOf(stateOff, stateParked, stateSettled, stateLeavingQueued, stateIdle, stateHalted, stateRoused, stateComparing,
		stateWaiting, statePoking, stateQueued, stateCut)
	betweenStates  = setOf(stateParked, stateSettled, stateLeaving, stateLeavingQueued, stateLeavingStops, stateRoused)
	midExitStates  = setOf(stateLeavingQueued, stateWaiting, statePoking, stateQueued)
	stoppingStates = setOf(stateLeavingStops, stateStops)
)

func (s runState) rests() bool   { return restingStates.has(s) }
func (s runState) between() bool { return betweenStates.has(s) }
func (s runState) midExit() bool { return midExitStates.has(s) }
func (s runState) stops() bool   { return stoppingStates.has(s) }

// servesSteps reports whether a vCPU that rests in this state runs again when a
// debugger has it execute instructions.
func (s runState) servesSteps() bool { return s.between() || s == stateComparing }

func (s runState) inHalt() bool { return s == stateIdle || s == stateHalted }

// rests are the states in which a thread waits for the gate to open (vcpu.sleep).
const rests = 1<<stateParked | 1<<stateSettled | 1<<stateIdle | 1<<stateHalted | 1<<stateComparing | 1<<stateWaiting | 1<<statePoking

// runSteps are the legal transitions: the states that can follow each.
var runSteps = [numRunStates]runStates{
	stateOff:           setOf(stateRunning, stateOff),
	stateRunning:       rests | setOf(stateQueued, stateOff),
	stateParked:        setOf(stateRunning, stateLeaving, stateParked, stateSettled), // see settled: runTidied may have run in between
	stateSettled:       setOf(stateRunning, stateParked, stateSettled),               // after steps the thread rests before it has come to its place for that
	stateLeaving:       setOf(stateSettled, stateLeavingQueued),
	stateLeavingQueued: setOf(stateLeavingStops, stateCut),
	stateLeavingStops:  setOf(stateLeaving),
	stateIdle:          setOf(stateRunning, stateRoused),
	stateHalted:        setOf(stateRunning, stateRoused),
	stateRoused:        setOf(stateRunning),
	stateComparing:     setOf(stateRunning),
	stateWaiting:       setOf(stateRunning),
	statePoking:        setOf(stateRunning),
	stateQueued:        setOf(stateStops, stateCut),
	stateStops:         setOf(stateRunning),
	stateCut:           rests | setOf(stateQueued, stateOff), // it ends, and may rest before
}

// toQueued, toStopping and toStopped return the state of a thread that queues to
// stop the world, has it stopped, and lets it run again.
func (s runState) toQueued() runState {
	if s == stateLeaving {
		return stateLeavingQueued
	}
	return stateQueued
}

func (s runState) toStopping() runState {
	if s == stateLeavingQueued {
		return stateLeavingStops
	}
	return stateStops
}

func (s runState) toStopped() runState {
	if s == stateLeavingStops {
		return stateLeaving
	}
	return stateRunning
}

var runStateNames = [numRunStates]string{"off", "running", "parked", "settled", "leaving", "leavingQueued", "leavingStops", "idle", "halted",
	"roused", "comparing", "waiting", "poking", "queued", "stops", "cut"}

func (s runState) String() string {
	if s < numRunStates {
		return runStateNames[s]
	}
	return fmt.Sprintf("runState(%d)", uint8(s))
}

// onRunStep is nil, or called for each transition. Tests set it.
var onRunStep func(from, to runState)

// setState changes the vCPU's run state. Precondition: m.mu held.
func (v *vcpu) setState(to runState) {
	from := v.where
	v.where = to
	if !runSteps[from].has(to) {
		v.m.log.Error("BUG: illegal transition of a vCPU's run state", "vcpu", v.id, "from", from, "to", to)
	}
	if onRunStep != nil {
		onRunStep(from, to)
	}
}

// activity returns the vCPU's activity for clients. Precondition: m.mu held.
func (v *vcpu) activity() VCPUActivity {
	switch s := v.where; {
	case v.saved != "":
		return v.saved
	case s == stateIdle:
		return VCPUIdle
	case s == stateHalted:
		return VCPUHalted
	case s.between() && v.stop != nil:
		return VCPUStopped
	case s.rests():
		return VCPUParked
	}
	return VCPURunning
}
