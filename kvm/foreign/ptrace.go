package foreign

import (
	"errors"
	"iter"
	"strings"

	"golang.org/x/sys/unix"
)

// ioctlRun is KVM_RUN.
const ioctlRun = 0xae80

// seize starts to trace a thread, without stopping it, and interrupts it.
func seize(tid int) error {
	if err := unix.PtraceSeize(tid); err != nil {
		return err
	}
	return unix.PtraceInterrupt(tid)
}

// detach ends tracing of a stopped thread, which continues. A thread that has been
// killed is waited for, because its process does not end before its tracer has seen
// that.
func detach(tid int) error {
	err := unix.PtraceDetach(tid)
	if !errors.Is(err, unix.ESRCH) {
		return err
	}
	for {
		var ws unix.WaitStatus
		switch _, err := unix.Wait4(tid, &ws, unix.WALL, nil); {
		case errors.Is(err, unix.EINTR):
		case err != nil || ws.Exited() || ws.Signaled():
			return unix.ESRCH
		default:
			return unix.PtraceDetach(tid) // it was not dead, only not stopped yet
		}
	}
}

// awaitStop waits until an interrupted thread has stopped. If that ended its
// KVM_RUN, the call is set up to be made again, so that its VMM sees nothing of
// it, even if this process dies now.
func awaitStop(tid int) error {
	for {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(tid, &ws, unix.WALL, nil); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return err
		}
		if !ws.Stopped() {
			return unix.ESRCH
		}
		event := int(ws) >> 16
		if event == unix.PTRACE_EVENT_STOP {
			break
		}
		// A signal arrived first. It is the thread's.
		signal := 0
		if event == 0 {
			signal = int(ws.StopSignal())
		}
		if err := unix.PtraceCont(tid, signal); err != nil {
			return err
		}
	}
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	if r.Orig_rax == unix.SYS_IOCTL && uint32(r.Rsi) == ioctlRun && int64(r.Rax) == -int64(unix.EINTR) {
		r.Rip -= 2 // syscall
		r.Rax, r.Orig_rax = r.Orig_rax, ^uint64(0)
		return unix.PtraceSetRegs(tid, &r)
	}
	return nil
}

// lines yields the lines of a file's text.
func lines(text string) iter.Seq[string] { return strings.Lines(text) }
