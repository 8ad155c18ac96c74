package machine

import (
	"errors"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
)

// Errors of a machine. They are values: test with errors.Is.
var (
	// ErrClosed: the machine has been closed.
	ErrClosed = errors.New("the machine is closed")

	// ErrNotRunnable: the guest has exited or crashed; only a reset makes it run
	// again.
	ErrNotRunnable = errors.New("the guest has ended; reset it first")

	// ErrGuestReset: a reset has cut off an operation in the guest.
	ErrGuestReset = errors.New("the guest was reset during the request")

	// ErrNotRunning: the request needs a running guest.
	ErrNotRunning = errors.New("the guest is not running; resume it first")

	// ErrNoInput: the guest does not read a console.
	ErrNoInput = errors.New("this guest's console does not accept input")

	// ErrNoSafePoint: no vCPU reached a point where the host may run a function of
	// the guest before the time was over. The function was not run.
	ErrNoSafePoint = errors.New("no vCPU came to a safe point (hlt with interrupts off), and the guest has no call service")

	// ErrCallRunning: the guest has accepted the call, but the function did not
	// return in time. It is still running, or has yet to start; its result will be
	// dropped.
	ErrCallRunning = errors.New("the guest has not come to the end of the function in time; its result will be dropped")

	// ErrCallBusy: an earlier call has not returned yet.
	ErrCallBusy = errors.New("an earlier call is still running in the guest")
)

// CallError is returned when a function of the guest could not be called, or did
// not return. A caller that knows the function's name can show it instead of the
// address.
type CallError struct {
	Fn  guest.GVA
	Err error // the cause
}

// Error says which function, and why.
func (e *CallError) Error() string { return fmt.Sprintf("call %v: %v", e.Fn, e.Err) }

// Unwrap returns the cause.
func (e *CallError) Unwrap() error { return e.Err }

// StopTimeoutError is returned when a vCPU did not come to rest in time: a
// probe handler on it does not return, or the host's KVM does not answer.
type StopTimeoutError struct {
	CPU   int           // the first vCPU that is still busy
	After time.Duration // how long the stop has waited
}

// Error names the vCPU.
func (e *StopTimeoutError) Error() string {
	return fmt.Sprintf("stop the world: vcpu %d did not come to rest within %v: a probe handler on it may not be returning", e.CPU, e.After)
}

// ConfigError is returned by New for an invalid Config.
type ConfigError struct {
	Field string
	Text  string
}

// Error names the field.
func (e *ConfigError) Error() string { return "machine config " + e.Field + ": " + e.Text }

// outOfExecError is returned by AllocExec when the guest has no executable
// memory left within reach.
type outOfExecError struct {
	Near guest.GVA
	Size int
	Why  string
}

// Error says which area is full or out of reach.
func (e *outOfExecError) Error() string {
	return fmt.Sprintf("allocate %d executable bytes near %v: %s", e.Size, e.Near, e.Why)
}

// CallFaultError is returned by Call when the function raised an exception and
// the guest's call service ended it.
type CallFaultError struct {
	Vector uint8 // of the exception
}

// Error names the vector.
func (e *CallFaultError) Error() string {
	return fmt.Sprintf("the function raised exception %d in the guest", e.Vector)
}
