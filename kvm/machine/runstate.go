package machine

import "fmt"

// The run state of a vCPU
//
// A vCPU's run state is one word that says where its thread is. Everything that stops, resumes, steps, saves or resets
// vCPUs decides by this word.
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
// A vCPU that rests is not in guest mode and enters it only through another state, so the world is stopped when all rest. Between
// two exits its registers are the guest's, and it can be stepped. In mid-exit they are not, and it cannot be saved.
//
// Machine.mu is held for each change. The vCPU's own thread makes them all, with three exceptions, in states in which the thread
// sleeps or does not exist:
//
//   - start makes off running before the thread exists; endThreads confirms off after its end;
//   - Look.SetRegs makes idle and halted roused, while the world is stopped;
//   - runTidied makes settled parked, so that the vCPU looks at its place again.
//
// Others read the state with Machine.mu held. The own thread reads it without: no one else changes it while the thread runs.
//
// A thread that is cut has a kick, so that KVM does not enter the guest for it.
//
// What is not part of the run state, because it holds in several states and changes apart from them:
//
//   - due, step: what the thread does next, or executes, for a handler or a debugger. They are the thread's, and change in running.
//   - midIO, traceEnd, asleep, owesText: what the last exit has left to be done, by KVM and by the thread. They outlast rests.
//   - haltAll: a handler's word about its stop, given before the stop is.
//   - blocked: KVM has been asked to hold interrupts back, so that it is asked once.
//   - stop, goOn, steps: what others have found the vCPU stopped for, and want of it. They come and go while it rests, in any state,
//     under Machine.mu.
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

// servesSteps reports whether a vCPU that rests there goes on when a debugger has it execute instructions.
func (s runState) servesSteps() bool { return s.between() || s == stateComparing }

func (s runState) inHalt() bool { return s == stateIdle || s == stateHalted }

// rests are the states in which a thread waits for the gate to open (vcpu.sleep).
const rests = 1<<stateParked | 1<<stateSettled | 1<<stateIdle | 1<<stateHalted | 1<<stateComparing | 1<<stateWaiting | 1<<statePoking

// runSteps are the legal transitions: the states that can follow each.
var runSteps = [numRunStates]runStates{
	stateOff:           setOf(stateRunning, stateOff),
	stateRunning:       rests | setOf(stateQueued, stateOff),
	stateParked:        setOf(stateRunning, stateLeaving),
	stateSettled:       setOf(stateRunning, stateParked, stateSettled), // after steps the thread rests before it has come to its place for that
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
	stateCut:           rests | setOf(stateQueued, stateOff), // it ends, and may rest on its way
}

// queued, stopping and stopped return the state of a thread that queues to stop the world, has it stopped, and lets it run again.
func (s runState) queued() runState {
	if s == stateLeaving {
		return stateLeavingQueued
	}
	return stateQueued
}

func (s runState) stopping() runState {
	if s == stateLeavingQueued {
		return stateLeavingStops
	}
	return stateStops
}

func (s runState) stopped() runState {
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

// setState makes to the vCPU's run state. Precondition: m.mu held.
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

// activity returns what the vCPU does, as clients see it. Precondition: m.mu held.
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
