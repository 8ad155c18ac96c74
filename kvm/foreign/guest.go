package foreign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
)

// Guest is a running guest of another VMM. Its methods may be called by any
// goroutine, except where a comment says otherwise. Close it.
type Guest struct {
	// Process is the VMM.
	Process Process

	// Way is how the guest is reached.
	Way Way

	// NoQMP is why the QMP socket of the VMM could not be used, or nil.
	NoQMP error

	back  backend
	mem   *guest.Memory
	pidfd int // of the VMM
}

// Way is how a guest is reached.
type Way string

// The ways.
const (
	Cooperative Way = "qmp"    // QEMU with its RAM in a shared file and a QMP socket
	Outside     Way = "ptrace" // any VMM, from outside
)

// CPU is a vCPU that is stopped.
type CPU struct {
	// Known is false if the registers cannot be had: see CodePaused.
	Known bool
	Regs  kvm.Regs
	Sregs kvm.Sregs

	// Halted reports that the vCPU waits in hlt. It is known by QMP only.
	Halted bool

	// Debug is the debug registers, if HasDebug. They can be had by QMP only.
	HasDebug bool
	Debug    kvm.DebugRegs
}

// backend is a way to reach a guest.
type backend interface {
	// regions returns the guest's memory.
	regions() []guest.Region

	// vcpus returns the number of vCPUs.
	vcpus() int

	// stop stops all vCPUs, runs f with their registers and lets them run again.
	// The registers are valid only in f. It waits that long for a vCPU whose
	// registers are not known.
	stop(ctx context.Context, wait time.Duration, f func([]CPU) error) error

	close() error
}

// Open opens the guest of a process. It prefers a QMP socket, if the guest's
// RAM is in a shared file; otherwise NoQMP says why that was not possible.
// Errors are *Error.
func Open(p Process) (*Guest, error) {
	g := &Guest{Process: p, mem: new(guest.Memory)}
	var err error
	if g.pidfd, err = unix.PidfdOpen(p.PID, 0); err != nil {
		return nil, fail(CodeGone, err, "process %d", p.PID)
	}
	if isStopped(p.PID) {
		unix.Close(g.pidfd)
		return nil, fail(CodeBusy, nil, "process %d is stopped (SIGSTOP), and its guest with it: SIGCONT continues it", p.PID)
	}
	for _, path := range append([]string{p.QMP}, p.otherQMP...) {
		if path == "" {
			break
		}
		var q *qmp
		if q, err = openQMP(p.PID, path); err == nil {
			g.back, g.Way = q, Cooperative
			break
		}
	}
	if g.back == nil {
		o, outer := openOutside(p)
		if outer != nil {
			unix.Close(g.pidfd)
		}
		switch {
		case outer != nil && err != nil:
			return nil, fail(CodeOf(outer), outer, "by its QMP socket: %v; from outside", err)
		case outer != nil:
			return nil, outer
		}
		g.back, g.Way, g.NoQMP = o, Outside, err
	}
	for _, r := range g.back.regions() {
		if err := g.mem.AddRegion(r); err != nil {
			g.Close()
			return nil, fail(CodeHostLayout, err, "the memory of process %d's VM", p.PID)
		}
	}
	return g, nil
}

// isStopped reports whether a process is stopped by a signal (proc_pid_stat(5)).
func isStopped(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(b[max(0, bytes.LastIndexByte(b, ')')):]), " ")
	return strings.HasPrefix(after, "T")
}

// Close ends the access. It may be called again. No other method may run.
func (g *Guest) Close() error {
	err := g.back.close()
	if g.pidfd >= 0 {
		err = errors.Join(err, unix.Close(g.pidfd))
		g.pidfd = -1
	}
	return err
}

// AwaitEnd waits until the VMM's process ends, and returns true, or until ctx ends. Close must not be called before it returns.
func (g *Guest) AwaitEnd(ctx context.Context) bool {
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(g.pidfd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 200); n > 0 && err == nil {
			return true
		}
	}
	return false
}

// VCPUs returns the number of vCPUs.
func (g *Guest) VCPUs() int { return g.back.vcpus() }

// Memory returns the guest's physical memory, to be read only. Where it is a
// copy, it is of the time of the last Stop, or later.
func (g *Guest) Memory() *guest.Memory { return g.mem }

// Size returns the number of bytes of the guest's memory.
func (g *Guest) Size() (n uint64) {
	for _, r := range g.mem.Regions() {
		n += uint64(len(r.Bytes))
	}
	return n
}

// Stop stops all vCPUs, runs f and lets them run again. cpus has a row for each
// vCPU, by number. f must return soon, because the guest's clocks do not stop. If no register
// is known after a fifth of a second, because the VMM has paused the guest,
// CPU.Known is false. Errors are *Error, ctx's and f's.
func (g *Guest) Stop(ctx context.Context, f func(cpus []CPU) error) error {
	return g.back.stop(ctx, time.Second/5, f)
}
