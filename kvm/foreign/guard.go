package foreign

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardEnv is set for a process that resumes a QEMU's guest if its parent ends.
const guardEnv = "GUESTPROBE_QMP_GUARD"

// A process of this program that has guardEnv is a guard, and nothing else.
func init() {
	if os.Getenv(guardEnv) != "" {
		runGuard()
		os.Exit(0)
	}
}

// guard is a process that has a copy of a QMP connection. It resumes the guest if
// this process ends between pause and resume, however it ends.
type guard struct {
	cmd *exec.Cmd
	to  *os.File // 1 while the guest is paused by us, 0 otherwise
}

// startGuard starts the guard of a connection.
func startGuard(conn *net.UnixConn) (*guard, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	socket, err := conn.File()
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	from, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer from.Close()
	cmd := &exec.Cmd{
		Path: exe, Args: []string{"guestprobe: guard of a paused guest"}, Env: []string{guardEnv + "=1"},
		ExtraFiles: []*os.File{socket, from}, SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = cmd.Start()
	// The copy of the connection has made both blocking, so that no deadline would hold.
	raw, inner := conn.SyscallConn()
	if inner == nil {
		inner = raw.Control(func(fd uintptr) { err = errors.Join(err, unix.SetNonblock(int(fd), true)) })
	}
	if err = errors.Join(err, inner); err != nil {
		to.Close()
		return nil, err
	}
	return &guard{cmd, to}, nil
}

// set tells the guard whether the guest is paused by this process.
func (g *guard) set(paused bool) error {
	b := []byte{0}
	if paused {
		b[0] = 1
	}
	_, err := g.to.Write(b)
	return err
}

// close ends the guard.
func (g *guard) close() error {
	err := g.to.Close()
	// A process that is confined may not wait for others: the guard is then left to the one that adopts it.
	if e := g.cmd.Wait(); e != nil && !errors.Is(e, unix.EPERM) {
		err = errors.Join(err, e)
	}
	return err
}

// runGuard is the guard's process: descriptor 3 is the QMP connection, 4 the pipe.
func runGuard() {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	from := os.NewFile(4, "pipe")
	paused := false
	for b := make([]byte, 1); ; {
		if paused && !ready(4, guardTime) { // the parent is stopped itself, or hangs
			_ = unix.Sendto(3, []byte("\n{\"execute\": \"cont\", \"id\": \""+guardID+"\"}\n"), unix.MSG_NOSIGNAL, nil)
			paused = false
		}
		if _, err := io.ReadFull(from, b); err != nil {
			break // the parent has ended
		}
		paused = b[0] == 1
	}
	if !paused {
		return
	}
	socket := os.NewFile(3, "qmp")
	conn, err := net.FileConn(socket)
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(qmpTime))
	// A command of the parent's may have been cut off before its newline.
	if _, err := conn.Write([]byte("\n{\"execute\": \"cont\", \"id\": \"" + guardID + "\"}\n")); err != nil {
		return
	}
	// QEMU discards commands that it has not executed when its client closes.
	in := bufio.NewScanner(conn)
	in.Buffer(nil, maxAnswer)
	for in.Scan() && !bytes.Contains(in.Bytes(), []byte(guardID)) {
	}
}

// guardTime is how long a guest may be paused by a parent that does not end.
const guardTime = 15 * time.Second

// ready reports whether a descriptor can be read within that time.
func ready(fd int32, wait time.Duration) bool {
	for end := time.Now().Add(wait); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: fd, Events: unix.POLLIN}}, int(max(0, time.Until(end).Milliseconds())))
		switch {
		case n > 0:
			return true
		case err == nil && !time.Now().Before(end), err != nil && !errors.Is(err, unix.EINTR):
			return err != nil
		}
	}
}

// guardID is in the answer to the guard's command.
const guardID = "guestprobe-guard-resumes"
