package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/gdb"
)

// debuggers serves GDB's remote protocol on a socket of its own, one debugger at a time.
type debuggers struct {
	s    *server
	g    stoppable
	sock *socket
	done sync.WaitGroup

	mu   sync.Mutex
	busy bool
}

// listenGDB serves debuggers on a socket the one for clients; nil, and why in the log,
// where that cannot be had: everything else works without.
func (s *server) listenGDB(ctx context.Context, path string) *debuggers {
	g, ok := s.guest.(stoppable)
	if !ok {
		return nil
	}
	sock, err := listen(ctx, path+api.GDBSuffix, s.opt.gid, s.opt.allowUIDs)
	if err != nil {
		s.log.Warn("there is no socket for debuggers", "err", err)
		return nil
	}
	d := &debuggers{s: s, g: g, sock: sock}
	d.done.Go(func() { d.accept(ctx) })
	return d
}

// accept takes debuggers until the socket is closed.
func (d *debuggers) accept(ctx context.Context) {
	for {
		conn, err := d.sock.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			d.s.log.Warn("a debugger could not connect", "err", err)
			continue
		}
		if why := d.admit(conn); why != nil {
			d.s.log.Warn("a debugger was turned away", "err", why)
			if errors.Is(why, errDebugger) {
				d.done.Go(func() { gdb.Refuse(conn, why.Error()) })
			} else {
				conn.Close()
			}
			continue
		}
		d.done.Go(func() {
			defer d.leave()
			t := newDebugged(d.s, d.g)
			d.s.debugger.Store(t)
			defer d.s.debugger.Store(nil)
			d.s.log.Info("debugger attached")
			err := gdb.Serve(ctx, conn, t, d.s.log)
			d.s.log.Info("debugger gone", "err", err)
		})
	}
}

// errDebugger: there is a debugger already.
var errDebugger = errors.New("another debugger is at work")

func (d *debuggers) admit(conn net.Conn) error {
	if err := d.s.access.check(peerOf(conn)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy {
		return errDebugger
	}
	d.busy = true
	return nil
}

func (d *debuggers) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy = false
}

// close waits for sessions, whose context has ended, and gives the socket back.
func (d *debuggers) close() error {
	if d == nil {
		return nil
	}
	d.sock.stop()
	d.done.Wait()
	return d.sock.unlock()
}

// Monitor does what a line says that a debugger's user has typed behind "monitor": a command
// of guestprobe's, to the daemon at this socket. The program of the daemon says what that is, which
// does not import the command line.
type Monitor func(ctx context.Context, socket, line string, w io.Writer) error
