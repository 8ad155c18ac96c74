package gdb

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// link is the part of a debugger's connection that a session needs.
type link interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
}

// stream is a connection over a unix socket whose reader waits in poll(2), on
// its own thread. A debugger's cycle consists of packets of a few microseconds
// each, and the next one comes as soon as the last is answered. Waiting in the
// runtime's poller adds to each of them a wake of the poller, the choice of a
// goroutine, and often another thread.
//
// Read and Write may be called by one goroutine each at a time, the other
// methods by any.
type stream struct {
	fd, wake int         // the socket, and an eventfd that ends a wait
	woken    atomic.Bool // wake can be read

	mu   sync.Mutex
	gone bool // the descriptors are closed
}

// newStream takes over conn, and closes it. If conn is not a unix socket, it
// returns conn itself.
func newStream(conn net.Conn) (_ link, release func(), err error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return conn, func() {}, nil
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	s := &stream{}
	raw, err := c.SyscallConn()
	if err == nil {
		var dup error
		if err = raw.Control(func(fd uintptr) { s.fd, dup = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err == nil {
			err = dup
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("take a debugger's connection over: %w", err)
	}
	if s.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		_ = unix.Close(s.fd)
		return nil, nil, fmt.Errorf("take a debugger's connection over: eventfd: %w", err)
	}
	return s, s.release, nil
}

// Read implements io.Reader. It returns os.ErrDeadlineExceeded while there is a
// deadline, even if there is data.
func (s *stream) Read(p []byte) (int, error) {
	for !s.woken.Load() {
		n, _, err := unix.Recvfrom(s.fd, p, unix.MSG_DONTWAIT)
		switch {
		case err == nil && n == 0 && len(p) > 0:
			return 0, io.EOF
		case err == nil:
			return n, nil
		case errors.Is(err, unix.EAGAIN):
			err = s.await(unix.POLLIN)
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("read from a debugger: %w", goneError(err))
		}
	}
	return 0, os.ErrDeadlineExceeded
}

// Write implements io.Writer. It waits for a debugger that does not read until Close.
func (s *stream) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.SendmsgN(s.fd, p[done:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EAGAIN) {
			n, err = 0, s.await(unix.POLLOUT)
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return done, fmt.Errorf("write to a debugger: %w", goneError(err))
		}
		if err == nil {
			done += n
		}
	}
	return done, nil
}

// goneError converts errors of a connection that has ended into a common one.
func goneError(err error) error {
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return net.ErrClosed
	}
	return err
}

// await waits until the socket is ready, or closed, or a deadline ends the
// reader.
func (s *stream) await(events int16) error {
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: events}, {Fd: int32(s.wake), Events: unix.POLLIN}}
	if events == unix.POLLOUT {
		fds = fds[:1]
	}
	_, err := unix.Poll(fds, -1)
	return err
}

// SetReadDeadline makes reads end with os.ErrDeadlineExceeded. A zero time ends
// that. Deadlines in the future are not supported.
func (s *stream) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return net.ErrClosed
	}
	var b [8]byte
	if s.woken.Store(!t.IsZero()); t.IsZero() {
		if _, err := unix.Read(s.wake, b[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
			return err
		}
		return nil
	}
	b[0] = 1
	_, err := unix.Write(s.wake, b[:])
	return err
}

// Close ends reads and writes, including waiting ones.
func (s *stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	if err := unix.Shutdown(s.fd, unix.SHUT_RDWR); err != nil && !errors.Is(err, unix.ENOTCONN) {
		return err
	}
	return nil
}

// release closes the descriptors, once nothing reads or writes them any more.
func (s *stream) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		s.gone = true
		_, _ = unix.Close(s.fd), unix.Close(s.wake)
	}
}
