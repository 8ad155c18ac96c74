package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// suspension stops the process as Ctrl-Z would. In raw mode the terminal does not send SIGTSTP, so programs that draw a screen need it.
type suspension struct{}

// unstopped is the time after which Run looks again whether the process can be stopped: a process group whose shell has just
// died is not. The signal may take longer on a busy machine.
const unstopped = 200 * time.Millisecond

// Run stops the process group and returns after it is continued.
func (*suspension) Run() error {
	again := make(chan os.Signal, 1)
	signal.Notify(again, unix.SIGCONT)
	defer signal.Stop(again)
	if err := unix.Kill(0, syscall.SIGTSTP); err != nil {
		return err
	}
	late := time.NewTicker(unstopped) // keeps running while the process is stopped
	defer late.Stop()
	for {
		select {
		case <-again:
			return nil
		case <-late.C:
			if !canSuspend() {
				return nil
			}
		}
	}
}

// SetStdin, SetStdout and SetStderr implement tea.ExecCommand.
func (*suspension) SetStdin(io.Reader)  {}
func (*suspension) SetStdout(io.Writer) {}
func (*suspension) SetStderr(io.Writer) {}

// canSuspend reports whether a shell with job control can continue the process. The kernel ignores SIGTSTP for an
// orphaned process group: one in which no process has a parent in another group of the same session (setpgid(2), signal(7)).
func canSuspend() bool {
	group := unix.Getpgrp()
	session, err := unix.Getsid(0)
	for parent := unix.Getppid(); err == nil && parent > 1; parent, err = parentOf(parent) {
		if s, err := unix.Getsid(parent); err != nil || s != session {
			return false
		}
		if g, err := unix.Getpgid(parent); err != nil || g != group {
			return err == nil
		}
	}
	return false
}

// parentOf returns the parent of a process, from /proc/PID/stat (proc(5)).
func parentOf(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The command's name is in parentheses and may contain any byte.
	if f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(f) > 1 {
		return strconv.Atoi(string(f[1]))
	}
	return 0, io.ErrUnexpectedEOF
}
