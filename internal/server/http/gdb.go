package http

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/internal/server/gdb"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// debuggers serves GDB's remote protocol on a socket of its own, one debugger at a time.
type debuggers struct {
	s    *server
	g    stoppable
	sock *socket
	done sync.WaitGroup

	turn    chan struct{} // has an element while a debugger is at work
	waiting atomic.Int32  // including the active one
}

const (
	// maxDebuggers bounds the active debugger and the ones that wait for it to
	// end.
	maxDebuggers = 32
	// acceptPause is the pause after an error of accept.
	acceptPause = 50 * time.Millisecond
)

// handover is how long a debugger waits for the end of the one before it. A
// debugger that disconnects and connects again comes before its own end has been
// handled. It times out by itself after two seconds (GDB's remotetimeout).
const handover = time.Second

// listenGDB creates the socket for debuggers beside the one for clients. If that
// fails, it logs the reason and returns nil: everything else works without the
// socket.
func (s *server) listenGDB(ctx context.Context, path string) *socket {
	if _, ok := s.guest.(stoppable); !ok || s.vm != nil {
		return nil
	}
	sock, err := listen(ctx, path+api.GDBSuffix, s.opt.gid, s.opt.allowUIDs)
	if err != nil {
		s.log.Warn("there is no socket for debuggers", "err", err)
		return nil
	}
	return sock
}

// serveGDB serves debuggers on the socket of listenGDB.
func (s *server) serveGDB(ctx context.Context, sock *socket) *debuggers {
	if sock == nil {
		return nil
	}
	d := &debuggers{s: s, g: s.guest.(stoppable), sock: sock, turn: make(chan struct{}, 1)}
	d.done.Go(func() { d.accept(ctx) })
	return d
}

// accept accepts debuggers until the socket is closed.
func (d *debuggers) accept(ctx context.Context) {
	for {
		conn, err := d.sock.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			d.s.log.Warn("a debugger could not connect", "err", err)
			time.Sleep(acceptPause) // there may be no descriptor for it
			continue
		}
		if why := d.s.access.check(peerOf(conn)); why != nil {
			d.s.log.Warn("a debugger was turned away", "err", why)
			conn.Close()
			continue
		}
		if d.waiting.Add(1) > maxDebuggers {
			d.waiting.Add(-1)
			conn.Close()
			continue
		}
		d.done.Go(func() {
			defer d.waiting.Add(-1)
			d.serve(ctx, conn)
		})
	}
}

// serve serves one debugger, once there is no other one.
func (d *debuggers) serve(ctx context.Context, conn net.Conn) {
	timeout := time.NewTimer(handover)
	defer timeout.Stop()
	select {
	case d.turn <- struct{}{}:
	case <-timeout.C:
		d.s.log.Warn("a debugger was turned away", "err", errDebugger)
		gdb.Refuse(conn, errDebugger.Error())
		return
	case <-ctx.Done():
		conn.Close()
		return
	}
	defer func() { <-d.turn }()
	var monitor func(context.Context, string, io.Writer) error
	if d.s.monitor != nil {
		monitor = func(ctx context.Context, line string, w io.Writer) error {
			return d.s.monitor(ctx, d.s.opt.socket, line, w)
		}
	}
	t := newDebugged(d.s.runControl, d.g, monitor)
	d.s.debugger.Store(t)
	defer d.s.debugger.Store(nil)
	d.s.log.Info("debugger attached")
	err := gdb.Serve(ctx, conn, t, d.s.log)
	d.s.log.Info("debugger gone", "err", err)
}

// errDebugger: another debugger is connected.
var errDebugger = errors.New("another debugger is at work")

// close waits for sessions, whose context has ended, and releases the socket.
func (d *debuggers) close() error {
	if d == nil {
		return nil
	}
	d.sock.stop()
	d.done.Wait()
	return d.sock.unlock()
}

// Monitor runs the text that a debugger's user typed after "monitor" as a
// guestprobe command, against the daemon at this socket. The daemon's program
// passes it in, because this package does not import the command line.
type Monitor func(ctx context.Context, socket, line string, w io.Writer) error
